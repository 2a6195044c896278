// ctest: timeout=14400 labels=soak
/* Lives of the engine over the simulator (support/sim_life.h) for a third of QUIRE_TEST_SOAK_SECONDS (3600), each
 * longer than those of test_sim. QUIRE_TEST_SEED=random begins elsewhere than the last time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/exact_matrix.h"
#include "support/seed.h"
#include "support/sim_life.h"

static void lives(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("sim_soak");
  struct sim_life_result one;
  int64_t requests = 0, tokens = 0, preempted = 0, count = 0;
  time_t end = time(NULL) + (time_t)(exact_soak_seconds() / 3);
  while (time(NULL) < end) {
    uint64_t kind = quire_splitmix64(&seed) % 3;
    struct sim_life_options options = {quire_splitmix64(&seed), 40000, kind == 1, kind == 2};
    sim_life_run(&options, &one);
    requests += one.requests;
    tokens += one.tokens;
    preempted += one.preempted;
    count++;
  }
  printf("%lld lives, %lld requests, %lld tokens drawn, %lld preempted\n", (long long)count, (long long)requests,
         (long long)tokens, (long long)preempted);
  assert_true(count > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lives)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
