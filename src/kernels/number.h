/* The scalar arithmetic of docs/arithmetic.md: number formats with their exact rounding, and the few functions kernels
 * need. Everything here is defined bit by bit; kernels, oracles and the converters of weights share it.
 *
 * Call with FTZ and DAZ set (quire_kernels_enter). Pure, no libm; compiles for host and device. Thread rule: values. */
#ifndef QUIRE_KERNELS_NUMBER_H
#define QUIRE_KERNELS_NUMBER_H

#include <stdint.h>
#include <string.h>

#include "layout/geometry.h"

#if defined(__CUDA_ARCH__) /* the device half of a CUDA file */
#define QUIRE_FMA_F32(a, b, c) __fmaf_rn(a, b, c)
#define QUIRE_FMA_F64(a, b, c) __fma_rn(a, b, c)
#define QUIRE_SQRT_F32(a) __fsqrt_rn(a)
#define QUIRE_SQRT_F64(a) __dsqrt_rn(a)
#else
#include <emmintrin.h>
#define QUIRE_FMA_F32(a, b, c) __builtin_fmaf(a, b, c)
#define QUIRE_FMA_F64(a, b, c) __builtin_fma(a, b, c)
/* The instruction: the builtin would call libm for a negative operand. */
#define QUIRE_SQRT_F32(a) _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a)))
#define QUIRE_SQRT_F64(a) _mm_cvtsd_f64(_mm_sqrt_pd(_mm_set_sd(a)))
#endif

#define QUIRE_INF_BITS 0x7f800000u
#define QUIRE_E4M3_MAX 448.0f

static inline QUIRE_HOST_DEVICE uint32_t quire_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline QUIRE_HOST_DEVICE float quire_float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline QUIRE_HOST_DEVICE uint64_t quire_bits64_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline QUIRE_HOST_DEVICE double quire_double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* f32 to bf16, nearest even; subnormals to a zero of their sign, NaN quieted (arithmetic.md 2). */
static inline QUIRE_HOST_DEVICE uint16_t quire_bf16_round(float x) {
  uint32_t bits = quire_bits_of(x);
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quieted = (bits >> 16) | 0x40u;
  uint32_t zero = (bits >> 16) & 0x8000u;
  uint32_t result = magnitude > QUIRE_INF_BITS ? quieted : rounded;
  return (uint16_t)(magnitude < 0x00800000u ? zero : result);
}

static inline QUIRE_HOST_DEVICE float quire_bf16_widen(uint16_t x) { return quire_float_of((uint32_t)x << 16); }

/* f32 to e4m3fn: clamp to +-448, nearest even, sign of zero kept, NaN to 0x7f or 0xff (arithmetic.md 2). */
static inline QUIRE_HOST_DEVICE uint8_t quire_e4m3_round(float x) {
  uint32_t bits = quire_bits_of(x);
  uint32_t sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t code;
  if (magnitude > QUIRE_INF_BITS) {
    code = 0x7fu;
  } else if (magnitude >= 0x43e00000u) { /* 448 */
    code = 0x7eu;
  } else if (magnitude >= 0x3c800000u) { /* 2^-6: normal, drop 20 bits of mantissa, bias 127 to 7 */
    code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  } else { /* one ulp of 2^14 is the subnormal step 2^-9: the addition rounds */
    code = quire_bits_of(quire_float_of(magnitude) + 16384.0f) - quire_bits_of(16384.0f);
  }
  return (uint8_t)(sign | code);
}

/* e4m3 to bf16, exact: every e4m3 value is a normal bf16 or zero. */
static inline QUIRE_HOST_DEVICE uint16_t quire_e4m3_to_bf16(uint8_t x) {
  uint32_t sign = (uint32_t)(x & 0x80u) << 8;
  uint32_t magnitude = x & 0x7fu;
  uint32_t bits = (magnitude << 4) + (120u << 7);
  if (magnitude < 8u) { /* subnormal: magnitude * 2^-9 */
    bits = quire_bits_of((float)magnitude * 0x1p-9f) >> 16;
  }
  return (uint16_t)(sign | (magnitude == 0x7fu ? 0x7fc0u : bits));
}

static inline QUIRE_HOST_DEVICE float quire_e4m3_widen(uint8_t x) { return quire_bf16_widen(quire_e4m3_to_bf16(x)); }

/* Scale of a block where any is allowed (arithmetic.md 2). */
static inline QUIRE_HOST_DEVICE float quire_any_scale_of(float amax) {
  float least = 1e-4f;
  return (amax > least ? amax : least) * (1.0f / 448.0f);
}

/* Biased exponent of the ue8m0 scale for a block whose largest magnitude is amax (arithmetic.md 2). */
static inline QUIRE_HOST_DEVICE uint32_t quire_scale_exponent(float amax) {
  uint32_t bits = quire_bits_of(quire_any_scale_of(amax));
  return (bits >> 23) + ((bits & 0x7fffffu) != 0);
}

/* Smallest power of two that is at least max(amax, 1e-4) / 448. */
static inline QUIRE_HOST_DEVICE float quire_scale_of(float amax) {
  return quire_float_of(quire_scale_exponent(amax) << 23);
}

/* Its exact reciprocal. */
static inline QUIRE_HOST_DEVICE float quire_scale_inverse(float amax) {
  return quire_float_of((254u - quire_scale_exponent(amax)) << 23);
}

