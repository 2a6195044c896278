/* Lays several arrays into one block of memory. The same list of quire_carve calls runs twice: with base NULL it only
 * adds up what is needed, with base set it deals out the slices, so the two can not disagree.
 *
 *     struct quire_carve carve = {NULL, 0};      size_t bytes = (slices(&thing, &carve), carve.used);
 *     struct quire_carve carve = {block, 0};     slices(&thing, &carve);
 *
 * Slices start at multiples of 64. Pure. Threads: as any memory. */
#ifndef QUIRE_LAYOUT_CARVE_H
#define QUIRE_LAYOUT_CARVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_carve {
  uint8_t *base; /* aligned to 64, or NULL */
  size_t used;
};

/* count items of size bytes; NULL while base is NULL. */
static inline void *quire_carve(struct quire_carve *carve, int64_t count, size_t size) {
  QUIRE_ASSERT(count >= 0 && size > 0);
  size_t first = (carve->used + 63) & ~(size_t)63;
  carve->used = first + (size_t)count * size;
  return carve->base == NULL ? NULL : carve->base + first;
}

#ifdef __cplusplus
}
#endif
#endif
