// ctest: timeout=14400 labels=soak
/* Law 6 again, with thousands of random cells; give QUIRE_TEST_SEED=random for others than the last time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  exact_matrix_tiny("exact_soak", 1800);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_equals_one_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
