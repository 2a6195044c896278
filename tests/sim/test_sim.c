// ctest: timeout=120
/* The engine over the simulator, from fixed seeds: every law at every tick, every token (support/sim_life.h). The table
 * of states is walked: every way it has is taken, and none other. QUIRE_TEST_SEED begins elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/seed.h"
#include "support/sim_life.h"

#define LIVES 40
#define TICKS 6000

static uint32_t ways[QUIRE_SCHED_STATES];

static void add(struct sim_life_result *sum, const struct sim_life_result *one) {
  sum->requests += one->requests;
  sum->tokens += one->tokens;
  sum->preempted += one->preempted;
  sum->cancelled += one->cancelled;
  sum->failed += one->failed;
  sum->cached += one->cached;
  for (int i = 0; i < QUIRE_SCHED_STATES; i++) {
    ways[i] |= one->ways[i];
  }
}

static void lives(const char *name, bool faults, bool tight) {
  uint64_t seed = test_seed(name);
  struct sim_life_result sum = {0}, one;
  for (int i = 0; i < LIVES; i++) {
    struct sim_life_options options = {quire_splitmix64(&seed), TICKS, faults, tight};
    sim_life_run(&options, &one);
    add(&sum, &one);
  }
  printf("%s: %lld requests, %lld tokens drawn, %lld cached, %lld preempted, %lld cancelled, %lld failed\n", name,
         (long long)sum.requests, (long long)sum.tokens, (long long)sum.cached, (long long)sum.preempted,
         (long long)sum.cancelled, (long long)sum.failed);
  assert_true(sum.requests > LIVES && sum.tokens > 0 && sum.cached > 0 && sum.preempted > 0 && sum.cancelled > 0);
}

static void without_faults(void **unused) {
  (void)unused;
  lives("without_faults", false, false);
}

static void with_faults(void **unused) {
  (void)unused;
  lives("with_faults", true, false);
}

/* A pool of 1.1 times the largest request: somebody draws in every window of 1,000 ticks. */
static void in_a_tight_pool(void **unused) {
  (void)unused;
  lives("in_a_tight_pool", false, true);
}

static void a_seed_is_a_life(void **unused) {
  (void)unused;
  for (uint64_t seed = 1; seed <= 3; seed++) {
    struct sim_life_options options = {seed, 800, true, false};
    struct sim_life_result first, second;
    sim_life_run(&options, &first);
    sim_life_run(&options, &second);
    assert_true(quire_hash128_equal(first.digest, second.digest));
    options.seed += 100;
    sim_life_run(&options, &second);
    assert_false(quire_hash128_equal(first.digest, second.digest));
  }
}

static void every_way_is_taken(void **unused) {
  (void)unused;
  for (int from = 0; from < QUIRE_SCHED_STATES; from++) {
    for (int to = 0; to < QUIRE_SCHED_STATES; to++) {
      bool can = quire_sched_can((enum quire_sched_state)from, (enum quire_sched_state)to);
      if (can != ((ways[from] >> to & 1) != 0)) {
        fail_msg("%s to %s", quire_sched_state_name((enum quire_sched_state)from),
                 quire_sched_state_name((enum quire_sched_state)to));
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_faults),   cmocka_unit_test(with_faults),        cmocka_unit_test(in_a_tight_pool),
      cmocka_unit_test(a_seed_is_a_life), cmocka_unit_test(every_way_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
