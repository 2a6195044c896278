// ctest: timeout=120
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/futex.h"
#include "base/rng.h"
#include "base/team.h"
#include "support/fail_env.h"
#include "support/seed.h"

struct work {
  int calls[QUIRE_TEAM_THREADS_MAX];
  int threads;
  uint64_t spin;
};

static void count_call(void *context, int member, int threads) {
  struct work *work = context;
  if (member == 0) {
    work->threads = threads;
  }
  work->calls[member]++; /* plain: one member, one cell; a lost join shows here and under a thread sanitizer */
  for (volatile uint64_t i = 0; i < work->spin * (uint64_t)(member + 1); i++) {
  }
}

static void every_member_once(void **state) {
  (void)state;
  uint64_t rng = test_seed("every_member_once");
  static const int sizes[] = {1, 2, 3, 4, 8, 33, QUIRE_TEAM_THREADS_MAX};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct quire_team *team = NULL;
    assert_int_equal(quire_team_create(&fail.env, sizes[s], &team, NULL), QUIRE_OK);
    assert_int_equal(quire_team_threads(team), sizes[s]);
    struct work work = {0};
    int runs = sizes[s] <= 4 ? 2000 : 100;
    for (int run = 1; run <= runs; run++) {
      work.spin = quire_splitmix64_below(&rng, 50);
      quire_team_run(team, count_call, &work);
      assert_int_equal(work.threads, sizes[s]);
      for (int i = 0; i < sizes[s]; i++) {
        assert_int_equal(work.calls[i], run);
      }
    }
    quire_team_destroy(team);
    fail_env_fini(&fail);
  }
}

static void no_team_is_the_caller(void **state) {
  (void)state;
  struct work work = {0};
  quire_team_run(NULL, count_call, &work);
  assert_int_equal(work.calls[0], 1);
  assert_int_equal(work.threads, 1);
  assert_int_equal(quire_team_threads(NULL), 1);
  quire_team_destroy(NULL);
}

static void unused_team(void **state) {
  (void)state;
  for (int i = 0; i < 100; i++) {
    struct quire_team *team = NULL;
    assert_int_equal(quire_team_create(quire_env_default(), 4, &team, NULL), QUIRE_OK);
    quire_team_destroy(team);
  }
}

/* Members that have nothing to do fall asleep, a run finds them asleep and is whole all the same; where they may spin
 * they can be roused. */
static void sleepers_are_roused(void **state) {
  (void)state;
  const struct quire_env *env = quire_env_default();
  const uint64_t limit = env->now_ns(env->context) + 30000000000u;
  struct quire_team *team = NULL;
  struct work work = {0};
  assert_int_equal(quire_team_create(env, 2, &team, NULL), QUIRE_OK);
  for (int run = 1; run <= 20; run++) {
    while (quire_team_awake(team) && env->now_ns(env->context) < limit) {
      usleep(100);
    }
    assert_false(quire_team_awake(team));
    quire_team_run(team, count_call, &work);
    assert_int_equal(work.calls[0], run);
    assert_int_equal(work.calls[1], run);
  }
  while (quire_futex_may_spin(2) && !quire_team_awake(team) && env->now_ns(env->context) < limit) {
    quire_team_rouse(team);
  }
  assert_true(env->now_ns(env->context) < limit);
  assert_int_equal(work.calls[1], 20); /* rousing is no work */
  quire_team_destroy(team);
  assert_false(quire_team_awake(NULL));
  quire_team_rouse(NULL);
}

static void *wake_later(void *argument) {
  struct quire_futex *futex = argument;
  usleep(2000);
  __atomic_store_n(&futex->word, 1, __ATOMIC_RELEASE);
  quire_futex_wake_all(futex);
  return NULL;
}

static void futex_waits_and_gives_up(void **state) {
  (void)state;
  const struct quire_env *env = quire_env_default();
  struct quire_futex futex = {0};
  quire_futex_wait(&futex, 7, 2); /* differs already */
  quire_futex_wait_within(&futex, 7, 1000000000u);
  uint64_t begin = env->now_ns(env->context);
  quire_futex_wait_within(&futex, 0, 1000000u);
  assert_true(env->now_ns(env->context) - begin < 10000000000u);
  for (int parties = 2; parties <= 100000; parties += 99998) {
    pthread_t thread;
    futex.word = 0;
    assert_int_equal(pthread_create(&thread, NULL, wake_later, &futex), 0);
    quire_futex_wait(&futex, 0, parties);
    assert_int_equal(__atomic_load_n(&futex.word, __ATOMIC_ACQUIRE), 1);
    pthread_join(thread, NULL);
    assert_int_equal(futex.sleepers, 0);
  }
}

