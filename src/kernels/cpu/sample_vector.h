/* The registers that sampling walks over rows of logits with: 8 lanes of AVX2 or 16 of AVX-512, chosen by what the
 * including file is compiled for. Values do not depend on the choice. Internal to sample_passes*.c. Pure. */
#ifndef QUIRE_KERNELS_CPU_SAMPLE_VECTOR_H
#define QUIRE_KERNELS_CPU_SAMPLE_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/lanes.h"

#if defined(__AVX512F__)

#define WIDTH 16
typedef __m512 vf;
typedef __m512i vi;

QUIRE_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
QUIRE_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
QUIRE_INLINE vf vf_all(float x) { return _mm512_set1_ps(x); }
QUIRE_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
QUIRE_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
QUIRE_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
QUIRE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* b > a ? b : a, so a NaN in b is passed over */
QUIRE_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(b, a); }
QUIRE_INLINE uint32_t vf_at_least(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
QUIRE_INLINE uint32_t vf_above(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
QUIRE_INLINE vf vf_no_nan(vf x, vf instead) {
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), instead);
}
QUIRE_INLINE vf vf_zero_below(vf y, vf x, vf limit) {
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), _mm512_setzero_ps());
}
QUIRE_INLINE float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }
QUIRE_INLINE vi vi_of(vf x) { return _mm512_castps_si512(x); }
QUIRE_INLINE vf vf_of(vi x) { return _mm512_castsi512_ps(x); }
QUIRE_INLINE vf vf_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
QUIRE_INLINE vi vi_all(uint32_t x) { return _mm512_set1_epi32((int)x); }
QUIRE_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
QUIRE_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
QUIRE_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
QUIRE_INLINE vi vi_left23(vi x) { return _mm512_slli_epi32(x, 23); }
QUIRE_INLINE vi vi_half(vi x) { return _mm512_srli_epi32(x, 1); }
QUIRE_INLINE vi vi_mul_low(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
QUIRE_INLINE vi vi_mul_high(vi a, vi b) {
  vi even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32);
  return _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b));
}
#define UNPACK(half, bits, a, b) _mm512_unpack##half##_epi##bits(a, b)
/* counters of a step in the lanes from which vi_words reads them in order */
QUIRE_INLINE vi vi_counters(void) { return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }
/* Adds the integers trunc(x * 2^40), x in [0, 1]: exact up to 2^13 of them a lane. */
typedef __m512d vd;
QUIRE_INLINE vd vd_zero(void) { return _mm512_setzero_pd(); }
QUIRE_INLINE vd vd_add_mass(vd sum, vf x) {
  vf scaled = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1p40f)), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  vd low = _mm512_cvtps_pd(_mm512_castps512_ps256(scaled)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(scaled, 1));
  return _mm512_add_pd(sum, _mm512_add_pd(low, high));
}
QUIRE_INLINE double vd_total(vd x) { return _mm512_reduce_add_pd(x); }

#else

#define WIDTH 8
typedef __m256 vf;
typedef __m256i vi;

QUIRE_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
QUIRE_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
QUIRE_INLINE vf vf_all(float x) { return _mm256_set1_ps(x); }
QUIRE_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
QUIRE_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
QUIRE_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
QUIRE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
QUIRE_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(b, a); }
QUIRE_INLINE uint32_t vf_at_least(vf a, vf b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
QUIRE_INLINE uint32_t vf_above(vf a, vf b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
QUIRE_INLINE vf vf_no_nan(vf x, vf instead) { return _mm256_blendv_ps(x, instead, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
QUIRE_INLINE vf vf_zero_below(vf y, vf x, vf limit) { return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y); }
QUIRE_INLINE float vf_largest(vf x) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
QUIRE_INLINE vi vi_of(vf x) { return _mm256_castps_si256(x); }
QUIRE_INLINE vf vf_of(vi x) { return _mm256_castsi256_ps(x); }
QUIRE_INLINE vf vf_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
QUIRE_INLINE vi vi_all(uint32_t x) { return _mm256_set1_epi32((int)x); }
QUIRE_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
QUIRE_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
QUIRE_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
QUIRE_INLINE vi vi_left23(vi x) { return _mm256_slli_epi32(x, 23); }
QUIRE_INLINE vi vi_half(vi x) { return _mm256_srli_epi32(x, 1); }
QUIRE_INLINE vi vi_mul_low(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
QUIRE_INLINE vi vi_mul_high(vi a, vi b) {
  vi even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  return _mm256_blend_epi32(even, _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b), 0xaa);
}
#define UNPACK(half, bits, a, b) _mm256_unpack##half##_epi##bits(a, b)
QUIRE_INLINE vi vi_counters(void) { return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); }
typedef __m256d vd;
QUIRE_INLINE vd vd_zero(void) { return _mm256_setzero_pd(); }
QUIRE_INLINE vd vd_add_mass(vd sum, vf x) {
  vf scaled = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1p40f)), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  vd low = _mm256_cvtps_pd(_mm256_castps256_ps128(scaled)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(scaled, 1));
  return _mm256_add_pd(sum, _mm256_add_pd(low, high));
}
QUIRE_INLINE double vd_total(vd x) {
  __m128d half = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

#endif

/* quire_exp of lanes that are at most 0, or -inf; NaN stays. */
QUIRE_INLINE vf vf_exp_negative(vf x) {
  vf t = vf_fma(x, vf_all(QUIRE_EXP_LOG2E), vf_all(QUIRE_EXP_MAGIC));
  vf n = vf_sub(t, vf_all(QUIRE_EXP_MAGIC));
  vf r = vf_fma(n, vf_all(-QUIRE_EXP_LN2_HIGH), x);
  r = vf_fma(n, vf_all(-QUIRE_EXP_LN2_LOW), r);
  vf p = vf_all(1.0f / 5040.0f);
  p = vf_fma(p, r, vf_all(1.0f / 720.0f));
  p = vf_fma(p, r, vf_all(1.0f / 120.0f));
  p = vf_fma(p, r, vf_all(1.0f / 24.0f));
  p = vf_fma(p, r, vf_all(1.0f / 6.0f));
  p = vf_fma(p, r, vf_all(0.5f));
  p = vf_fma(p, r, vf_all(1.0f));
  p = vf_fma(p, r, vf_all(1.0f));
  vi shift = vi_left23(vi_sub(vi_of(t), vi_all(0x4b400000u))); /* bits of QUIRE_EXP_MAGIC */
  vf y = vf_of(vi_add(vi_of(p), shift));
  return vf_zero_below(y, x, vf_all(QUIRE_EXP_LOW));
}

/* Philox words of WIDTH blocks, w[j] having word j of every block, to the order of the ids they belong to. */
QUIRE_INLINE void vi_words(vi w[4]) {
  vi a = UNPACK(lo, 32, w[0], w[1]), b = UNPACK(hi, 32, w[0], w[1]);
  vi c = UNPACK(lo, 32, w[2], w[3]), d = UNPACK(hi, 32, w[2], w[3]);
  w[0] = UNPACK(lo, 64, a, c);
  w[1] = UNPACK(hi, 64, a, c);
  w[2] = UNPACK(lo, 64, b, d);
  w[3] = UNPACK(hi, 64, b, d);
}

#endif
