/* AVX-512 of packed operands: 8 rows x 32 columns of one lane are 16 accumulators; each step loads two registers of the
 * panel and broadcasts eight pairs of x for sixteen vdpbf16ps. */
#include <immintrin.h>

#include "kernels/cpu/gemm_packed.h"
#include "kernels/cpu/lanes_avx512.h"

#define VECTORS (QUIRE_PACKED_COLUMNS / 16)
#define SUMS (QUIRE_PACKED_ROWS * VECTORS)
#define X_STEPS_AHEAD 64 /* asked for: x does not stay in the second level */
#define BLOCK_STEPS (QUIRE_FP8_BLOCK / 32)
#define SCALED_ROWS (QUIRE_PACKED_ROWS / 2)
#define ASKING_GROUPS 2 /* a line a step each: together a lane of a panel */

static void pack(const uint16_t *from, int64_t ld, int32_t steps, struct quire_packed_place to) {
  bool whole = to.half[1] == to.half[0] + QUIRE_GEMM_LANES / 2;
  for (int64_t step = 0; step < steps; step++) {
    __m512i lane[QUIRE_GEMM_LANES];
    quire_transpose16_rows((const uint8_t *)(from + step * 32), ld * 2, lane);
    QUIRE_UNROLL
    for (int i = 0; i < QUIRE_GEMM_LANES; i++) {
      int64_t at = quire_packed_lane(i) * to.lane_stride + step * to.step_stride;
      if (whole) {
        _mm512_store_si512(to.half[0] + at, lane[i]);
      } else {
        _mm256_store_si256((__m256i *)(void *)(to.half[0] + at), _mm512_castsi512_si256(lane[i]));
        _mm256_store_si256((__m256i *)(void *)(to.half[1] + at), _mm512_extracti64x4_epi64(lane[i], 1));
      }
    }
  }
}

/* Some rows of a group, one lane. */
struct part {
  const struct quire_packed_tile *t;
  const uint32_t *x; /* of the first row */
  int row;           /* in the tile */
  int rows;          /* 8, 4, 2 or 1 */
  const uint8_t *ask;
  int lines; /* asked for in a step */
};

QUIRE_INLINE void zero(__m512 *v, int rows) {
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    if (j < rows * VECTORS) {
      v[j] = _mm512_setzero_ps();
    }
  }
}

/* Steps [begin, end) into acc[row * 2 + vector]. One flat loop of constant bounds over registers: the compilers unroll
 * it and share the loads. */
QUIRE_INLINE void steps(struct part at, int64_t begin, int64_t end, __m512 *acc) {
  const uint32_t *w = at.t->w;
  for (int64_t step = begin; step < end; step++) {
    if (at.rows == QUIRE_PACKED_ROWS) {
      __builtin_prefetch(at.x + (step + X_STEPS_AHEAD) * QUIRE_PACKED_ROWS);
    }
    QUIRE_UNROLL
    for (int line = 0; line < VECTORS; line++) {
      if (line < at.lines) {
        __builtin_prefetch(at.ask + (step * at.lines + line) * CACHE_LINE);
      }
    }
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      if (j < at.rows * VECTORS) {
        int32_t two = (int32_t)at.x[step * QUIRE_PACKED_ROWS + j / VECTORS];
        __m512i wv = _mm512_load_si512(w + step * QUIRE_PACKED_COLUMNS + j % VECTORS * 16);
        acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)_mm512_set1_epi32(two), (__m512bh)wv);
      }
    }
  }
}

