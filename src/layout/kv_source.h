/* How a kernel reads the rows of one part of one request: a prefix of pages, then fresh rows (design, section 5).
 *
 *   position   0 ........................ prefix_end ............... end
 *   lies in    pages[position / page_tokens]          fresh segment (ring of fresh_capacity rows)
 *
 * The prefix is what earlier steps wrote; its pages may lie in the rank's own memory (view local), in another
 * rank's (peer) or in scratch (gather): the kernel cannot tell. The fresh segment holds the rows of this step (after
 * the exchange) or, in decode, those not yet committed; there each piece is a ring of its own, position p being row
 * (fresh_first + p - prefix_end) mod fresh_capacity of it. A kernel never reads at or beyond `end`, nor beyond the
 * causal limit of its row.
 *
 * Plain data; compiles for host and device. */
#ifndef QUIRE_LAYOUT_KV_SOURCE_H
#define QUIRE_LAYOUT_KV_SOURCE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/geometry.h"
#include "layout/parts.h"

struct quire_kv_source {
  const uint8_t *const *pages; /* [ceil(prefix_end / page_tokens)] base of each page of the part, in request order */
  const uint8_t *fresh[QUIRE_PART_PIECES_MAX]; /* base of each piece's ring */
  int32_t page_tokens;
  int32_t prefix_end;
  int32_t fresh_first;    /* ring index of position prefix_end */
  int32_t fresh_capacity; /* rows of the ring, >= end - prefix_end; 0 when there are none */
  int32_t end;
};

static_assert(sizeof(struct quire_kv_source) == 48, "kv source of 48 bytes");
static_assert(offsetof(struct quire_kv_source, fresh) == 8, "fresh at 8");
static_assert(offsetof(struct quire_kv_source, page_tokens) == 24, "page tokens at 24");
static_assert(offsetof(struct quire_kv_source, prefix_end) == 28, "prefix end at 28");
static_assert(offsetof(struct quire_kv_source, fresh_first) == 32, "fresh first at 32");
static_assert(offsetof(struct quire_kv_source, fresh_capacity) == 36, "fresh capacity at 36");
static_assert(offsetof(struct quire_kv_source, end) == 40, "end at 40");

/* Where one piece of the row at position lies, in two parts: a base, which for a prefix row is read from the page
 * table, and the bytes behind it. position must lie in [0, end). */
static inline QUIRE_HOST_DEVICE const uint8_t *quire_kv_source_base(const struct quire_kv_source *source,
                                                                    const struct quire_part *part, int32_t piece,
                                                                    int32_t position, int64_t *behind_out) {
  const struct quire_piece *p = &part->piece[piece];
  if (position < source->prefix_end) {
    int32_t page = position / source->page_tokens;
    int32_t offset = position - page * source->page_tokens;
    *behind_out = p->offset + (int64_t)offset * p->row_bytes;
    return source->pages[page];
  }
  int32_t row = source->fresh_first + (position - source->prefix_end);
  if (row >= source->fresh_capacity) {
    row -= source->fresh_capacity;
  }
  *behind_out = (int64_t)row * p->row_bytes;
  return source->fresh[piece];
}

/* Its address. */
static inline QUIRE_HOST_DEVICE const uint8_t *quire_kv_source_row(const struct quire_kv_source *source,
                                                                   const struct quire_part *part, int32_t piece,
                                                                   int32_t position) {
  int64_t behind;
  const uint8_t *base = quire_kv_source_base(source, part, piece, position, &behind);
  return base + behind;
}

#endif