#define TURNS 20000

/* Two threads in turn, each waiting for the other's number: without spinning (parties of a crowd) most waits are caught
 * between the last look at the word and the sleep, or just before. A wake-up that is lost ends in the time limit. */
struct turns {
  struct quire_futex futex[2];
  int parties;
};

static void *answer(void *argument) {
  struct turns *turns = argument;
  for (uint32_t turn = 0; turn < TURNS; turn++) {
    quire_futex_wait(&turns->futex[0], turn, turns->parties);
    __atomic_store_n(&turns->futex[1].word, turn + 1, __ATOMIC_RELEASE);
    quire_futex_wake_all(&turns->futex[1]);
  }
  return NULL;
}

static void no_wake_up_is_lost(void **state) {
  (void)state;
  uint64_t rng = test_seed("no_wake_up_is_lost");
  for (int parties = 2; parties <= 100000; parties += 99998) {
    struct turns turns = {.parties = parties};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer, &turns), 0);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
      for (volatile uint64_t i = quire_splitmix64_below(&rng, 400); i > 0; i--) {
      }
      __atomic_store_n(&turns.futex[0].word, turn + 1, __ATOMIC_RELEASE);
      quire_futex_wake_all(&turns.futex[0]);
      quire_futex_wait(&turns.futex[1], turn, turns.parties);
    }
    pthread_join(thread, NULL);
    assert_int_equal(turns.futex[0].sleepers, 0);
    assert_int_equal(turns.futex[1].sleepers, 0);
  }
}

static void bounds(void **state) {
  (void)state;
  struct quire_error error;
  struct quire_team *team = (struct quire_team *)&error;
  assert_int_equal(quire_team_create(quire_env_default(), 0, &team, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_team_create(quire_env_default(), QUIRE_TEAM_THREADS_MAX + 1, &team, &error),
                   QUIRE_ERR_ARGUMENT);
  assert_string_equal(error.text, "threads must be 1 to 64, not 65");
  assert_ptr_equal(team, &error); /* untouched */
}

static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_team *team = NULL;
  enum quire_status status = quire_team_create(env, 3, &team, NULL);
  if (status == QUIRE_OK) {
    quire_team_destroy(team);
  }
  return status;
}

static void out_of_memory(void **state) {
  (void)state;
  assert_int_equal(fail_env_sweep(life, NULL), 1);
}

/* Shares are in order, contiguous, whole units of grain, cover everything once, and differ by at most one unit. */
static void check_shares(int64_t count, int64_t grain, int threads) {
  int64_t at = 0, least = INT64_MAX, most = 0;
  for (int member = 0; member < threads; member++) {
    int64_t begin, end;
    quire_team_share(count, grain, member, threads, &begin, &end);
    assert_int_equal(begin, at);
    assert_true(end >= begin && end <= count);
    assert_true(begin % grain == 0 || begin == count);
    int64_t units = (end - begin + grain - 1) / grain;
    least = units < least ? units : least;
    most = units > most ? units : most;
    at = end;
  }
  assert_int_equal(at, count);
  assert_true(most - least <= 1);
}

static void shares(void **state) {
  (void)state;
  uint64_t rng = test_seed("shares");
  for (int64_t count = 0; count < 40; count++) {
    for (int64_t grain = 1; grain < 10; grain++) {
      for (int threads = 1; threads < 9; threads++) {
        check_shares(count, grain, threads);
      }
    }
  }
  for (int i = 0; i < 1000; i++) {
    check_shares((int64_t)quire_splitmix64_below(&rng, 1ull << 40), 1 + (int64_t)quire_splitmix64_below(&rng, 1000),
                 1 + (int)quire_splitmix64_below(&rng, 64));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_member_once),
      cmocka_unit_test(no_team_is_the_caller),
      cmocka_unit_test(unused_team),
      cmocka_unit_test(sleepers_are_roused),
      cmocka_unit_test(futex_waits_and_gives_up),
      cmocka_unit_test(no_wake_up_is_lost),
      cmocka_unit_test(bounds),
      cmocka_unit_test(out_of_memory),
      cmocka_unit_test(shares),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
