// ctest: timeout=14400 labels=soak
/* Law 6 again, over the full cross of what a worker can be (support/exact_matrix.h): tiny models for two thirds of
 * QUIRE_TEST_SOAK_SECONDS (3600), the model of the tree for the rest. The cross is larger than an hour: give
 * QUIRE_TEST_SEED=random to begin elsewhere than the last time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/exact_matrix.h"
#include "support/exact_text.h"

static const int32_t lengths[] = {1,   2,   63,  64,  65,  100, 127, 128, 129, 191,  192,
                                  193, 255, 256, 257, 400, 511, 512, 513, 700, 1000, 1100};
#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define LONGEST 1100

static void tiny_models(void **unused) {
  (void)unused;
  exact_matrix_tiny_soak("exact_soak_tiny", exact_soak_seconds() * 2 / 3);
}

static void model_of_the_tree(void **unused) {
  (void)unused;
  struct exact_model mini;
  exact_model_open(&mini, QUIRE_SOURCE_DIR "/models/quire-mini");
  int32_t tokens[LONGEST];
  exact_text_tokens(LONGEST, tokens);
  struct exact_matrix matrix = {
      .name = "exact_soak_mini",
      .models = {&mini},
      .model_count = 1,
      .lengths = lengths,
      .length_count = LENGTHS,
      .tokens = tokens,
  };
  exact_matrix_soak(&matrix, exact_soak_seconds() / 3);
  exact_model_close(&mini);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_models), cmocka_unit_test(model_of_the_tree)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
