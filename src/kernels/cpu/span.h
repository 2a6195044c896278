/* Runs of rows that lie one behind another in a source (layout/kv_source.h): within a page, or within the ring.
 * Internal to the cpu kernels. Pure. */
#ifndef QUIRE_KERNELS_CPU_SPAN_H
#define QUIRE_KERNELS_CPU_SPAN_H

#include <stddef.h>

#include "base/assert.h"
#include "layout/kv_source.h"

struct quire_span {
  const uint8_t *piece[QUIRE_PART_PIECES_MAX]; /* of the first row */
  int32_t rows;                                /* at least 1 */
};

/* The run that starts at `position`, of at most `rows_max` rows. Nothing outside [position, position + rows_max) is
 * looked at. */
static inline struct quire_span quire_span_at(const struct quire_kv_source *source, const struct quire_part *part,
                                              int32_t position, int32_t rows_max) {
  QUIRE_DEBUG(position >= 0 && position < source->end && rows_max > 0);
  struct quire_span span;
  int32_t left;
  if (position < source->prefix_end) {
    int32_t in_page = source->page_tokens - position % source->page_tokens;
    int32_t in_prefix = source->prefix_end - position;
    left = in_page < in_prefix ? in_page : in_prefix;
  } else {
    int32_t row = source->fresh_first + (position - source->prefix_end);
    left = row >= source->fresh_capacity ? 2 * source->fresh_capacity - row : source->fresh_capacity - row;
  }
  for (int32_t i = 0; i < QUIRE_PART_PIECES_MAX; i++) {
    span.piece[i] = i < part->pieces ? quire_kv_source_row(source, part, i, position) : NULL;
  }
  span.rows = left < rows_max ? left : rows_max;
  return span;
}

#endif
