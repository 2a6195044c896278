// fuzz: runs=3000
/* Two things in one target, told apart by the first byte.
 *
 *   '{'    a tokenizer.json, then optionally a NUL and a text for it, then optionally a NUL and a
 *          tokenizer_config.json. Whatever is accepted must encode any text, in both ways of merging, and give its
 *          bytes back.
 *   other  a text for the tokenizers of tests/text/data. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/utf8.h"
#include "support/known_tokenizer.h"
#include "text/tokenizer.h"

#define TEXT_MAX 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_utf8(const char *text, size_t bytes) {
  const uint8_t *at = (const uint8_t *)text, *end = at + bytes;
  for (size_t step; at < end; at += step) {
    step = quire_utf8_valid(at, end);
    QUIRE_ASSERT(step > 0);
  }
}

static void check_stream(const struct quire_tokenizer *tokenizer, const int32_t *tokens, size_t count, uint32_t flags,
                         const char *wanted, size_t wanted_bytes) {
  struct quire_text_stream stream = quire_text_stream_begin(flags);
  char *out = malloc(quire_tokenizer_push_bytes_max(tokenizer));
  size_t at = 0;
  QUIRE_ASSERT(out);
  for (size_t i = 0; i <= count; i++) {
    size_t bytes =
        i < count ? quire_text_stream_push(tokenizer, &stream, tokens[i], out) : quire_text_stream_end(&stream, out);
    QUIRE_ASSERT(at + bytes <= wanted_bytes && memcmp(wanted + at, out, bytes) == 0);
    at += bytes;
  }
  QUIRE_ASSERT(at == wanted_bytes);
  free(out);
}

/* QUIRE_ERR_REQUEST: a pattern gave up on the text, which those of models never do. */
static enum quire_status round_trip(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes,
                                    uint32_t flags) {
  static int32_t tokens[TEXT_MAX + 2 * QUIRE_TOKENIZER_ADDED_MAX];
  static char back[3 * TEXT_MAX];
  size_t count = SIZE_MAX, again = 0;
  struct quire_encode args = {text, bytes, flags, tokens, sizeof tokens / sizeof *tokens};
  struct quire_error error = {0};
  const enum quire_status status = quire_tokenizer_encode(tokenizer, args, &count, &error);
  if (status) {
    QUIRE_ASSERT(status == QUIRE_ERR_REQUEST && error.text[0] && count == SIZE_MAX);
    return status;
  }
  QUIRE_ASSERT(count <= bytes);
  args.capacity = 0; /* counted the same */
  QUIRE_ASSERT(quire_tokenizer_encode(tokenizer, args, &again, NULL) == QUIRE_OK && again == count);
  for (size_t i = 0; i < count; i++) {
    QUIRE_ASSERT(tokens[i] >= 0 && tokens[i] < quire_tokenizer_vocab(tokenizer));
  }
  size_t length = quire_tokenizer_decode(tokenizer, tokens, count, 0, back, sizeof back);
  QUIRE_ASSERT(length == bytes && memcmp(back, text, bytes) == 0);
  check_stream(tokenizer, tokens, count, 0, back, length);
  length = quire_tokenizer_decode(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, back, sizeof back);
  QUIRE_ASSERT(length <= sizeof back); /* a byte becomes three at most */
  check_utf8(back, length);
  check_stream(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, back, length);
  return QUIRE_OK;
}

struct piece {
  const char *data;
  size_t bytes;
};

/* Cuts off and returns the bytes before the next NUL; what is left stays in rest. */
static struct piece take(struct piece *rest) {
  const char *end = memchr(rest->data, '\0', rest->bytes);
  struct piece first = {rest->data, end ? (size_t)(end - rest->data) : rest->bytes};
  size_t cut = end ? first.bytes + 1 : first.bytes;
  *rest = (struct piece){rest->data + cut, rest->bytes - cut};
  return first;
}

static void fuzz_file(const char *data, size_t size) {
  struct piece rest = {data, size};
  struct piece json = take(&rest), text = take(&rest);
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_error error = {0};
  struct quire_tokenizer_files files = {json.data, json.bytes, rest.bytes > 0 ? rest.data : NULL, rest.bytes};
  if (quire_tokenizer_parse(quire_env_default(), files, &tokenizer, &error)) {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && !tokenizer);
    return;
  }
  text = text.bytes > 0 ? text : json;
  text.bytes = text.bytes < TEXT_MAX ? text.bytes : TEXT_MAX;
  (void)round_trip(tokenizer, text.data, text.bytes, 0);
  (void)round_trip(tokenizer, text.data, text.bytes, QUIRE_ENCODE_LITERAL);
  quire_tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 0 && data[0] == '{') {
    fuzz_file((const char *)data, size);
  } else if (size <= TEXT_MAX) {
    for (int i = 0; i < KNOWN_TOKENIZERS; i++) {
      QUIRE_ASSERT(round_trip(known_tokenizer(i), (const char *)data, size, 0) == QUIRE_OK);
      QUIRE_ASSERT(round_trip(known_tokenizer(i), (const char *)data, size, QUIRE_ENCODE_LITERAL) == QUIRE_OK);
    }
  }
  return 0;
}
