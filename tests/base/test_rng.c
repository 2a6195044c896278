#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* The vectors published with the generator (key words, counter words, answer), philox4x32-10. */
static void philox_known_answers(void **state) {
  (void)state;
  static const struct {
    uint64_t key, low, high;
    uint32_t answer[4];
  } rows[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822ull,
       0x85a308d3243f6a88ull,
       0x0370734413198a2eull,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct quire_philox block = quire_philox4x32(rows[i].key, rows[i].low, rows[i].high);
    assert_memory_equal(block.v, rows[i].answer, sizeof rows[i].answer);
  }
}

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

static void open_interval(void **state) {
  (void)state;
  assert_true(quire_rng_open01(0) > 0.0f);
  assert_true(quire_rng_open01(0) == 0x1p-24f);
  assert_true(quire_rng_open01(~0u) < 1.0f);
  assert_true(quire_rng_open01(~0u) == 1.0f - 0x1p-24f);
  assert_true(quire_rng_open01(0x80000000u) == 0.5f + 0x1p-24f);
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
      cmocka_unit_test(philox_known_answers),
      cmocka_unit_test(splitmix64_known_answers),
      cmocka_unit_test(open_interval),
      cmocka_unit_test(below_stays_below_and_reaches_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
