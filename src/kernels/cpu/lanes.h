/* Sixteen lanes in plain C, the way arithmetic.md 1.1 writes sums. Two vectors of eight, in the compilers' vector
 * extension, because that is what AVX2 registers hold; the compiler turns each operation into one instruction.
 * Internal to the cpu kernels. Pure. */
#ifndef QUIRE_KERNELS_CPU_LANES_H
#define QUIRE_KERNELS_CPU_LANES_H

#include <stdint.h>
#include <string.h>

#include "kernels/number.h"

#define LANES 16
#define CACHE_LINE 64 /* bytes of what a prefetch brings; a vector of AVX-512 is one, too */

#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("unroll")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 16")
#endif
#define QUIRE_INLINE static inline __attribute__((always_inline))

typedef float quire_f8 __attribute__((vector_size(32)));
typedef uint32_t quire_u8 __attribute__((vector_size(32)));
typedef int32_t quire_i8 __attribute__((vector_size(32)));
typedef uint16_t quire_h8 __attribute__((vector_size(16)));
typedef uint16_t quire_h16 __attribute__((vector_size(32)));
typedef uint8_t quire_b16 __attribute__((vector_size(16)));

struct quire_lanes {
  quire_f8 low;
  quire_f8 high;
};

QUIRE_INLINE quire_f8 f8_load(const float *p) {
  quire_f8 v;
  memcpy(&v, p, sizeof v);
  return v;
}

QUIRE_INLINE void f8_store(float *p, quire_f8 v) { memcpy(p, &v, sizeof v); }

QUIRE_INLINE quire_f8 f8_all(float x) {
  quire_f8 v = {x, x, x, x, x, x, x, x};
  return v;
}

QUIRE_INLINE quire_f8 f8_fma(quire_f8 a, quire_f8 b, quire_f8 c) {
  quire_f8 r = c; /* overwritten; spares a warning where sanitizers keep the loop */
  QUIRE_UNROLL
  for (int i = 0; i < 8; i++) {
    r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  }
  return r;
}

QUIRE_INLINE quire_u8 u8_of(quire_f8 v) { return (quire_u8)v; }

/* mask ? a : b, lane by lane; lanes of mask are 0 or all ones. */
QUIRE_INLINE quire_f8 f8_choose(quire_i8 mask, quire_f8 a, quire_f8 b) {
  return (quire_f8)((mask & (quire_i8)a) | (~mask & (quire_i8)b));
}

/* max as arithmetic.md 1 writes it: b > a ? b : a. */
QUIRE_INLINE quire_f8 f8_max(quire_f8 a, quire_f8 b) { return f8_choose(b > a, b, a); }

/* quire_exp on eight lanes. */
QUIRE_INLINE quire_f8 f8_exp(quire_f8 x) {
  quire_f8 t = f8_fma(x, f8_all(QUIRE_EXP_LOG2E), f8_all(QUIRE_EXP_MAGIC));
  quire_f8 n = t - QUIRE_EXP_MAGIC;
  quire_f8 r = f8_fma(n, f8_all(-QUIRE_EXP_LN2_HIGH), x);
  r = f8_fma(n, f8_all(-QUIRE_EXP_LN2_LOW), r);
  quire_f8 p = f8_all(1.0f / 5040.0f);
  p = f8_fma(p, r, f8_all(1.0f / 720.0f));
  p = f8_fma(p, r, f8_all(1.0f / 120.0f));
  p = f8_fma(p, r, f8_all(1.0f / 24.0f));
  p = f8_fma(p, r, f8_all(1.0f / 6.0f));
  p = f8_fma(p, r, f8_all(0.5f));
  p = f8_fma(p, r, f8_all(1.0f));
  p = f8_fma(p, r, f8_all(1.0f));
  quire_u8 shift = (u8_of(t) - 0x4b400000u) << 23; /* bits of QUIRE_EXP_MAGIC */
  quire_f8 y = (quire_f8)(u8_of(p) + shift);
  y = f8_choose(x < QUIRE_EXP_LOW, f8_all(0.0f), y);
  y = f8_choose(x > QUIRE_EXP_HIGH, f8_all(quire_float_of(QUIRE_INF_BITS)), y);
  return f8_choose(x != x, x, y);
}

