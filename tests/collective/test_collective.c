/* Conformance of collectives: every implementation, 1 to 16 ranks, random schedules, aborts at random points. A hang is
 * ended by the alarm. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "collective/collective.h"
#include "support/fail_env.h"
#include "support/limit.h"
#include "support/seed.h"

#define RANKS_MAX QUIRE_COLLECTIVE_RANKS_MAX
#define OPS_MAX 40
#define BLOCK_BYTES_MAX 97
#define NEVER INT32_MAX

enum kind { KIND_FENCE, KIND_EXCHANGE, KIND_MAX, KINDS };

static const int32_t rank_counts[] = {1, 2, 3, 4, 8, 16};
#define RANK_COUNTS (sizeof rank_counts / sizeof rank_counts[0])

static uint64_t seed_of_run;

/* One schedule: what every rank does, and where who gives up. */
struct schedule {
  struct quire_collective *collective;
  int32_t ranks;
  int32_t ops;
  enum kind kind[OPS_MAX];
  uint64_t seed;
  int32_t abort_at[RANKS_MAX]; /* op before which the rank aborts, or NEVER */
};

struct rank_run {
  const struct schedule *schedule;
  int32_t rank;
  int32_t completed; /* operations that answered QUIRE_OK */
  int32_t faults;    /* wrong bytes, wrong answers */
  uint8_t buffer[2][BLOCK_BYTES_MAX];
};

static uint64_t draw(const struct schedule *schedule, int32_t rank, int32_t op) {
  return quire_mix64(schedule->seed + (uint64_t)rank * 1000003u + (uint64_t)op * 7919u);
}

static size_t block_bytes(const struct schedule *schedule, int32_t rank, int32_t op) {
  return (size_t)(draw(schedule, rank, op) >> 20) % (BLOCK_BYTES_MAX + 1);
}

static uint8_t block_byte(const struct schedule *schedule, int32_t rank, int32_t op, size_t i) {
  return (uint8_t)(draw(schedule, rank, op) + i * 31);
}

/* Different ranks are late at different operations. */
static void dawdle(const struct schedule *schedule, int32_t rank, int32_t op) {
  uint64_t choice = draw(schedule, rank, op) % 16;
  if (choice == 0) {
    struct timespec pause = {.tv_sec = 0, .tv_nsec = 20000};
    nanosleep(&pause, NULL);
  } else if (choice < 4) {
    sched_yield();
  }
}

static int32_t expected_max(const struct schedule *schedule, int32_t op) {
  int32_t max = INT32_MIN;
  for (int32_t r = 0; r < schedule->ranks; r++) {
    int32_t value = (int32_t)draw(schedule, r, op);
    max = value > max ? value : max;
  }
  return max;
}

static int32_t wrong_blocks(const struct schedule *schedule, int32_t op, const struct quire_block *blocks,
                            bool with_bytes) {
  int32_t wrong = 0;
  for (int32_t r = 0; r < schedule->ranks; r++) {
    const uint8_t *base = blocks[r].base;
    size_t bytes = block_bytes(schedule, r, op);
    wrong += blocks[r].bytes != bytes || (bytes == 0) != (base == NULL);
    for (size_t i = 0; with_bytes && i < bytes; i++) {
      wrong += base[i] != block_byte(schedule, r, op, i);
    }
  }
  return wrong;
}

static enum quire_status run_op(struct rank_run *run, int32_t op, int32_t *exchanges, const struct quire_block **former,
                                int32_t *former_op) {
  const struct schedule *schedule = run->schedule;
  struct quire_collective *collective = schedule->collective;
  enum quire_status status = QUIRE_OK;
  if (schedule->kind[op] == KIND_FENCE) {
    status = quire_collective_fence(collective, run->rank);
  } else if (schedule->kind[op] == KIND_MAX) {
    int32_t max = 0;
    status = quire_collective_max_i32(collective, run->rank, (int32_t)draw(schedule, run->rank, op), &max);
    run->faults += status == QUIRE_OK ? max != expected_max(schedule, op) : max != 0;
  } else {
    uint8_t *mine = run->buffer[*exchanges % 2];
    size_t bytes = block_bytes(schedule, run->rank, op);
    const struct quire_block *blocks = NULL;
    for (size_t i = 0; i < bytes; i++) {
      mine[i] = block_byte(schedule, run->rank, op, i);
    }
    status = quire_collective_exchange(collective, run->rank, mine, bytes, &blocks);
    if (status == QUIRE_OK) {
      run->faults += wrong_blocks(schedule, op, blocks, true);
      if (*former != NULL) {
        run->faults += wrong_blocks(schedule, *former_op, *former, false); /* the array outlives one exchange */
      }
      *former = blocks;
      *former_op = op;
      (*exchanges)++;
    } else {
      run->faults += blocks != NULL;
    }
  }
  return status;
}

