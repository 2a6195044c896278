// ctest: timeout=300 labels=slow
/* Law 6 on tiny GLMs: layers that share a list, and so have no index keys to exchange, gather or store; and one in
 * which every layer has its own. Fewer lengths than the tiny model's matrix, which has the other lengths and a GLM,
 * too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"

static const int32_t lengths[] = {1, 63, 64, 65, 127, 129, 193, 257, 513};
#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define LONGEST 513

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  struct quire_tiny_options options = quire_tiny_glm();
  options.heads = 2;
  options.dtype = QUIRE_TINY_BF16;
  struct exact_model shared, full;
  exact_model_tiny(&shared, &options);
  options.layers = 2;
  options.indexers = NULL;
  options.dtype = QUIRE_TINY_FP8;
  exact_model_tiny(&full, &options);
  int32_t tokens[LONGEST];
  quire_tiny_tokens(23, LONGEST, tokens);
  struct exact_matrix matrix = {
      .name = "exact_glm",
      .models = {&shared, &full},
      .model_count = 2,
      .lengths = lengths,
      .length_count = LENGTHS,
      .tokens = tokens,
      .random_cells = 10,
  };
  exact_matrix_run(&matrix);
  exact_model_close(&shared);
  exact_model_close(&full);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_equals_one_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
