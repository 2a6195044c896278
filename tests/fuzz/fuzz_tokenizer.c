/* Two things in one target, told apart by the first byte.
 *
 *   '{'    a tokenizer.json, then optionally a NUL and a text for it, then optionally a NUL and a
 *          tokenizer_config.json. Whatever is accepted must encode any text, in both ways of merging, and give its
 *          bytes back.
 *   other  a text for the tokenizers of tests/text/data. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "text/tokenizer.h"

#define TEXT_MAX 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

static void round_trip(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags) {
  static int32_t tokens[TEXT_MAX + 2 * QUIRE_TOKENIZER_ADDED_MAX];
  static char back[3 * TEXT_MAX];
  size_t count = 0;
  struct quire_encode args = {text, bytes, flags, tokens, sizeof tokens / sizeof *tokens};
  if (quire_tokenizer_encode(tokenizer, args, &count, NULL)) {
    return;
  }
  QUIRE_ASSERT(count <= bytes);
  for (size_t i = 0; i < count; i++) {
    QUIRE_ASSERT(tokens[i] >= 0 && tokens[i] < quire_tokenizer_vocab(tokenizer));
  }
  size_t length = quire_tokenizer_decode(tokenizer, tokens, count, 0, back, sizeof back);
  QUIRE_ASSERT(length == bytes && memcmp(back, text, bytes) == 0);
  check_stream(tokenizer, tokens, count, 0, back, length);
  length = quire_tokenizer_decode(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, back, sizeof back);
  if (length <= sizeof back) {
    check_stream(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, back, length);
  }
}

static struct quire_tokenizer *known(int index) {
  static struct quire_tokenizer *tokenizers[3];
  static const char *const names[] = {"deepseek", "glm", "plain"};
  static char text[1 << 16];
  if (!tokenizers[index]) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/text/data/%s.tokenizer.json", QUIRE_SOURCE_DIR, names[index]);
    FILE *file = fopen(path, "rb");
    QUIRE_ASSERT(file);
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    struct quire_tokenizer_files files = {text, bytes, NULL, 0};
    QUIRE_ASSERT(quire_tokenizer_parse(quire_env_default(), files, &tokenizers[index], NULL) == QUIRE_OK);
  }
  return tokenizers[index];
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
  round_trip(tokenizer, text.data, text.bytes, 0);
  round_trip(tokenizer, text.data, text.bytes, QUIRE_ENCODE_LITERAL);
  quire_tokenizer_close(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 0 && data[0] == '{') {
    fuzz_file((const char *)data, size);
  } else if (size <= TEXT_MAX) {
    for (int i = 0; i < 3; i++) {
      round_trip(known(i), (const char *)data, size, 0);
      round_trip(known(i), (const char *)data, size, QUIRE_ENCODE_LITERAL);
    }
  }
  return 0;
}