static void *rank_main(void *context) {
  struct rank_run *run = context;
  const struct schedule *schedule = run->schedule;
  const struct quire_block *former = NULL;
  int32_t former_op = 0;
  int32_t exchanges = 0;
  for (int32_t op = 0; op < schedule->ops; op++) {
    dawdle(schedule, run->rank, op);
    if (schedule->abort_at[run->rank] == op) {
      quire_collective_abort(schedule->collective, run->rank);
    }
    enum quire_status status = run_op(run, op, &exchanges, &former, &former_op);
    if (status != QUIRE_OK) {
      run->faults += status != QUIRE_ERR_ABORTED;
      /* sticky, for every kind of operation */
      int32_t max = 0;
      const struct quire_block *blocks = NULL;
      run->faults += quire_collective_fence(schedule->collective, run->rank) != QUIRE_ERR_ABORTED;
      run->faults += quire_collective_max_i32(schedule->collective, run->rank, 1, &max) != QUIRE_ERR_ABORTED;
      run->faults += quire_collective_exchange(schedule->collective, run->rank, &max, 4, &blocks) != QUIRE_ERR_ABORTED;
      break;
    }
    run->completed++;
  }
  return NULL;
}

/* Runs a schedule with a thread a rank; the number of operations that were completed, the same for all. */
static int32_t run_schedule(const struct schedule *schedule, bool abort_from_outside) {
  static struct rank_run runs[RANKS_MAX];
  pthread_t threads[RANKS_MAX];
  for (int32_t r = 0; r < schedule->ranks; r++) {
    memset(&runs[r], 0, sizeof runs[r]);
    runs[r].schedule = schedule;
    runs[r].rank = r;
    assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &runs[r]), 0);
  }
  if (abort_from_outside) {
    struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)(schedule->seed % 300000)};
    nanosleep(&pause, NULL);
    quire_collective_abort(schedule->collective, 0);
  }
  for (int32_t r = 0; r < schedule->ranks; r++) {
    assert_int_equal(pthread_join(threads[r], NULL), 0);
  }
  for (int32_t r = 0; r < schedule->ranks; r++) {
    if (runs[r].faults != 0 || runs[r].completed != runs[0].completed) {
      fail_msg("schedule seed %llu, %d ranks: rank %d has %d faults, completed %d, rank 0 %d",
               (unsigned long long)schedule->seed, (int)schedule->ranks, (int)r, (int)runs[r].faults,
               (int)runs[r].completed, (int)runs[0].completed);
    }
  }
  return runs[0].completed;
}

static void schedule_draw(struct schedule *schedule, struct quire_collective *collective, uint64_t *random) {
  memset(schedule, 0, sizeof *schedule);
  schedule->collective = collective;
  schedule->ranks = quire_collective_ranks(collective);
  schedule->ops = 1 + (int32_t)quire_splitmix64_below(random, OPS_MAX);
  schedule->seed = quire_splitmix64(random);
  for (int32_t op = 0; op < schedule->ops; op++) {
    schedule->kind[op] = (enum kind)quire_splitmix64_below(random, KINDS);
  }
  for (int32_t r = 0; r < RANKS_MAX; r++) {
    schedule->abort_at[r] = NEVER;
  }
}

static struct quire_collective *collective_of(const char *name, int32_t ranks) {
  struct quire_collective *collective = NULL;
  struct quire_collective_config config = {.ranks = ranks};
  assert_int_equal(quire_collective_create(quire_env_default(), name, &config, &collective, NULL), QUIRE_OK);
  assert_int_equal(quire_collective_ranks(collective), ranks);
  assert_string_equal(quire_collective_name(collective), name);
  return collective;
}

/* Does the implementation work without a GPU? Those that do not have tests of their own. */
static bool works_here(const struct quire_collective_ops *ops) { return strcmp(ops->name, "nccl") != 0; }

static int schedules_for(int32_t ranks) { return 600 / (int)(ranks + 2); }

/* For every implementation and number of ranks: fn on one group that lives through all schedules. */
static void for_all(void (*fn)(struct quire_collective *, uint64_t *)) {
  for (int i = 0; quire_collective_ops_at(i) != NULL; i++) {
    for (size_t c = 0; c < RANK_COUNTS && works_here(quire_collective_ops_at(i)); c++) {
      uint64_t random = seed_of_run + c * 101 + (uint64_t)i;
      struct quire_collective *collective = collective_of(quire_collective_ops_at(i)->name, rank_counts[c]);
      fn(collective, &random);
      quire_collective_destroy(collective);
    }
  }
}

