// ctest: timeout=28800 labels=soak
/* Everything that `quire eval` measures, as the model card has it: 320 cases, 200 of them with both controls, and the
 * whole held-out text; then with latents in fp8. A soak shorter than its hour (QUIRE_TEST_SOAK_SECONDS) takes a share
 * of the cases and windows, and wider bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/eval_program.h"
#include "support/exact_matrix.h"

#define CASES 200
#define WINDOWS 34

static void check(const char *kv) {
  char arguments[128];
  double share = exact_soak_seconds() / 3600.0;
  struct eval_bounds bounds = {.arguments = arguments, .kv = kv, .loss = 0.005, .draft_agreement = 0.005, .groups = 4};
  if (share < 1.0) {
    bounds.loss = 0.1;
    bounds.draft_agreement = 0.03;
  }
  int cases = share < 1.0 ? 2 + (int)(share * CASES) : 0, windows = share < 1.0 ? 4 + (int)(share * WINDOWS) : 0;
  snprintf(arguments, sizeof arguments, "--ranks 2 --kv-format %s --cases %d --windows %d", kv, cases, windows);
  eval_program_check(&bounds);
}

static void latents_in_bf16(void **unused) {
  (void)unused;
  check("bf16");
}

static void latents_in_fp8(void **unused) {
  (void)unused;
  check("fp8");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(latents_in_bf16), cmocka_unit_test(latents_in_fp8)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
