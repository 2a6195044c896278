/* AVX-512 of packed operands: 8 rows x 32 columns of one lane are 16 accumulators; each step loads two registers of the
 * panel and broadcasts eight pairs of x for sixteen vdpbf16ps. */
#include <immintrin.h>

#include "kernels/cpu/gemm_packed.h"
#include "kernels/cpu/lanes_avx512.h"

#define VECTORS (QUIRE_PACKED_COLUMNS / 16)
#define SUMS (QUIRE_PACKED_ROWS * VECTORS)
#define X_STEPS_AHEAD 64 /* asked for: x does not stay in the second level */
#define BLOCK_STEPS (QUIRE_FP8_BLOCK / 32)

/* The position of a lane in the order of the tree. */
static const int8_t position_of[QUIRE_GEMM_LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

static void pack(const uint16_t *from, int64_t ld, int32_t steps, struct quire_packed_place to) {
  bool whole = to.half[1] == to.half[0] + QUIRE_GEMM_LANES / 2;
  for (int64_t step = 0; step < steps; step++) {
    __m512i lane[QUIRE_GEMM_LANES];
    quire_transpose16_rows((const uint8_t *)(from + step * 32), ld * 2, lane);
    QUIRE_UNROLL
    for (int i = 0; i < QUIRE_GEMM_LANES; i++) {
      int64_t at = position_of[i] * to.lane_stride + step * to.step_stride;
      if (whole) {
        _mm512_store_si512(to.half[0] + at, lane[i]);
      } else {
        _mm256_store_si256((__m256i *)(void *)(to.half[0] + at), _mm512_castsi512_si256(lane[i]));
        _mm256_store_si256((__m256i *)(void *)(to.half[1] + at), _mm512_extracti64x4_epi64(lane[i], 1));
      }
    }
  }
}

/* Steps [begin, end) into acc[row * 2 + vector], from zero. One flat loop of constant bounds over registers: the
 * compilers unroll it and share the loads. */
QUIRE_INLINE void steps(const uint32_t *x, const uint32_t *w, int64_t begin, int64_t end, __m512 *acc) {
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    acc[j] = _mm512_setzero_ps();
  }
  for (int64_t step = begin; step < end; step++) {
    __builtin_prefetch(x + (step + X_STEPS_AHEAD) * QUIRE_PACKED_ROWS);
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      int32_t two = (int32_t)x[step * QUIRE_PACKED_ROWS + j / VECTORS];
      __m512i wv = _mm512_load_si512(w + step * QUIRE_PACKED_COLUMNS + j % VECTORS * 16);
      acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)_mm512_set1_epi32(two), (__m512bh)wv);
    }
  }
}

/* A lane of a group, block by block where those are scaled. */
QUIRE_INLINE void lane_go(const struct quire_packed_tile *t, const uint32_t *x, bool scaled, __m512 *acc) {
  if (!scaled) {
    steps(x, t->w, 0, t->steps, acc);
    return;
  }
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    acc[j] = _mm512_setzero_ps();
  }
  for (int32_t begin = 0; begin < t->steps; begin += BLOCK_STEPS) {
    int32_t end = begin + BLOCK_STEPS < t->steps ? begin + BLOCK_STEPS : t->steps;
    __m512 scale = _mm512_set1_ps(t->scale[begin / BLOCK_STEPS]);
    __m512 block[SUMS];
    steps(x, t->w, begin, end, block);
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      acc[j] = _mm512_fmadd_ps(scale, block[j], acc[j]);
    }
  }
}

/* The tree: adds what waits at `levels` levels; the sum then waits at the next one, or is an output. */
QUIRE_INLINE void carry(const struct quire_packed_tile *t, int group, int levels, __m512 *acc) {
  float *sums = t->sums + group * QUIRE_PACKED_SUMS;
  for (int level = 0; level < levels; level++, sums += QUIRE_PACKED_LEVEL_STRIDE) {
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      acc[j] = _mm512_add_ps(_mm512_load_ps(sums + j * 16), acc[j]);
    }
  }
  if (levels < QUIRE_PACKED_LEVELS) {
    QUIRE_UNROLL
    for (int j = 0; j < SUMS; j++) {
      _mm512_store_ps(sums + j * 16, acc[j]);
    }
    return;
  }
  int rows = t->rows - group * QUIRE_PACKED_ROWS;
  float *out = t->out + group * QUIRE_PACKED_ROWS * t->out_ld;
  QUIRE_UNROLL
  for (int j = 0; j < SUMS; j++) {
    if (j / VECTORS < rows) {
      _mm512_storeu_ps(out + j / VECTORS * t->out_ld + j % VECTORS * 16, acc[j]);
    }
  }
}

QUIRE_INLINE void tile_go(const struct quire_packed_tile *t, bool scaled) {
  int levels = __builtin_ctz(~(unsigned)t->position);
  for (int group = 0; group * QUIRE_PACKED_ROWS < t->rows; group++) {
    __m512 acc[SUMS];
    lane_go(t, t->x + (int64_t)group * t->steps * QUIRE_PACKED_ROWS, scaled, acc);
    carry(t, group, levels, acc);
  }
}

static void tile(const struct quire_packed_tile *t) {
  if (t->scale == NULL) {
    tile_go(t, false);
  } else {
    tile_go(t, true);
  }
}

const struct quire_packed_isa quire_packed_isa_avx512 = {.pack = pack, .tile = tile};
