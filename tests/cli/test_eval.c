// ctest: timeout=600 labels=slow
/* The model of the tree through the program a user has: a few cases of each distance, both controls, and the first
 * windows of the held-out text, which are a little harder than the whole (the bounds allow for it). test_eval_soak
 * measures all of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/eval_program.h"

static void a_few_cases(void **unused) {
  (void)unused;
  static const struct eval_bounds bounds = {
      .arguments = "--ranks 2 --cases 2 --windows 4",
      .kv = "bf16",
      .loss = 0.1,
      .draft_agreement = 0.03,
      .groups = 4,
  };
  eval_program_check(&bounds);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_few_cases)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
