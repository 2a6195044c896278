/* AVX-512 parts of attention. The weighted sum takes rows in pairs: interleaving the bf16 of two rows makes each u32
 * one dimension of both, and vdpbf16ps does the two steps of arithmetic.md 10 in their order. */
#include "kernels/cpu/attend.h"

#include <immintrin.h>

#include "base/assert.h"
#include "kernels/cpu/e4m3_avx512.h"
#include "kernels/cpu/lanes_avx512.h"

#define HEADS 8 /* with 32 dimensions each: 16 accumulators */

/* 32 values of bf16, scaled: the product in f32, rounded. */
QUIRE_INLINE void scaled_store(__m512i v, __m512 factor, uint16_t *out) {
  __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16));
  __m512 high = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16));
  _mm256_storeu_si256((__m256i *)(void *)out, quire_bf16x16(_mm512_mul_ps(low, factor)));
  _mm256_storeu_si256((__m256i *)(void *)(out + 16), quire_bf16x16(_mm512_mul_ps(high, factor)));
}

/* Scales that are powers of two, as most are: looked up, and the scale's exponent added to all but zeros. Exact where
 * the product is in bf16's normal range, which scales of 2^-22 to 2^119 give (arithmetic.md 8). False where a scale is
 * another number or a code is a NaN; what it has written by then is to be written again. */
QUIRE_LOOK_UP static bool latent_shifted(const uint8_t *stored, uint16_t *latent_out) {
  const struct quire_e4m3_tables tables = quire_e4m3_tables();
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __mmask64 nan = 0;
  for (int block = 0; block < QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK; block++) {
    uint32_t scale;
    memcpy(&scale, stored + QUIRE_LATENT_DIM + block * 4, sizeof scale);
    if ((scale & 0x7fffff) != 0 || scale < (127u - 22) << 23 || scale > (127u + 119) << 23) {
      return false;
    }
    const __m512i shift = _mm512_set1_epi16((int16_t)((int32_t)((scale >> 23) - 127) * 128));
    QUIRE_UNROLL
    for (int step = 0; step < QUIRE_LATENT_BLOCK; step += 64) {
      int i = block * QUIRE_LATENT_BLOCK + step;
      __m512i first, second;
      __m512i codes = _mm512_loadu_si512(stored + i);
      nan |= _mm512_cmpeq_epi8_mask(_mm512_or_si512(codes, _mm512_set1_epi8((char)0x80)), _mm512_set1_epi8(-1));
      quire_e4m3x64(tables, stored + i, &first, &second);
      first = _mm512_mask_add_epi16(first, _mm512_test_epi16_mask(first, magnitude), first, shift);
      second = _mm512_mask_add_epi16(second, _mm512_test_epi16_mask(second, magnitude), second, shift);
      _mm512_storeu_si512(latent_out + i, first);
      _mm512_storeu_si512(latent_out + i + 32, second);
    }
  }
  return nan == 0;
}

static void latent_fp8(const uint8_t *stored, uint16_t *latent_out) {
  if (quire_e4m3_looks_up() && latent_shifted(stored, latent_out)) {
    return;
  }
  for (int block = 0; block < QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK; block++) {
    float scale;
    memcpy(&scale, stored + QUIRE_LATENT_DIM + block * 4, sizeof scale);
    __m512 factor = _mm512_set1_ps(scale);
    for (int i = block * QUIRE_LATENT_BLOCK; i < (block + 1) * QUIRE_LATENT_BLOCK; i += 32) {
      scaled_store(quire_e4m3x32(stored + i), factor, latent_out + i);
    }
  }
}

/* quire_exp on sixteen lanes, none above 0: the softmax asks for no others. Scaling by 2^n is the addition to the
 * exponent, since no result is subnormal, and passes a NaN on. */
QUIRE_INLINE __m512 exp_not_positive(__m512 x) {
  const __m512 magic = _mm512_set1_ps(QUIRE_EXP_MAGIC);
  __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(QUIRE_EXP_LOG2E), magic);
  __m512 n = _mm512_sub_ps(t, magic);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-QUIRE_EXP_LN2_HIGH), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-QUIRE_EXP_LN2_LOW), r);
  __m512 p = _mm512_set1_ps(1.0f / 5040.0f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  __mmask16 not_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(QUIRE_EXP_LOW), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(not_low, p, n);
}

/* Sixteen dots at j, scaled; behind count -inf, whose exponential is the zero that the lanes take. */
QUIRE_INLINE __m512 scaled_load(const float *scores, int64_t j, int32_t count, __m512 scale) {
  QUIRE_DEBUG(count > j);
  __mmask16 mask = count - j >= LANES ? 0xffff : (__mmask16)((1u << (count - j)) - 1);
  __m512 padding = _mm512_set1_ps(-quire_float_of(QUIRE_INF_BITS));
  return _mm512_mask_mul_ps(padding, mask, _mm512_maskz_loadu_ps(mask, scores + j), scale);
}

#define TOGETHER 4 /* registers of dots, so that their chains run beside one another */