/* The tree of arithmetic.md 1.1. */
QUIRE_INLINE float lanes_fold(struct quire_lanes l) {
  quire_f8 s = l.low + l.high;
  float a = s[0] + s[4], b = s[1] + s[5], c = s[2] + s[6], d = s[3] + s[7];
  float e = a + c, f = b + d;
  return e + f;
}

QUIRE_INLINE struct quire_lanes lanes_zero(void) {
  struct quire_lanes l = {f8_all(0.0f), f8_all(0.0f)};
  return l;
}

/* Up to 16 values, zero padded. */
QUIRE_INLINE struct quire_lanes lanes_load(const float *p, int64_t count) {
  struct quire_lanes l;
  if (count >= LANES) {
    l.low = f8_load(p);
    l.high = f8_load(p + 8);
    return l;
  }
  float padded[LANES] = {0};
  for (int64_t i = 0; i < count; i++) {
    padded[i] = p[i];
  }
  l.low = f8_load(padded);
  l.high = f8_load(padded + 8);
  return l;
}

/* Sum of n values in lanes (arithmetic.md 5). */
static inline float lanes_sum(const float *x, int64_t n) {
  struct quire_lanes s = lanes_zero();
  for (int64_t i = 0; i < n; i += LANES) {
    struct quire_lanes v = lanes_load(x + i, n - i);
    s.low = s.low + v.low;
    s.high = s.high + v.high;
  }
  return lanes_fold(s);
}

/* f32 dot of x with itself (arithmetic.md 3). */
static inline float lanes_square(const float *x, int64_t n) {
  struct quire_lanes s = lanes_zero();
  for (int64_t i = 0; i < n; i += LANES) {
    struct quire_lanes v = lanes_load(x + i, n - i);
    s.low = f8_fma(v.low, v.low, s.low);
    s.high = f8_fma(v.high, v.high, s.high);
  }
  return lanes_fold(s);
}

/* quire_e4m3_to_bf16 on sixteen codes. */
QUIRE_INLINE quire_h16 h16_of_e4m3(const uint8_t *x) {
  quire_b16 codes;
  memcpy(&codes, x, sizeof codes);
  quire_h16 v = __builtin_convertvector(codes, quire_h16);
  quire_h16 magnitude = v & 0x7f;
  quire_h16 bits = (magnitude << 4) + (120 << 7);
  /* subnormals: m * 2^-9 for m = 4..7, 2..3, 1, 0 */
  quire_h16 mask = (quire_h16)(magnitude < 8);
  bits = (mask & ((magnitude << 5) + 0x3b80)) | (~mask & bits);
  mask = (quire_h16)(magnitude < 4);
  bits = (mask & ((magnitude << 6) + 0x3b00)) | (~mask & bits);
  mask = (quire_h16)(magnitude < 2);
  bits = (mask & (magnitude * 0x3b00)) | (~mask & bits);
  mask = (quire_h16)(magnitude == 0x7f);
  bits = (mask & 0x7fc0) | (~mask & bits);
  return bits | ((v & 0x80) << 8);
}

QUIRE_INLINE quire_f8 f8_of_bf16(const uint16_t *x) {
  quire_h8 v;
  memcpy(&v, x, sizeof v);
  return (quire_f8)(__builtin_convertvector(v, quire_u8) << 16);
}

/* Rounds n values to bf16. */
static inline void lanes_to_bf16(const float *x, uint16_t *y, int64_t n) {
  int64_t whole = n & ~(int64_t)7;
  for (int64_t i = 0; i < whole; i += 8) {
    quire_u8 bits = u8_of(f8_load(x + i));
    quire_u8 magnitude = bits & 0x7fffffffu;
    quire_u8 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    quire_u8 nan = (quire_u8)(magnitude > QUIRE_INF_BITS);
    quire_u8 tiny = (quire_u8)(magnitude < 0x00800000u);
    quire_u8 quieted = (bits >> 16) | 0x40u;
    quire_u8 zero = (bits >> 16) & 0x8000u;
    rounded = (nan & quieted) | (~nan & rounded);
    rounded = (tiny & zero) | (~tiny & rounded);
    quire_h8 narrow = __builtin_convertvector(rounded, quire_h8);
    memcpy(y + i, &narrow, sizeof narrow);
  }
  for (int64_t i = whole; i < n; i++) {
    y[i] = quire_bf16_round(x[i]);
  }
}

#endif
