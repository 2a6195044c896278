#include "support/exact_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/env.h"
#include "base/file.h"
#include "text/tokenizer.h"

#define MODEL QUIRE_SOURCE_DIR "/models/quire-mini"
#define TEXT_BYTES 20000

void exact_text_tokens(int32_t count, int32_t *tokens_out) {
  struct quire_error error = {0};
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_file_text text;
  assert_int_equal(quire_tokenizer_open(quire_env_default(), MODEL, &tokenizer, &error), QUIRE_OK);
  assert_int_equal(quire_file_read(quire_env_default(), MODEL "/eval/heldout.txt", (size_t)1 << 24, &text, &error),
                   QUIRE_OK);
  assert_true(text.bytes > TEXT_BYTES);
  int32_t *ids = malloc(TEXT_BYTES * sizeof *ids);
  assert_non_null(ids);
  struct quire_encode encode = {text.data, TEXT_BYTES, QUIRE_ENCODE_LITERAL, ids, TEXT_BYTES};
  size_t got = 0;
  assert_int_equal(quire_tokenizer_encode(tokenizer, encode, &got, &error), QUIRE_OK);
  assert_true(got >= (size_t)count);
  memcpy(tokens_out, ids, (size_t)count * sizeof *ids);
  free(ids);
  quire_file_text_free(quire_env_default(), &text);
  quire_tokenizer_close(tokenizer);
}
