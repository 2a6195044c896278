/* AVX-512 of scaled panels: 2 lanes x 2 rows x 32 columns are 8 accumulators, and as many of a block of k. */
#include "kernels/cpu/gemm_panel.h"

#include <immintrin.h>

#include "kernels/cpu/lanes_avx512.h"

#define VECTORS (QUIRE_PACKED_COLUMNS / 16)
#define ROWS 2                /* at a time */
#define SUMS (ROWS * VECTORS) /* of one lane */
#define PAIRS (QUIRE_GEMM_LANES / 2)
#define STEP_BYTES 64
#define BLOCK_STEPS (QUIRE_FP8_BLOCK / 32)
#define TREE_LEVELS 4 /* where sums of 1, 2, 4 and 8 pairs wait */

/* Some rows of a tile. */
struct corner {
  const struct quire_panel_tile *t;
  const uint8_t *x[ROWS];
  float *out;
};

QUIRE_INLINE void zero(__m512 *v) {
  QUIRE_UNROLL
  for (int j = 0; j < 2 * SUMS; j++) {
    v[j] = _mm512_setzero_ps();
  }
}

/* Steps [begin, end) of a pair of lanes into acc[(lane * rows + row) * 2 + vector]. One flat loop of constant bounds
 * over registers: the compilers unroll it and share the loads. */
QUIRE_INLINE void steps(const struct corner *at, int pair, int32_t begin, int32_t end, __m512 *acc) {
  const int64_t lane_words = (int64_t)at->t->steps * QUIRE_PACKED_COLUMNS;
  const uint32_t *panel = at->t->panel + 2 * pair * lane_words;
  const int64_t first = quire_packed_lane(2 * pair) * 4;
  const uint8_t *const x[ROWS] = {at->x[0] + first, at->x[1] + first};
  for (int64_t step = begin; step < end; step++) {
    QUIRE_UNROLL
    for (int j = 0; j < 2 * SUMS; j++) {
      int lane = j / SUMS;
      int32_t two;
      memcpy(&two, x[j / VECTORS % ROWS] + step * STEP_BYTES + lane * (STEP_BYTES / 2), sizeof two);
      __m512i w = _mm512_load_si512(panel + lane * lane_words + step * QUIRE_PACKED_COLUMNS + j % VECTORS * 16);
      acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)_mm512_set1_epi32(two), (__m512bh)w);
    }
  }
}

/* All steps of a pair of lanes, block by block. */
QUIRE_INLINE void pair_go(const struct corner *at, int pair, __m512 *acc) {
  zero(acc);
  for (int32_t begin = 0; begin < at->t->steps; begin += BLOCK_STEPS) {
    int32_t end = begin + BLOCK_STEPS < at->t->steps ? begin + BLOCK_STEPS : at->t->steps;
    __m512 scale = _mm512_set1_ps(at->t->scale[begin / BLOCK_STEPS]);
    __m512 block[2 * SUMS];
    zero(block);
    steps(at, pair, begin, end, block);
    QUIRE_UNROLL
    for (int j = 0; j < 2 * SUMS; j++) {
      acc[j] = _mm512_fmadd_ps(scale, block[j], acc[j]);
    }
  }
}

/* The tree, one loop over pairs: after pair p as many sums that wait are added as p has ones at its end, like carries
 * of a counter; the result waits at the next level. (Written out as a recursion it is slower: gcc keeps sums of all
 * levels in registers across the steps, and has none left for these.) */
QUIRE_INLINE void corner_compute(const struct corner *at) {
  __m512 waiting[TREE_LEVELS][SUMS], acc[2 * SUMS];
  for (int pair = 0; pair < PAIRS; pair++) {
    pair_go(at, pair, acc);
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      acc[j] = _mm512_add_ps(acc[j], acc[SUMS + j]);
    }
    int levels = __builtin_ctz(~(unsigned)pair);
    for (int level = 0; level < levels; level++) {
      QUIRE_UNROLL
      for (int j = 0; j < SUMS; j++) {
        acc[j] = _mm512_add_ps(waiting[level][j], acc[j]);
      }
    }
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      waiting[levels][j] = acc[j];
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    _mm512_storeu_ps(at->out + j / VECTORS * at->t->out_ld + j % VECTORS * 16, acc[j]);
  }
}

static void tile(const struct quire_panel_tile *t) {
  const int turns = (t->rows + ROWS - 1) / ROWS, lines = (t->ask_lines + turns - 1) / turns;
  const uint8_t *ask = t->ask;
  for (int row = 0; row < t->rows; row += ROWS) {
    for (int line = 0; line < lines; line++, ask += CACHE_LINE) {
      _mm_prefetch((const char *)ask, _MM_HINT_T0);
    }
    const uint16_t *x = t->x + row * t->x_ld;
    const struct corner at = {
        t, {(const uint8_t *)x, (const uint8_t *)(row + 1 < t->rows ? x + t->x_ld : x)}, t->out + row * t->out_ld};
    corner_compute(&at);
  }
}

const struct quire_panel_isa quire_panel_isa_avx512 = {.tile = tile};