#define QUIRE_EXP_LOW (-87.0f)
#define QUIRE_EXP_HIGH 88.0f
#define QUIRE_EXP_MAGIC 0x1.8p23f
#define QUIRE_EXP_LOG2E 0x1.715476p+0f
#define QUIRE_EXP_LN2_HIGH 0x1.62e400p-1f
#define QUIRE_EXP_LN2_LOW 0x1.7f7d1cp-20f

/* e^x in f32 (arithmetic.md 4). */
static inline QUIRE_HOST_DEVICE float quire_exp(float x) {
  if (!(x >= QUIRE_EXP_LOW)) {
    return x < QUIRE_EXP_LOW ? 0.0f : x;
  }
  if (x > QUIRE_EXP_HIGH) {
    return quire_float_of(QUIRE_INF_BITS);
  }
  float t = QUIRE_FMA_F32(x, QUIRE_EXP_LOG2E, QUIRE_EXP_MAGIC);
  float n = t - QUIRE_EXP_MAGIC;
  float r = QUIRE_FMA_F32(n, -QUIRE_EXP_LN2_HIGH, x);
  r = QUIRE_FMA_F32(n, -QUIRE_EXP_LN2_LOW, r);
  float p = 1.0f / 5040.0f;
  p = QUIRE_FMA_F32(p, r, 1.0f / 720.0f);
  p = QUIRE_FMA_F32(p, r, 1.0f / 120.0f);
  p = QUIRE_FMA_F32(p, r, 1.0f / 24.0f);
  p = QUIRE_FMA_F32(p, r, 1.0f / 6.0f);
  p = QUIRE_FMA_F32(p, r, 0.5f);
  p = QUIRE_FMA_F32(p, r, 1.0f);
  p = QUIRE_FMA_F32(p, r, 1.0f);
  return quire_float_of(quire_bits_of(p) + ((quire_bits_of(t) - quire_bits_of(QUIRE_EXP_MAGIC)) << 23));
}

#define QUIRE_LN2_HIGH 0x1.62e42fefa3800p-1
#define QUIRE_LN2_LOW 0x1.ef35793c76730p-45

/* Natural logarithm in f64 of a positive normal number; 0 gives -inf (arithmetic.md 4). */
static inline QUIRE_HOST_DEVICE double quire_log(double x) {
  if (!(x > 0.0)) {
    return quire_double_of(x < 0.0 || x != x ? 0x7ff8000000000000ull : 0xfff0000000000000ull);
  }
  uint64_t bits = quire_bits64_of(x);
  if (bits >= 0x7ff0000000000000ull) {
    return x;
  }
  /* shift the cut from 1 to sqrt(1/2): m in [sqrt(1/2), sqrt(2)) */
  uint64_t shifted = bits - 0x3fe6a09e667f3bcdull;
  double e = (double)((int64_t)shifted >> 52);
  double m = quire_double_of(bits - (shifted & 0xfff0000000000000ull));
  double f = (m - 1.0) / (m + 1.0);
  double z = f * f;
  double p = 1.0 / 25.0;
  p = QUIRE_FMA_F64(p, z, 1.0 / 23.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 21.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 19.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 17.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 15.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 13.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 11.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 9.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 7.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 5.0);
  p = QUIRE_FMA_F64(p, z, 1.0 / 3.0);
  p = QUIRE_FMA_F64(p, z, 1.0);
  return QUIRE_FMA_F64(e, QUIRE_LN2_HIGH, QUIRE_FMA_F64(2.0 * f, p, e * QUIRE_LN2_LOW));
}

/* 1 / (1 + e^-x) */
static inline QUIRE_HOST_DEVICE float quire_sigmoid(float x) { return 1.0f / (1.0f + quire_exp(-x)); }

/* x / (1 + e^-x) */
static inline QUIRE_HOST_DEVICE float quire_silu(float x) { return x / (1.0f + quire_exp(-x)); }

/* A score as an integer that orders as scores do: larger is better, -0 equals +0, NaN equals -inf, nothing is 0
 * (arithmetic.md 9). */
static inline QUIRE_HOST_DEVICE uint32_t quire_score_key(float x) {
  uint32_t bits = quire_bits_of(x + 0.0f); /* -0 becomes +0 */
  uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (bits & 0x7fffffffu) > QUIRE_INF_BITS ? 0x007fffffu : key;
}

/* Philox4x32-10 (Salmon et al., SC 2011): four words of counter become four words of noise, in place. */
static inline QUIRE_HOST_DEVICE void quire_philox_block(uint32_t *c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xd2511f53u * c[0];
    uint64_t b = (uint64_t)0xcd9e8d57u * c[2];
    uint32_t c1 = c[1];
    uint32_t c3 = c[3];
    c[0] = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c[3] = (uint32_t)a;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
}

/* The uniform word of token id for (seed, position) (arithmetic.md 12). */
static inline QUIRE_HOST_DEVICE uint32_t quire_philox(uint64_t seed, int32_t position, int32_t id) {
  uint32_t c[4] = {(uint32_t)id >> 2, (uint32_t)position, 0u, 0x51756972u};
  quire_philox_block(c, (uint32_t)seed, (uint32_t)(seed >> 32));
  return c[id & 3];
}

#endif
