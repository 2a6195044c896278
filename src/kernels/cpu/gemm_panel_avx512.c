/* AVX-512 of panels: 2 lanes x 4 rows x 32 columns are 16 accumulators; each step loads four registers of the panel and
 * broadcasts eight pairs of x for sixteen vdpbf16ps. */
#include "kernels/cpu/gemm_panel.h"

#include <immintrin.h>

#include "kernels/cpu/lanes_avx512.h"

#define VECTORS (QUIRE_PANEL_COLUMNS / 16)
#define SUMS (QUIRE_PANEL_ROWS * VECTORS)  /* of one lane */
#define SCALED_ROWS (QUIRE_PANEL_ROWS / 2) /* at a time: sums and blocks are both in registers */
#define STEP_BYTES 64
#define BLOCK_STEPS (QUIRE_FP8_BLOCK / 32)
#define FEW_STEPS 4
#define TREE_LEVELS 4 /* where sums of 1, 2, 4 and 8 pairs wait */

/* The first lane of each pair, in the order of the tree, and the place of a lane in it. */
static const int8_t lane_of[QUIRE_PANEL_PAIRS] = {0, 4, 2, 6, 1, 5, 3, 7};
static const int8_t pair_of[QUIRE_PANEL_PAIRS] = {0, 4, 2, 6, 1, 5, 3, 7};

static void pack(const uint16_t *w, int64_t ld, int32_t steps, uint32_t *panel_out) {
  for (int vector = 0; vector < VECTORS; vector++) {
    for (int32_t step = 0; step < steps; step++) {
      __m512i v[16]; /* lane i of 16 columns */
      quire_transpose16_rows((const uint8_t *)(w + vector * 16 * ld + step * 32), ld * 2, v);
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        uint32_t *to = panel_out + pair_of[i % 8] * QUIRE_PANEL_PAIR_STRIDE(steps);
        _mm512_store_si512(to + ((int64_t)step * 2 + i / 8) * QUIRE_PANEL_COLUMNS + vector * 16, v[i]);
      }
    }
  }
}

/* Some rows of a tile (4, or 2 of one that is scaled). */
struct corner {
  const struct quire_panel_tile *t;
  int row, rows;
  bool scaled;
  int32_t steps; /* the tile's; known to the compiler where they are few */
};

QUIRE_INLINE void zero(__m512 *v, int count) {
  QUIRE_UNROLL
  for (int j = 0; j < 2 * SUMS; j++) {
    if (j < count) {
      v[j] = _mm512_setzero_ps();
    }
  }
}

/* Steps [begin, end) of a pair of lanes into acc[(lane * rows + row) * 2 + vector]. One flat loop of constant bounds
 * over registers: the compilers unroll it and share the loads. */
QUIRE_INLINE void steps(struct corner at, int pair, int32_t begin, int32_t end, __m512 *acc) {
  const uint32_t *panel = at.t->panel + pair * QUIRE_PANEL_PAIR_STRIDE(at.steps);
  const uint8_t *x[QUIRE_PANEL_ROWS];
  QUIRE_UNROLL
  for (int row = 0; row < QUIRE_PANEL_ROWS; row++) {
    x[row] = (const uint8_t *)at.t->x[row < at.rows ? at.row + row : at.row] + lane_of[pair] * 4;
  }
  for (int64_t step = begin; step < end; step++) {
    QUIRE_UNROLL
    for (int j = 0; j < 2 * SUMS; j++) {
      if (j < 2 * VECTORS * at.rows) {
        int lane = j / (VECTORS * at.rows);
        int row = j / VECTORS % at.rows;
        int32_t two;
        memcpy(&two, x[row] + step * STEP_BYTES + lane * (STEP_BYTES / 2), sizeof two);
        __m512i w = _mm512_load_si512(panel + ((step * 2 + lane) * VECTORS + j % VECTORS) * 16);
        acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)_mm512_set1_epi32(two), (__m512bh)w);
      }
    }
  }
}

/* All steps of a pair of lanes, block by block where those are scaled. */
QUIRE_INLINE void pair_go(struct corner at, int pair, __m512 *acc) {
  zero(acc, 2 * VECTORS * at.rows);
  if (!at.scaled) {
    steps(at, pair, 0, at.steps, acc);
    return;
  }
  for (int32_t begin = 0; begin < at.steps; begin += BLOCK_STEPS) {
    int32_t end = begin + BLOCK_STEPS < at.steps ? begin + BLOCK_STEPS : at.steps;
    __m512 scale = _mm512_set1_ps(at.t->scale[begin / BLOCK_STEPS]);
    __m512 block[2 * SUMS];
    zero(block, 2 * VECTORS * at.rows);
    steps(at, pair, begin, end, block);
    QUIRE_UNROLL
    for (int j = 0; j < 2 * SUMS; j++) {
      if (j < 2 * VECTORS * at.rows) {
        acc[j] = _mm512_fmadd_ps(scale, block[j], acc[j]);
      }
    }
  }
}

/* The tree, one loop over pairs: after pair p as many sums that wait are added as p has ones at its end, like carries
 * of a counter; the result waits at the next level. (Written out as a recursion it is slower: gcc keeps sums of all
 * levels in registers across the steps, and has none left for these.) */
QUIRE_INLINE void corner_compute(struct corner at) {
  _Alignas(64) float waiting[TREE_LEVELS][SUMS * 16];
  const int count = VECTORS * at.rows;
  __m512 acc[2 * SUMS];
  for (int pair = 0; pair < QUIRE_PANEL_PAIRS; pair++) {
    pair_go(at, pair, acc);
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      acc[j] = j < count ? _mm512_add_ps(acc[j], acc[count + j]) : acc[j];
    }
    int levels = __builtin_ctz(~(unsigned)pair);
    for (int level = 0; level < levels; level++) {
      QUIRE_UNROLL
      for (int j = 0; j < SUMS; j++) {
        acc[j] = j < count ? _mm512_add_ps(_mm512_load_ps(waiting[level] + j * 16), acc[j]) : acc[j];
      }
    }
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      if (j < count) {
        _mm512_store_ps(waiting[levels] + j * 16, acc[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    int row = at.row + j / VECTORS;
    if (j < VECTORS * at.rows && row < at.t->rows) {
      _mm512_storeu_ps(at.t->out + row * at.t->out_ld + j % VECTORS * 16, acc[j]);
    }
  }
}

static void tile(const struct quire_panel_tile *t) {
  if (t->scale != NULL) {
    for (int row = 0; row < t->rows; row += SCALED_ROWS) {
      corner_compute((struct corner){t, row, SCALED_ROWS, true, t->steps});
    }
  } else if (t->steps == FEW_STEPS) {
    corner_compute((struct corner){t, 0, QUIRE_PANEL_ROWS, false, FEW_STEPS});
  } else if (t->steps == 2 * FEW_STEPS) {
    corner_compute((struct corner){t, 0, QUIRE_PANEL_ROWS, false, 2 * FEW_STEPS});
  } else {
    corner_compute((struct corner){t, 0, QUIRE_PANEL_ROWS, false, t->steps});
  }
}

const struct quire_panel_isa quire_panel_isa_avx512 = {.pack = pack, .tile = tile};
