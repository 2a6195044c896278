// ctest: timeout=300 labels=sanitize
/* Law 6 once more, in a few cells on short prompts: what a run under sanitizers has time for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"

static const int32_t lengths[] = {1, 65, 129, 150};
#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define LONGEST 150

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  struct quire_tiny_options options = quire_tiny_defaults();
  options.layers = 2;
  options.heads = 2;
  options.dtype = QUIRE_TINY_FP8;
  struct exact_model model;
  exact_model_tiny(&model, &options);
  int32_t tokens[LONGEST];
  quire_tiny_tokens(3, LONGEST, tokens);
  struct exact_matrix matrix = {
      .name = "exact_few",
      .models = {&model},
      .model_count = 1,
      .lengths = lengths,
      .length_count = LENGTHS,
      .tokens = tokens,
      .cover_cells = 12,
      .random_cells = 2,
  };
  exact_matrix_run(&matrix);
  exact_model_close(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_equals_one_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
