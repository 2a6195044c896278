#include "layout/fingerprint.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests at rest are written as they lie in memory");

static void add_number(struct quire_hash128_stream *stream, int64_t number) {
  quire_hash128_add(stream, &number, sizeof number);
}

/* With its length, so that two texts side by side can not be cut elsewhere. */
static void add_text(struct quire_hash128_stream *stream, const char *text) {
  QUIRE_ASSERT(text != NULL);
  add_number(stream, (int64_t)strlen(text));
  quire_hash128_add(stream, text, strlen(text));
}

struct quire_hash128 quire_fingerprint(const struct quire_parts *parts, const char *numerics_id,
                                       struct quire_hash128 model) {
  QUIRE_ASSERT(parts->count >= 1 && parts->count <= QUIRE_PARTS_MAX && numerics_id != NULL);
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  add_text(&stream, "quire fingerprint 1");
  add_text(&stream, numerics_id);
  quire_hash128_add(&stream, &model, sizeof model);
  add_text(&stream, quire_kv_format_name(parts->format));
  add_number(&stream, parts->page_tokens);
  add_number(&stream, parts->target_layers);
  add_number(&stream, parts->draft_layers);
  add_number(&stream, parts->count);
  for (int32_t i = 0; i < parts->count; i++) {
    const struct quire_part *part = &parts->part[i];
    add_number(&stream, part->model);
    add_number(&stream, part->kind);
    add_number(&stream, part->layer);
    add_number(&stream, part->row_bytes);
    add_number(&stream, part->page_bytes);
    add_number(&stream, part->pieces);
    for (int32_t piece = 0; piece < part->pieces; piece++) {
      add_number(&stream, part->piece[piece].offset);
      add_number(&stream, part->piece[piece].row_bytes);
    }
  }
  return quire_hash128_end(&stream);
}

void quire_fingerprint_text(struct quire_hash128 digest, char text_out[QUIRE_FINGERPRINT_TEXT_BYTES]) {
  QUIRE_ASSERT(text_out != NULL);
  uint8_t bytes[16];
  memcpy(bytes, &digest, sizeof bytes);
  for (int i = 0; i < 16; i++) {
    text_out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
    text_out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
  }
  text_out[32] = 0;
}
