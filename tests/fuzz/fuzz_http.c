// fuzz: runs=300000
/* Heads and chunked bodies: any bytes, read at once, byte by byte and in pieces between, with the same outcome; and any
 * bytes as a body, cut into chunks, are that body again. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of its own, so that a sanitizer sees the first byte behind the head. */
static void check_head(const char *from, size_t count) {
  static struct quire_http_head head;
  const char *why = NULL;
  char *bytes = malloc(count);
  QUIRE_ASSERT(bytes);
  memcpy(bytes, from, count);
  int status = quire_http_head_parse(bytes, count, &head, &why);
  QUIRE_ASSERT(status == 0 || (status >= 400 && status <= 505 && why != NULL));
  if (status != 0) {
    free(bytes);
    return;
  }
  QUIRE_ASSERT(head.method.bytes > 0 && head.path.bytes > 0 && head.field_count <= QUIRE_HTTP_FIELDS_MAX);
  QUIRE_ASSERT(!(head.chunked && head.content_length >= 0));
  for (int i = 0; i < head.field_count; i++) {
    const struct quire_http_field *field = &head.field[i];
    QUIRE_ASSERT(field->name.data > bytes && field->value.data + field->value.bytes <= bytes + count);
    QUIRE_ASSERT(memchr(field->value.data, '\n', field->value.bytes) == NULL);
    QUIRE_ASSERT(field->name.bytes > 0 && field->name.data + field->name.bytes < field->value.data);
    QUIRE_ASSERT(memchr(field->name.data, ':', field->name.bytes) == NULL);
  }
  struct quire_http_slice value;
  QUIRE_ASSERT(quire_http_field(&head, "host", &value) || head.minor == 0);
  free(bytes);
}

static void check_chunks(const uint8_t *data, size_t size) {
  const size_t room = size * 20 + 16;
  char *text = malloc(room), *back = malloc(size + 1);
  size_t used = 0, bytes = 0, at = 0;
  QUIRE_ASSERT(text && back);
  while (at < size) {
    size_t chunk = 1 + data[at] % 48u;
    chunk = chunk < size - at ? chunk : size - at;
    used += (size_t)snprintf(text + used, room - used, data[at] & 64 ? "%zX\r\n" : "%03zx;a=b\r\n", chunk);
    memcpy(text + used, data + at, chunk);
    memcpy(text + used + chunk, "\r\n", 2);
    used += chunk + 2;
    at += chunk;
  }
  used += (size_t)snprintf(text + used, room - used, "0\r\nx: y\r\n\r\n");
  struct quire_http_chunked chunked = {0};
  enum quire_http_more more = QUIRE_HTTP_MORE;
  for (at = 0; more == QUIRE_HTTP_MORE;) {
    struct quire_http_piece piece;
    more = quire_http_chunked_feed(&chunked, text + at, used - at, &piece);
    QUIRE_ASSERT(more != QUIRE_HTTP_BAD && piece.used > 0 && bytes + piece.body.bytes <= size);
    if (piece.body.bytes > 0) {
      memcpy(back + bytes, piece.body.data, piece.body.bytes);
      bytes += piece.body.bytes;
    }
    at += piece.used;
  }
  QUIRE_ASSERT(at == used && bytes == size && (size == 0 || memcmp(back, data, size) == 0));
  free(back);
  free(text);
}

/* Body bytes of all pieces, mixed into one number. */
static enum quire_http_more feed(const char *bytes, size_t count, size_t step, uint64_t *sum_out, size_t *used_out) {
  struct quire_http_chunked chunked = {0};
  size_t used = 0, given = 0;
  *sum_out = 1;
  for (;;) {
    struct quire_http_piece piece;
    if (given < count && used == given) {
      given = given + step < count ? given + step : count;
    }
    enum quire_http_more more = quire_http_chunked_feed(&chunked, bytes + used, given - used, &piece);
    QUIRE_ASSERT(piece.used <= given - used && piece.body.bytes <= piece.used);
    QUIRE_ASSERT((more == QUIRE_HTTP_BAD) == (piece.why != NULL));
    for (size_t i = 0; i < piece.body.bytes; i++) {
      *sum_out = *sum_out * 31 + (uint8_t)piece.body.data[i];
    }
    used += piece.used;
    *used_out = used;
    if (more != QUIRE_HTTP_MORE || (used == count && piece.used == 0) || count == 0) {
      return more;
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *bytes = (const char *)data;
  struct quire_http_scan whole = {0}, single = {0};
  const char *why = NULL;
  enum quire_http_more a = quire_http_head_scan(&whole, bytes, size, &why), b = QUIRE_HTTP_MORE;
  for (size_t i = 0; i <= size && b == QUIRE_HTTP_MORE; i++) {
    b = quire_http_head_scan(&single, bytes, i, &why);
  }
  QUIRE_ASSERT(a == b && whole.seen == single.seen && whole.skipped == single.skipped);
  size_t body = 0;
  if (a == QUIRE_HTTP_DONE) {
    check_head(bytes + whole.skipped, whole.seen - whole.skipped);
    body = whole.seen;
  }
  uint64_t sums[3];
  size_t used[3];
  enum quire_http_more one = feed(bytes + body, size - body, size + 1, &sums[0], &used[0]);
  enum quire_http_more many = feed(bytes + body, size - body, 1, &sums[1], &used[1]);
  enum quire_http_more some = feed(bytes + body, size - body, 2 + size % 13, &sums[2], &used[2]);
  QUIRE_ASSERT(one == many && sums[0] == sums[1] && used[0] == used[1]);
  QUIRE_ASSERT(one == some && sums[0] == sums[2] && used[0] == used[2]);
  check_chunks(data, size);
  return 0;
}
