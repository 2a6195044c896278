// ctest: timeout=600 labels=slow
/* Law 6 on tiny models: every cell of a pairwise cover, and random ones, equals one rank, one chunk, in every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  exact_matrix_tiny("exact_tiny", 80);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_equals_one_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