/* The tree: adds what waits at lower levels; the sum then waits at the next one, or is an output. */
QUIRE_INLINE void carry(struct part at, __m512 *acc) {
  const struct quire_packed_tile *t = at.t;
  int levels = __builtin_ctz(~(unsigned)t->position);
  float *sums = t->sums + at.row * QUIRE_PACKED_COLUMNS;
  for (int level = 0; level < levels; level++, sums += QUIRE_PACKED_LEVEL_STRIDE) {
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      if (j < at.rows * VECTORS) {
        acc[j] = _mm512_add_ps(_mm512_load_ps(sums + j * 16), acc[j]);
      }
    }
  }
  if (levels < QUIRE_PACKED_LEVELS) {
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      if (j < at.rows * VECTORS) {
        _mm512_store_ps(sums + j * 16, acc[j]);
      }
    }
    return;
  }
  float *out = t->out + at.row * t->out_ld;
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    if (j < at.rows * VECTORS && at.row + j / VECTORS < t->rows) {
      _mm512_storeu_ps(out + j / VECTORS * t->out_ld + j % VECTORS * 16, acc[j]);
    }
  }
}

QUIRE_INLINE void part_plain(struct part at) {
  __m512 acc[SUMS];
  zero(acc, at.rows);
  steps(at, 0, at.t->steps, acc);
  carry(at, acc);
}

/* Block by block, four rows at most: their sums and those of a block are both in registers. */
QUIRE_INLINE void part_scaled(struct part at) {
  const struct quire_packed_tile *t = at.t;
  __m512 acc[SUMS];
  zero(acc, at.rows);
  for (int32_t begin = 0; begin < t->steps; begin += BLOCK_STEPS) {
    int32_t end = begin + BLOCK_STEPS < t->steps ? begin + BLOCK_STEPS : t->steps;
    __m512 scale = _mm512_set1_ps(t->scale[begin / BLOCK_STEPS]);
    __m512 block[SUMS];
    zero(block, at.rows);
    steps(at, begin, end, block);
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      if (j < at.rows * VECTORS) {
        acc[j] = _mm512_fmadd_ps(scale, block[j], acc[j]);
      }
    }
  }
  carry(at, acc);
}

static void tile_scaled(const struct quire_packed_tile *t) {
  for (int row = 0; row < t->rows; row += SCALED_ROWS) {
    const uint32_t *x = t->x + (int64_t)(row / QUIRE_PACKED_ROWS) * t->steps * QUIRE_PACKED_ROWS;
    struct part at = {t, x + row % QUIRE_PACKED_ROWS, row, SCALED_ROWS, NULL, 0};
    int left = t->rows - row;
    if (left > 2) {
      part_scaled(at);
    } else {
      at.rows = 2;
      part_scaled(at);
    }
  }
}

/* The only group, of few rows: bound by reading W. */
static void tile_alone(const struct quire_packed_tile *t) {
  struct part at = {t, t->x, 0, t->rows, t->ask != NULL ? t->ask : (const uint8_t *)t->w, VECTORS};
  if (t->rows > 4) {
    at.rows = QUIRE_PACKED_ROWS;
    part_plain(at);
  } else if (t->rows > 2) {
    at.rows = 4;
    part_plain(at);
  } else if (t->rows == 2) {
    at.rows = 2;
    part_plain(at);
  } else {
    at.rows = 1;
    part_plain(at);
  }
}

static void tile(const struct quire_packed_tile *t) {
  if (t->scale != NULL) {
    tile_scaled(t);
    return;
  }
  if (t->rows <= QUIRE_PACKED_ROWS) {
    tile_alone(t);
    return;
  }
  for (int row = 0; row < t->rows; row += QUIRE_PACKED_ROWS) {
    const uint32_t *x = t->x + (int64_t)(row / QUIRE_PACKED_ROWS) * t->steps * QUIRE_PACKED_ROWS;
    struct part at = {t, x, row, QUIRE_PACKED_ROWS, t->ask, 1};
    if (t->ask != NULL && row < ASKING_GROUPS * QUIRE_PACKED_ROWS) {
      at.ask += (int64_t)(row / QUIRE_PACKED_ROWS) * t->steps * CACHE_LINE;
      part_plain(at);
    } else {
      at.lines = 0;
      part_plain(at);
    }
  }
}

const struct quire_packed_isa quire_packed_isa_avx512 = {.pack = pack, .tile = tile};
