// ctest: timeout=600 labels=slow
/* Law 6 on the model of the tree, with text a reader would write: eight layers, trained weights, fp8 checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/exact_matrix.h"
#include "text/tokenizer.h"

static const int32_t lengths[] = {1, 65, 127, 129, 256, 513, 700};
#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define LONGEST 700
#define TEXT_BYTES 20000

static void read_prompt(const char *dir, int32_t tokens[LONGEST]) {
  struct quire_error error = {0};
  struct quire_tokenizer *tokenizer = NULL;
  assert_int_equal(quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error), QUIRE_OK);
  struct quire_file_text text;
  assert_int_equal(quire_file_read(quire_env_default(), QUIRE_SOURCE_DIR "/models/quire-mini/eval/heldout.txt",
                                   (size_t)1 << 24, &text, &error),
                   QUIRE_OK);
  assert_true(text.bytes > TEXT_BYTES);
  int32_t *ids = malloc(TEXT_BYTES * sizeof *ids);
  assert_non_null(ids);
  struct quire_encode encode = {text.data, TEXT_BYTES, QUIRE_ENCODE_LITERAL, ids, TEXT_BYTES};
  size_t count = 0;
  assert_int_equal(quire_tokenizer_encode(tokenizer, encode, &count, &error), QUIRE_OK);
  assert_true(count >= LONGEST);
  for (int i = 0; i < LONGEST; i++) {
    tokens[i] = ids[i];
  }
  free(ids);
  quire_file_text_free(quire_env_default(), &text);
  quire_tokenizer_close(tokenizer);
}

static void every_cell_equals_one_rank(void **unused) {
  (void)unused;
  const char *dir = QUIRE_SOURCE_DIR "/models/quire-mini";
  struct exact_model mini;
  exact_model_open(&mini, dir);
  int32_t tokens[LONGEST];
  read_prompt(dir, tokens);
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
