// ctest: timeout=600 labels=slow
/* Law 6 on the model of the tree, with text a reader would write: eight layers, trained weights, fp8 checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"
#include "support/exact_text.h"

static const int32_t lengths[] = {1, 65, 127, 129, 256, 513, 700};
#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define LONGEST 700

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  const char *dir = QUIRE_SOURCE_DIR "/models/quire-mini";
  struct exact_model mini;
  exact_model_open(&mini, dir);
  int32_t tokens[LONGEST];
  exact_text_tokens(LONGEST, tokens);
  struct exact_matrix matrix = {
      .name = "exact_mini",
      .models = {&mini},
      .model_count = 1,
      .lengths = lengths,
      .length_count = LENGTHS,
      .tokens = tokens,
      .random_cells = 8,
  };
  exact_matrix_run(&matrix);
  exact_model_close(&mini);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell_equals_one_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