/* Of the scaled dots, from -inf. */
QUIRE_INLINE float scaled_max(const float *scores, int32_t count, __m512 scale) {
  __m512 largest[TOGETHER];
  QUIRE_UNROLL
  for (int u = 0; u < TOGETHER; u++) {
    largest[u] = _mm512_set1_ps(-quire_float_of(QUIRE_INF_BITS));
  }
  int64_t j = 0;
  for (; j + TOGETHER * LANES <= count; j += TOGETHER * LANES) {
    QUIRE_UNROLL
    for (int u = 0; u < TOGETHER; u++) { /* a > b ? a : b: NaN passes by */
      largest[u] = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(scores + j + u * LANES), scale), largest[u]);
    }
  }
  for (; j < count; j += LANES) {
    largest[0] = _mm512_max_ps(scaled_load(scores, j, count, scale), largest[0]);
  }
  float lanes[TOGETHER * LANES];
  QUIRE_UNROLL
  for (int u = 0; u < TOGETHER; u++) {
    _mm512_storeu_ps(lanes + u * LANES, largest[u]);
  }
  float max = lanes[0];
  for (int i = 1; i < TOGETHER * LANES; i++) {
    max = lanes[i] > max ? lanes[i] : max;
  }
  return max;
}

QUIRE_INLINE void exp_store(float *scores, int64_t j, bool bf16, __m512 e) {
  if (bf16) {
    _mm256_storeu_si256((__m256i *)((uint8_t *)scores + j * 2), quire_bf16x16(e));
  } else {
    _mm512_storeu_ps(scores + j, e);
  }
}

/* Scales twice rather than store and load again. */
QUIRE_INLINE float softmax_as(float *scores, int32_t count, float scale, bool bf16, float *max_out) {
  QUIRE_DEBUG(count > 0);
  const __m512 factor = _mm512_set1_ps(scale);
  *max_out = scaled_max(scores, count, factor);
  const __m512 max = _mm512_set1_ps(*max_out);
  __m512 sum = _mm512_setzero_ps();
  int64_t j = 0;
  for (; j + TOGETHER * LANES <= count; j += TOGETHER * LANES) {
    __m512 e[TOGETHER];
    QUIRE_UNROLL
    for (int u = 0; u < TOGETHER; u++) {
      __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + j + u * LANES), factor);
      e[u] = exp_not_positive(_mm512_sub_ps(scaled, max));
    }
    QUIRE_UNROLL
    for (int u = 0; u < TOGETHER; u++) {
      sum = _mm512_add_ps(sum, e[u]);
      exp_store(scores, j + u * LANES, bf16, e[u]);
    }
  }
  for (; j < count; j += LANES) {
    __m512 e = exp_not_positive(_mm512_sub_ps(scaled_load(scores, j, count, factor), max));
    sum = _mm512_add_ps(sum, e);
    exp_store(scores, j, bf16, e);
  }
  float lanes[LANES];
  _mm512_storeu_ps(lanes, sum);
  return lanes_fold(lanes_load(lanes, LANES));
}

static float softmax(float *scores, int32_t count, float scale, bool bf16, float *max_out) {
  return bf16 ? softmax_as(scores, count, scale, true, max_out) : softmax_as(scores, count, scale, false, max_out);
}

static void finish(const float *out, float sum, bool bf16, void *finished_out) {
  const __m512 divisor = _mm512_set1_ps(sum);
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 16) {
    __m512 quotient = _mm512_div_ps(_mm512_loadu_ps(out + d), divisor);
    if (bf16) {
      _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)finished_out + d), quire_bf16x16(quotient));
    } else {
      _mm512_storeu_ps((float *)finished_out + d, quotient);
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

/* `heads` (8, 4 or 1) heads x 32 dimensions from `rows`; acc[2h + side]. Loops over registers are flat and have
 * constant bounds: only then do both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void block_bf16(const uint16_t *p, int64_t p_ld, int heads, const uint16_t *rows, int pairs, float *out) {
  __m512 acc[2 * HEADS];
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HEADS; j++) {
    acc[j] = j < 2 * heads ? quarters_load(out + j / 2 * QUIRE_LATENT_DIM, j % 2) : _mm512_setzero_ps();
  }
  for (int64_t s = 0; s < pairs; s++) {
    __m512i even = _mm512_loadu_si512(rows + 2 * s * QUIRE_KV_DIM);
    __m512i odd = _mm512_loadu_si512(rows + (2 * s + 1) * QUIRE_KV_DIM);
    _mm_prefetch((const char *)(rows + 2 * s * QUIRE_KV_DIM + 32), _MM_HINT_T0); /* the next dimensions' */
    _mm_prefetch((const char *)(rows + (2 * s + 1) * QUIRE_KV_DIM + 32), _MM_HINT_T0);
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
  QUIRE_ASSERT(heads > 0 && pairs > 0);
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 32) {
    int h = 0;
    for (; h + HEADS <= heads; h += HEADS) {
      block_bf16(p + h * p_ld, p_ld, HEADS, rows + d, pairs, out + h * QUIRE_LATENT_DIM + d);
    }
    for (; h + HEADS / 2 <= heads; h += HEADS / 2) {
      block_bf16(p + h * p_ld, p_ld, HEADS / 2, rows + d, pairs, out + h * QUIRE_LATENT_DIM + d);
    }
    for (; h < heads; h++) {
      block_bf16(p + h * p_ld, p_ld, 1, rows + d, pairs, out + h * QUIRE_LATENT_DIM + d);
    }
  }
}

static void values_f32(const float *p, int64_t p_ld, int heads, const float *rows, int count, float *out) {
  QUIRE_ASSERT(heads > 0 && count > 0);
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
    .softmax = softmax,
    .finish = finish,
    .values_bf16 = values_bf16,
    .values_f32 = values_f32,
};
