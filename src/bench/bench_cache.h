/* A cache filled with random rows, for the kernels that read one: pages of one part, and its source.
 * Memory: the object's. Threads: one. */
#ifndef QUIRE_BENCH_BENCH_CACHE_H
#define QUIRE_BENCH_BENCH_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/kv_source.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bench_cache {
  struct quire_part part;
  struct quire_kv_source source;
  uint8_t *memory;
  size_t bytes;
  const uint8_t **pages;
  int32_t page_count;
};

/* tokens rows of one kind. False without memory. */
bool bench_cache_open(struct bench_cache *cache, enum quire_part_kind kind, enum quire_kv_format format,
                      int32_t tokens);
void bench_cache_close(struct bench_cache *cache);

/* Random rows into `rows` rows at `page`. */
void bench_cache_fill_page(const struct quire_part *part, enum quire_kv_format format, uint8_t *page, int32_t rows,
                           uint64_t seed);

/* count positions of [0, limit), ascending, one in each of count equal pieces. */
void bench_pick_positions(int32_t *out, int32_t count, int32_t limit, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
