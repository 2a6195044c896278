/* AVX-512 parts of attention. The weighted sum takes rows in pairs: interleaving the bf16 of two rows makes each u32
 * one dimension of both, and vdpbf16ps does the two steps of arithmetic.md 10 in their order. */
#include "kernels/cpu/attend.h"

#include <immintrin.h>

#include "kernels/cpu/lanes_avx512.h"

#define HEADS 8 /* with 32 dimensions each: 16 accumulators */

static void latent_fp8(const uint8_t *stored, uint16_t *latent_out) {
  for (int block = 0; block < QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK; block++) {
    float scale;
    memcpy(&scale, stored + QUIRE_LATENT_DIM + block * 4, sizeof scale);
    __m512 factor = _mm512_set1_ps(scale);
    for (int i = block * QUIRE_LATENT_BLOCK; i < (block + 1) * QUIRE_LATENT_BLOCK; i += 32) {
      __m512i v = quire_e4m3x32(stored + i);
      __m512i low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16);
      __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16);
      __m256i a = quire_bf16x16(_mm512_mul_ps(_mm512_castsi512_ps(low), factor));
      __m256i b = quire_bf16x16(_mm512_mul_ps(_mm512_castsi512_ps(high), factor));
      _mm256_storeu_si256((__m256i *)(latent_out + i), a);
      _mm256_storeu_si256((__m256i *)(latent_out + i + 16), b);
    }
  }
}

/* Interleaving works within quarters of a register: of 32 dimensions its low half (side 0) holds 0-3, 8-11, 16-19,
 * 24-27, its high half the others. Sums are loaded into that order and stored back from it. */
QUIRE_INLINE __m512 quarters_load(const float *out, int side) {
  __m512 first = _mm512_loadu_ps(out);
  __m512 second = _mm512_loadu_ps(out + 16);
  return side == 0 ? _mm512_shuffle_f32x4(first, second, 0x88) : _mm512_shuffle_f32x4(first, second, 0xdd);
}

QUIRE_INLINE void quarters_store(float *out, __m512 low, __m512 high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
  _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
}

/* `heads` (8 or 1) heads x 32 dimensions from `rows`; acc[2h + side]. Loops over registers are flat and have constant
 * bounds: only then do both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void block_bf16(const uint16_t *p, int64_t p_ld, int heads, const uint16_t *rows, int pairs, float *out) {
  __m512 acc[2 * HEADS];
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HEADS; j++) {
    acc[j] = j < 2 * heads ? quarters_load(out + j / 2 * QUIRE_LATENT_DIM, j % 2) : _mm512_setzero_ps();
  }
  for (int64_t s = 0; s < pairs; s++) {
    __m512i even = _mm512_loadu_si512(rows + 2 * s * QUIRE_KV_DIM);
    __m512i odd = _mm512_loadu_si512(rows + (2 * s + 1) * QUIRE_KV_DIM);
    __m512i low = _mm512_unpacklo_epi16(even, odd);
    __m512i high = _mm512_unpackhi_epi16(even, odd);
    QUIRE_UNROLL
    for (int j = 0; j < 2 * HEADS; j++) {
      if (j < 2 * heads) {
        int32_t pair;
        memcpy(&pair, p + j / 2 * p_ld + 2 * s, sizeof pair);
        acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)_mm512_set1_epi32(pair), (__m512bh)(j % 2 == 0 ? low : high));
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HEADS; j += 2) {
    if (j < 2 * heads) {
      quarters_store(out + j / 2 * QUIRE_LATENT_DIM, acc[j], acc[j + 1]);
    }
  }
}

QUIRE_INLINE void block_f32(const float *p, int64_t p_ld, int heads, const float *rows, int count, float *out) {
  __m512 acc[2 * HEADS];
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HEADS; j++) {
    acc[j] = j < 2 * heads ? _mm512_loadu_ps(out + j / 2 * QUIRE_LATENT_DIM + j % 2 * 16) : _mm512_setzero_ps();
  }
  for (int64_t s = 0; s < count; s++) {
    QUIRE_UNROLL
    for (int j = 0; j < 2 * HEADS; j++) {
      if (j < 2 * heads) {
        __m512 row = _mm512_loadu_ps(rows + s * QUIRE_KV_DIM + j % 2 * 16);
        acc[j] = _mm512_fmadd_ps(_mm512_set1_ps(p[j / 2 * p_ld + s]), row, acc[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HEADS; j++) {
    if (j < 2 * heads) {
      _mm512_storeu_ps(out + j / 2 * QUIRE_LATENT_DIM + j % 2 * 16, acc[j]);
    }
  }
}

static void values_bf16(const uint16_t *p, int64_t p_ld, int heads, const uint16_t *rows, int pairs, float *out) {
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 32) {
    int h = 0;
    for (; h + HEADS <= heads; h += HEADS) {
      block_bf16(p + h * p_ld, p_ld, HEADS, rows + d, pairs, out + h * QUIRE_LATENT_DIM + d);
    }
    for (; h < heads; h++) {
      block_bf16(p + h * p_ld, p_ld, 1, rows + d, pairs, out + h * QUIRE_LATENT_DIM + d);
    }
  }
}

static void values_f32(const float *p, int64_t p_ld, int heads, const float *rows, int count, float *out) {
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 32) {
    int h = 0;
    for (; h + HEADS <= heads; h += HEADS) {
      block_f32(p + h * p_ld, p_ld, HEADS, rows + d, count, out + h * QUIRE_LATENT_DIM + d);
    }
    for (; h < heads; h++) {
      block_f32(p + h * p_ld, p_ld, 1, rows + d, count, out + h * QUIRE_LATENT_DIM + d);
    }
  }
}

const struct quire_attend_isa quire_attend_isa_avx512 = {
    .gemm = &quire_gemm_isa_avx512,
    .latent_fp8 = latent_fp8,
    .values_bf16 = values_bf16,
    .values_f32 = values_f32,
};