static void schedules_complete(struct quire_collective *collective, uint64_t *random) {
  for (int n = 0; n < schedules_for(quire_collective_ranks(collective)); n++) {
    struct schedule schedule;
    schedule_draw(&schedule, collective, random);
    assert_int_equal(run_schedule(&schedule, false), schedule.ops);
    assert_false(quire_collective_aborted(collective, NULL));
    if (n % 5 == 0) { /* as the controller does between steps, or does not */
      assert_int_equal(quire_collective_reset(collective), QUIRE_OK);
    }
  }
}

static void random_schedules(void **state) {
  (void)state;
  for_all(schedules_complete);
}

/* One to three ranks give up at drawn operations: all complete exactly what the first of them allowed. */
static void schedules_abort(struct quire_collective *collective, uint64_t *random) {
  int32_t ranks = quire_collective_ranks(collective);
  for (int n = 0; n < schedules_for(ranks); n++) {
    struct schedule schedule;
    schedule_draw(&schedule, collective, random);
    int32_t first = NEVER;
    for (int k = 0; k < 1 + n % 3; k++) {
      int32_t who = (int32_t)quire_splitmix64_below(random, (uint64_t)ranks);
      int32_t when = (int32_t)quire_splitmix64_below(random, (uint64_t)schedule.ops);
      schedule.abort_at[who] = when < schedule.abort_at[who] ? when : schedule.abort_at[who];
      first = when < first ? when : first;
    }
    assert_int_equal(run_schedule(&schedule, false), first);
    int32_t who = -1;
    assert_true(quire_collective_aborted(collective, &who));
    assert_true(who >= 0 && who < ranks && schedule.abort_at[who] == first);
    assert_int_equal(quire_collective_reset(collective), QUIRE_OK);
    assert_false(quire_collective_aborted(collective, &who));
    schedule_draw(&schedule, collective, random); /* as good as new */
    schedule.ops = schedule.ops > 6 ? 6 : schedule.ops;
    assert_int_equal(run_schedule(&schedule, false), schedule.ops);
  }
}

static void aborts_at_random_points(void **state) {
  (void)state;
  for_all(schedules_abort);
}

/* A thread that is no rank aborts at any moment: an operation still ends the same way for all. */
static void schedules_abort_outside(struct quire_collective *collective, uint64_t *random) {
  for (int n = 0; n < schedules_for(quire_collective_ranks(collective)); n++) {
    struct schedule schedule;
    schedule_draw(&schedule, collective, random);
    (void)run_schedule(&schedule, true);
    assert_true(quire_collective_aborted(collective, NULL));
    assert_int_equal(quire_collective_reset(collective), QUIRE_OK);
  }
}

static void aborts_from_outside(void **state) {
  (void)state;
  for_all(schedules_abort_outside);
}

/* -- the fence, plain memory and streams -------------------------------------------------------------------------- */

enum { FENCE_ROUNDS = 60 };

struct fence_run {
  struct quire_collective *collective;
  int32_t rank;
  int32_t faults;
  int64_t cell[2]; /* plain */
  int64_t staged;
  struct fence_run *all;
};

static void *fence_main(void *context) {
  struct fence_run *run = context;
  struct quire_stream *stream = NULL;
  if (run->rank % 3 != 0) { /* some ranks have work in flight on a stream of their own */
    enum quire_stream_mode mode = run->rank % 3 == 1 ? QUIRE_STREAM_THREAD : QUIRE_STREAM_DEFERRED;
    if (quire_stream_create(quire_env_default(), mode, NULL, (uint64_t)run->rank, &stream, NULL) != QUIRE_OK) {
      run->faults = 1000;
      quire_collective_abort(run->collective, run->rank);
      return NULL;
    }
    quire_collective_attach(run->collective, run->rank, stream);
  }
  int32_t ranks = quire_collective_ranks(run->collective);
  for (int64_t round = 0; round < FENCE_ROUNDS; round++) {
    int64_t *cell = &run->cell[round % 2];
    run->staged = round * 100 + run->rank;
    if (stream != NULL) {
      quire_stream_copy(stream, cell, &run->staged, sizeof *cell);
    } else {
      *cell = run->staged;
    }
    if (quire_collective_fence(run->collective, run->rank) != QUIRE_OK) {
      run->faults++;
      break;
    }
    if (stream != NULL && quire_collective_stream_ordered(run->collective)) {
      quire_event_sync(quire_stream_record(stream)); /* a host that looks at what streams wrote */
    }
    for (int32_t r = 0; r < ranks; r++) {
      run->faults += run->all[r].cell[round % 2] != round * 100 + r;
    }
  }
  quire_collective_attach(run->collective, run->rank, NULL);
  run->faults += quire_collective_fence(run->collective, run->rank) != QUIRE_OK; /* nobody waits for our stream now */
  quire_stream_destroy(stream);
  return NULL;
}

