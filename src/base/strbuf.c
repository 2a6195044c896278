#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define STRBUF_FIRST_BYTES 256

void quire_strbuf_init(struct quire_strbuf *buffer, const struct quire_env *env) {
  *buffer = (struct quire_strbuf){.env = env};
}

void quire_strbuf_fini(struct quire_strbuf *buffer) {
  if (buffer->data) {
    quire_env_free(buffer->env, buffer->data, buffer->capacity, 1);
  }
  quire_strbuf_init(buffer, buffer->env);
}

/* Room for `more` bytes and the NUL. Doubling keeps the copies below twice the text. */
static bool reserve(struct quire_strbuf *buffer, size_t more) {
  size_t need;
  if (buffer->failed || __builtin_add_overflow(buffer->bytes, more, &need) || need >= SIZE_MAX / 4) {
    buffer->failed = true;
    return false;
  }
  need++;
  if (need <= buffer->capacity) {
    return true;
  }
  size_t capacity = buffer->capacity ? buffer->capacity : STRBUF_FIRST_BYTES;
  while (capacity < need) {
    capacity *= 2;
  }
  char *data = quire_env_zalloc(buffer->env, capacity, 1);
  if (!data) {
    buffer->failed = true;
    return false;
  }
  if (buffer->data) {
    memcpy(data, buffer->data, buffer->bytes);
    quire_env_free(buffer->env, buffer->data, buffer->capacity, 1);
  }
  buffer->data = data;
  buffer->capacity = capacity;
  return true;
}

void quire_strbuf_add(struct quire_strbuf *buffer, const void *bytes, size_t count) {
  if (count == 0 || !reserve(buffer, count)) {
    return;
  }
  memcpy(buffer->data + buffer->bytes, bytes, count);
  buffer->bytes += count;
  buffer->data[buffer->bytes] = 0;
}

void quire_strbuf_add_text(struct quire_strbuf *buffer, const char *text) {
  quire_strbuf_add(buffer, text, strlen(text));
}

void quire_strbuf_add_char(struct quire_strbuf *buffer, char c) { quire_strbuf_add(buffer, &c, 1); }

void quire_strbuf_addf(struct quire_strbuf *buffer, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int count = vsnprintf(NULL, 0, format, args);
  va_end(args);
  QUIRE_ASSERT(count >= 0);
  if (!reserve(buffer, (size_t)count)) {
    return;
  }
  va_start(args, format);
  vsnprintf(buffer->data + buffer->bytes, (size_t)count + 1, format, args);
  va_end(args);
  buffer->bytes += (size_t)count;
}

void quire_strbuf_clear(struct quire_strbuf *buffer) {
  buffer->bytes = 0;
  buffer->failed = false;
  if (buffer->data) {
    buffer->data[0] = 0;
  }
}

const char *quire_strbuf_text(const struct quire_strbuf *buffer) { return buffer->data ? buffer->data : ""; }

bool quire_strbuf_failed(const struct quire_strbuf *buffer) { return buffer->failed; }
