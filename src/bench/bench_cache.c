#include "bench/bench_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench/bench_machine.h"

static void fill_scales(uint8_t *to, int32_t count) {
  float scale = 0.5f;
  for (int32_t i = 0; i < count; i++) {
    memcpy(to + (size_t)i * sizeof scale, &scale, sizeof scale);
  }
}

static void fill_row(const struct quire_part *part, enum quire_kv_format format, uint8_t *row, uint64_t seed) {
  int32_t values = part->kind == QUIRE_PART_LATENT ? QUIRE_KV_DIM : QUIRE_INDEX_DIM;
  if (format == QUIRE_KV_F32) {
    bench_fill_f32((float *)(void *)row, (size_t)values, seed);
  } else if (part->kind == QUIRE_PART_INDEX_KEY) {
    bench_fill_e4m3(row, QUIRE_INDEX_DIM, seed);
  } else if (format == QUIRE_KV_BF16) {
    bench_fill_bf16((uint16_t *)(void *)row, QUIRE_KV_DIM, seed);
  } else {
    bench_fill_e4m3(row, QUIRE_LATENT_DIM, seed);
    fill_scales(row + QUIRE_LATENT_DIM, QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK);
    bench_fill_bf16((uint16_t *)(void *)(row + QUIRE_LATENT_DIM + QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK * 4),
                    QUIRE_ROPE_DIM, seed + 1);
  }
}

void bench_cache_fill_page(const struct quire_part *part, enum quire_kv_format format, uint8_t *page, int32_t rows,
                           uint64_t seed) {
  for (int32_t i = 0; i < rows; i++) {
    fill_row(part, format, page + part->piece[0].offset + (int64_t)i * part->piece[0].row_bytes,
             quire_mix64(seed + (uint64_t)i));
  }
  if (part->pieces > 1) {
    fill_scales(page + part->piece[1].offset, rows);
  }
}

bool bench_cache_open(struct bench_cache *cache, enum quire_part_kind kind, enum quire_kv_format format,
                      int32_t tokens) {
  struct quire_parts parts;
  if (!quire_parts_build(&parts, format, QUIRE_PAGE_TOKENS, 1, NULL, 0)) {
    return false;
  }
  *cache = (struct bench_cache){.part = parts.part[quire_parts_find(&parts, QUIRE_PART_TARGET, kind, 0)]};
  cache->page_count = (tokens + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
  cache->bytes = (size_t)cache->page_count * (size_t)cache->part.page_bytes;
  cache->memory = bench_alloc(cache->bytes);
  cache->pages = calloc((size_t)cache->page_count, sizeof *cache->pages);
  if (cache->memory == NULL || cache->pages == NULL) {
    bench_cache_close(cache);
    return false;
  }
  for (int32_t p = 0; p < cache->page_count; p++) {
    uint8_t *page = cache->memory + (size_t)p * (size_t)cache->part.page_bytes;
    bench_cache_fill_page(&cache->part, format, page, QUIRE_PAGE_TOKENS, (uint64_t)p << 20);
    cache->pages[p] = page;
  }
  cache->source = (struct quire_kv_source){
      .pages = cache->pages,
      .page_tokens = QUIRE_PAGE_TOKENS,
      .prefix_end = tokens,
      .end = tokens,
  };
  return true;
}

void bench_cache_close(struct bench_cache *cache) {
  bench_free(cache->memory, cache->bytes);
  free((void *)cache->pages);
  cache->memory = NULL;
  cache->pages = NULL;
}

void bench_pick_positions(int32_t *out, int32_t count, int32_t limit, uint64_t seed) {
  for (int32_t i = 0; i < count; i++) {
    int64_t begin = (int64_t)limit * i / count, end = (int64_t)limit * (i + 1) / count;
    out[i] = (int32_t)(begin + (int64_t)quire_splitmix64_below(&seed, (uint64_t)(end - begin)));
  }
}