static void fences(struct quire_collective *collective, uint64_t *random) {
  (void)random;
  static struct fence_run runs[RANKS_MAX];
  pthread_t threads[RANKS_MAX];
  int32_t ranks = quire_collective_ranks(collective);
  for (int32_t r = 0; r < ranks; r++) {
    runs[r] = (struct fence_run){.collective = collective, .rank = r, .all = runs};
    assert_int_equal(pthread_create(&threads[r], NULL, fence_main, &runs[r]), 0);
  }
  for (int32_t r = 0; r < ranks; r++) {
    assert_int_equal(pthread_join(threads[r], NULL), 0);
  }
  for (int32_t r = 0; r < ranks; r++) {
    assert_int_equal(runs[r].faults, 0);
  }
}

static void fence_shows_memory_and_streams(void **state) {
  (void)state;
  for_all(fences);
}

/* -- calls that cannot be ----------------------------------------------------------------------------------------- */

static void refusals(void **state) {
  (void)state;
  struct quire_collective *collective = NULL;
  struct quire_error error = {0};
  int32_t bad[] = {-1, 0, RANKS_MAX + 1};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct quire_collective_config config = {.ranks = bad[i]};
    assert_int_equal(quire_collective_create(quire_env_default(), "local", &config, &collective, &error),
                     QUIRE_ERR_ARGUMENT);
    assert_int_equal(error.status, QUIRE_ERR_ARGUMENT);
  }
  struct quire_collective_config config = {.ranks = 2};
  assert_int_equal(quire_collective_create(quire_env_default(), "carrier pigeon", &config, &collective, &error),
                   QUIRE_ERR_UNSUPPORTED);
  assert_int_equal(quire_collective_create(quire_env_default(), "nccl", &config, &collective, &error),
                   QUIRE_ERR_UNSUPPORTED); /* of what is not a GPU */
  assert_null(collective);
  assert_null(quire_collective_ops_at(-1));
  quire_collective_destroy(NULL);
}

struct waiting {
  struct quire_collective *collective;
  enum quire_status status;
};

static void *wait_in_fence(void *context) {
  struct waiting *waiting = context;
  waiting->status = quire_collective_fence(waiting->collective, 1);
  return NULL;
}

static void reset_is_refused_while_a_rank_is_inside(void **state) {
  (void)state;
  struct waiting waiting = {.collective = collective_of("local", 2)};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wait_in_fence, &waiting), 0);
  do { /* long enough for the other to have gone to sleep inside */
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
  } while (quire_collective_reset(waiting.collective) == QUIRE_OK);
  assert_int_equal(quire_collective_reset(waiting.collective), QUIRE_ERR_STATE);
  quire_collective_abort(waiting.collective, 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(waiting.status, QUIRE_ERR_ABORTED);
  assert_int_equal(quire_collective_reset(waiting.collective), QUIRE_OK);
  quire_collective_destroy(waiting.collective);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  struct quire_collective *collective = NULL;
  struct quire_collective_config config = {.ranks = 4};
  struct quire_error error = {0};
  enum quire_status status = quire_collective_create(env, context, &config, &collective, &error);
  assert_int_equal(error.status, status);
  assert_true((collective == NULL) == (status != QUIRE_OK));
  quire_collective_destroy(collective);
  return status;
}

static void creation_survives_refused_memory(void **state) {
  (void)state;
  for (int i = 0; quire_collective_ops_at(i) != NULL; i++) {
    if (works_here(quire_collective_ops_at(i))) {
      assert_true(fail_env_sweep(life, (void *)(uintptr_t)quire_collective_ops_at(i)->name) > 0);
    }
  }
}

int main(void) {
  seed_of_run = test_seed("test_collective");
  test_limit(240);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refusals),
      cmocka_unit_test(creation_survives_refused_memory),
      cmocka_unit_test(reset_is_refused_while_a_rank_is_inside),
      cmocka_unit_test(fence_shows_memory_and_streams),
      cmocka_unit_test(random_schedules),
      cmocka_unit_test(aborts_at_random_points),
      cmocka_unit_test(aborts_from_outside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
