// fuzz: runs=200000
/* What is written for others to read, of any text: JSON, lines of the log as JSON, roff. Read again it is the text. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/option.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "server/json_write.h"
#include "server/log_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *parse(const struct quire_strbuf *text) {
  QUIRE_ASSERT(!quire_strbuf_failed(text));
  json_t *value = json_loadb(text->data, text->bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  QUIRE_ASSERT(value);
  return value;
}

/* The text itself, but for bytes that are no UTF-8. */
static void check_string(const uint8_t *data, size_t size) {
  struct quire_strbuf text, wanted;
  quire_strbuf_init(&text, quire_env_default());
  quire_strbuf_init(&wanted, quire_env_default());
  quire_json_write_bytes(&text, (const char *)data, size);
  for (size_t at = 0, step; at<size; at += step> 0 ? step : 1) {
    step = quire_utf8_valid(data + at, data + size);
    quire_strbuf_add(&wanted, step > 0 ? (const char *)data + at : "\xEF\xBF\xBD", step > 0 ? step : 3);
  }
  for (size_t i = 0; i < text.bytes; i++) {
    QUIRE_ASSERT((uint8_t)text.data[i] >= ' ' && text.data[i] != 127); /* one line, nothing that a terminal obeys */
  }
  json_t *value = parse(&text);
  QUIRE_ASSERT(json_is_string(value) && json_string_length(value) == wanted.bytes);
  QUIRE_ASSERT(memcmp(json_string_value(value), quire_strbuf_text(&wanted), wanted.bytes) == 0);
  json_decref(value);
  quire_strbuf_fini(&wanted);
  quire_strbuf_fini(&text);
}

static void check_numbers(const uint8_t *data, size_t size) {
  double number = 0, back;
  long long whole = 0;
  struct quire_strbuf text;
  memcpy(&number, data, size < sizeof number ? size : sizeof number);
  memcpy(&whole, data, size < sizeof whole ? size : sizeof whole);
  quire_strbuf_init(&text, quire_env_default());
  quire_json_write_number(&text, number);
  json_t *value = parse(&text);
  back = json_number_value(value);
  if (isnan(number) || isinf(number)) {
    QUIRE_ASSERT(back == (number > 0 ? 9999 : -9999));
  } else {
    QUIRE_ASSERT(json_is_number(value) && fabs(back - number) <= 1e-8 * fabs(number) + 1e-320);
  }
  json_decref(value);
  quire_strbuf_clear(&text);
  quire_json_write_int(&text, whole);
  value = parse(&text);
  QUIRE_ASSERT(json_is_integer(value) && json_integer_value(value) == whole);
  json_decref(value);
  quire_strbuf_fini(&text);
}

/* A line of the log is one object on one line, of strings and numbers. */
static void check_log(const char *line) {
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_log_write_json(&text, "time", "info", line);
  json_t *root = parse(&text);
  QUIRE_ASSERT(json_is_object(root) && json_object_size(root) >= 3);
  QUIRE_ASSERT(memchr(text.data, '\n', text.bytes) == text.data + text.bytes - 1);
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) { QUIRE_ASSERT(json_is_string(value) || json_is_number(value)); }
  json_decref(root);
  quire_strbuf_fini(&text);
}

static void check_roff(const char *text) {
  struct quire_strbuf roff, back;
  bool begins = true;
  quire_strbuf_init(&roff, quire_env_default());
  quire_strbuf_init(&back, quire_env_default());
  quire_option_add_roff(&roff, text);
  for (const char *at = quire_strbuf_text(&roff); *at; at++) {
    QUIRE_ASSERT(!begins || (*at != '.' && *at != '\''));
    begins = *at == '\n';
    const bool escaped = *at == '\\';
    at += escaped;
    QUIRE_ASSERT(!escaped || *at == 'e' || *at == '-' || *at == '&');
    if (!escaped || *at != '&') {
      quire_strbuf_add_char(&back, escaped && *at == 'e' ? '\\' : *at);
    }
  }
  QUIRE_ASSERT(strcmp(quire_strbuf_text(&back), text) == 0);
  quire_strbuf_fini(&back);
  quire_strbuf_fini(&roff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  QUIRE_ASSERT(text);
  if (size > 0) {
    memcpy(text, data, size);
  }
  check_string(data, size);
  check_numbers(data, size);
  check_log(text);
  check_roff(text);
  free(text);
  return 0;
}
