/* Heads and chunked bodies: any bytes, read at once and byte by byte, with the same outcome. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_head(const char *bytes, size_t count) {
  static struct quire_http_head head;
  const char *why = NULL;
  int status = quire_http_head_parse(bytes, count, &head, &why);
  QUIRE_ASSERT(status == 0 || (status >= 400 && status <= 505 && why != NULL));
  if (status != 0) {
    return;
  }
  QUIRE_ASSERT(head.method.bytes > 0 && head.path.bytes > 0 && head.field_count <= QUIRE_HTTP_FIELDS_MAX);
  QUIRE_ASSERT(!(head.chunked && head.content_length >= 0));
  for (int i = 0; i < head.field_count; i++) {
    const struct quire_http_field *field = &head.field[i];
    QUIRE_ASSERT(field->name.data > bytes && field->value.data + field->value.bytes <= bytes + count);
    QUIRE_ASSERT(memchr(field->value.data, '\n', field->value.bytes) == NULL);
    QUIRE_ASSERT(memchr(field->name.data, ':', field->name.bytes) == NULL);
  }
  struct quire_http_slice value;
  quire_http_field(&head, "authorization", &value);
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
  uint64_t sums[2];
  size_t used[2];
  enum quire_http_more one = feed(bytes + body, size - body, size + 1, &sums[0], &used[0]);
  enum quire_http_more many = feed(bytes + body, size - body, 1, &sums[1], &used[1]);
  QUIRE_ASSERT(one == many && sums[0] == sums[1] && used[0] == used[1]);
  return 0;
}
