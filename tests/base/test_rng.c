#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* The first numbers of seed 1234567, as other implementations print them. */
static void splitmix64_known_answers(void **state) {
  (void)state;
  static const uint64_t answers[] = {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                     4593380528125082431ull, 16408922859458223821ull};
  uint64_t rng = 1234567;
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
    assert_true(quire_splitmix64(&rng) == answers[i]);
  }
}

static void below_stays_below_and_reaches_all(void **state) {
  (void)state;
  uint64_t rng = 7;
  int seen[10] = {0};
  for (int i = 0; i < 10000; i++) {
    uint64_t value = quire_splitmix64_below(&rng, 10);
    assert_true(value < 10);
    seen[value]++;
  }
  for (int i = 0; i < 10; i++) {
    assert_in_range(seen[i], 800, 1200);
  }
  assert_int_equal(quire_splitmix64_below(&rng, 1), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(splitmix64_known_answers),
      cmocka_unit_test(below_stays_below_and_reaches_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
