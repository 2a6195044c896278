// ctest: timeout=180
/* Meetings of threads under random schedules, with aborts at random moments: nobody hangs, and all parties of one
 * meeting get one answer. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/barrier.h"
#include "base/rng.h"
#include "support/fail_env.h"
#include "support/seed.h"

#define PARTIES_MAX 8
#define MEETINGS_MAX 12

struct schedule {
  struct quire_barrier *barrier;
  int parties;
  int meetings;
  int aborter; /* the thread that aborts instead of arriving at meeting abort_at; -1: an outsider; -2: nobody */
  int abort_at;
  int board[PARTIES_MAX]; /* written before a meeting, read by all after it */
  enum quire_status answers[PARTIES_MAX][MEETINGS_MAX];
};

struct party {
  struct schedule *schedule;
  int index;
  uint64_t rng;
  pthread_t thread;
};

static void dawdle(uint64_t *rng) {
  switch (quire_splitmix64_below(rng, 6)) {
  case 0:
    sched_yield();
    break;
  case 1:
    usleep((useconds_t)quire_splitmix64_below(rng, 60));
    break;
  case 2:
    for (volatile uint64_t i = 0; i < quire_splitmix64_below(rng, 500); i++) {
    }
    break;
  default:
    break;
  }
}

static void *party_main(void *argument) {
  struct party *self = argument;
  struct schedule *schedule = self->schedule;
  for (int meeting = 0; meeting < schedule->meetings; meeting++) {
    dawdle(&self->rng);
    if (schedule->aborter == self->index && meeting == schedule->abort_at) {
      quire_barrier_abort(schedule->barrier);
    }
    schedule->board[self->index] = meeting;
    enum quire_status status = quire_barrier_wait(schedule->barrier);
    schedule->answers[self->index][meeting] = status;
    if (status != QUIRE_OK) {
      return NULL;
    }
    for (int i = 0; i < schedule->parties; i++) {
      if (schedule->board[i] != meeting) {
        abort(); /* someone's write was not seen */
      }
    }
    /* a second meeting before the board changes */
    if (quire_barrier_wait(schedule->barrier) != QUIRE_OK) {
      return NULL;
    }
  }
  return NULL;
}

static void *outsider_main(void *argument) {
  struct party *self = argument;
  dawdle(&self->rng);
  usleep((useconds_t)quire_splitmix64_below(&self->rng, 200));
  quire_barrier_abort(self->schedule->barrier);
  return NULL;
}

static void run_schedule(struct schedule *schedule, uint64_t *rng) {
  struct party parties[PARTIES_MAX + 1];
  int threads = schedule->parties + (schedule->aborter == -1);
  memset(schedule->answers, 0xFF, sizeof schedule->answers);
  for (int i = 0; i < threads; i++) {
    parties[i] = (struct party){.schedule = schedule, .index = i, .rng = quire_splitmix64(rng)};
    void *(*fn)(void *) = i < schedule->parties ? party_main : outsider_main;
    assert_int_equal(pthread_create(&parties[i].thread, NULL, fn, &parties[i]), 0);
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(parties[i].thread, NULL);
  }
}

static void check_agreement(const struct schedule *schedule) {
  for (int meeting = 0; meeting < schedule->meetings; meeting++) {
    for (int i = 1; i < schedule->parties; i++) {
      assert_int_equal(schedule->answers[i][meeting], schedule->answers[0][meeting]);
    }
  }
  int last = schedule->meetings - 1;
  if (schedule->aborter == -2) {
    assert_int_equal(schedule->answers[0][last], QUIRE_OK);
  } else if (schedule->aborter >= 0) {
    assert_int_equal(schedule->answers[0][schedule->abort_at], QUIRE_ERR_ABORTED);
  }
}

static void random_schedules(void **state) {
  (void)state;
  uint64_t rng = test_seed("random_schedules");
  struct quire_barrier *barriers[PARTIES_MAX + 1] = {0};
  for (int parties = 1; parties <= PARTIES_MAX; parties++) {
    assert_int_equal(quire_barrier_create(quire_env_default(), parties, &barriers[parties], NULL), QUIRE_OK);
  }
  for (int round = 0; round < 2000; round++) {
    struct schedule schedule = {.parties = 1 + (int)quire_splitmix64_below(&rng, PARTIES_MAX)};
    schedule.barrier = barriers[schedule.parties];
    schedule.meetings = 1 + (int)quire_splitmix64_below(&rng, MEETINGS_MAX);
    schedule.aborter = (int)quire_splitmix64_below(&rng, (uint64_t)schedule.parties + 2) - 2;
    schedule.abort_at = (int)quire_splitmix64_below(&rng, (uint64_t)schedule.meetings);
    run_schedule(&schedule, &rng);
    check_agreement(&schedule);
    assert_int_equal(quire_barrier_aborted(schedule.barrier), schedule.aborter != -2);
    if (schedule.aborter != -2) {
      assert_int_equal(quire_barrier_wait(schedule.barrier), QUIRE_ERR_ABORTED);
    }
    quire_barrier_reset(schedule.barrier);
    assert_false(quire_barrier_aborted(schedule.barrier));
  }
  for (int parties = 1; parties <= PARTIES_MAX; parties++) {
    quire_barrier_destroy(barriers[parties]);
  }
}

static void one_party_never_waits(void **state) {
  (void)state;
  struct quire_barrier *barrier = NULL;
  assert_int_equal(quire_barrier_create(quire_env_default(), 1, &barrier, NULL), QUIRE_OK);
  for (int i = 0; i < 1000; i++) {
    assert_int_equal(quire_barrier_wait(barrier), QUIRE_OK);
  }
  quire_barrier_abort(barrier);
  quire_barrier_abort(barrier);
  assert_int_equal(quire_barrier_wait(barrier), QUIRE_ERR_ABORTED);
  assert_int_equal(quire_barrier_wait(barrier), QUIRE_ERR_ABORTED);
  quire_barrier_reset(barrier);
  assert_int_equal(quire_barrier_wait(barrier), QUIRE_OK);
  quire_barrier_destroy(barrier);
  quire_barrier_destroy(NULL);
}

static void bounds(void **state) {
  (void)state;
  struct quire_error error;
  struct quire_barrier *barrier = NULL;
  assert_int_equal(quire_barrier_create(quire_env_default(), 0, &barrier, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_barrier_create(quire_env_default(), QUIRE_BARRIER_PARTIES_MAX + 1, &barrier, &error),
                   QUIRE_ERR_ARGUMENT);
  assert_string_equal(error.text, "parties must be 1 to 1024, not 1025");
  assert_null(barrier);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_barrier *barrier = NULL;
  enum quire_status status = quire_barrier_create(env, 2, &barrier, NULL);
  quire_barrier_destroy(barrier);
  return status;
}

static void out_of_memory(void **state) {
  (void)state;
  assert_int_equal(fail_env_sweep(life, NULL), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_schedules),
      cmocka_unit_test(one_party_never_waits),
      cmocka_unit_test(bounds),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
