/* Widening e4m3 by looking bytes up, 64 at a time, where the processor can (AVX-512 VBMI): half the instructions of
 * computing them. A bf16 is two bytes; each has a table over the 128 magnitudes, and the sign goes into the upper one.
 * Internal to files compiled with AVX-512, but for the tables. Pure. */
#ifndef QUIRE_KERNELS_CPU_E4M3_AVX512_H
#define QUIRE_KERNELS_CPU_E4M3_AVX512_H

#include <stdbool.h>
#include <stdint.h>

extern const uint8_t quire_e4m3_high[128];
extern const uint8_t quire_e4m3_low[128];

#ifdef __AVX512F__
#include <immintrin.h>

/* A function that looks up; call it only where quire_e4m3_looks_up. */
#define QUIRE_LOOK_UP __attribute__((target("avx512vbmi")))

static inline bool quire_e4m3_looks_up(void) { return __builtin_cpu_supports("avx512vbmi"); }

struct quire_e4m3_tables {
  __m512i high0, high1, low0, low1;
};

QUIRE_LOOK_UP static inline struct quire_e4m3_tables quire_e4m3_tables(void) {
  struct quire_e4m3_tables t = {_mm512_loadu_si512(quire_e4m3_high), _mm512_loadu_si512(quire_e4m3_high + 64),
                                _mm512_loadu_si512(quire_e4m3_low), _mm512_loadu_si512(quire_e4m3_low + 64)};
  return t;
}

/* 64 codes to two registers of bf16, each of which takes eight codes of every quarter of v: the first, and the last. */
QUIRE_LOOK_UP static inline void quire_e4m3_quarters(struct quire_e4m3_tables t, __m512i v, __m512i *first_out,
                                                     __m512i *second_out) {
  __m512i high = _mm512_permutex2var_epi8(t.high0, v, t.high1); /* ignores the sign */
  __m512i low = _mm512_permutex2var_epi8(t.low0, v, t.low1);
  high = _mm512_ternarylogic_epi32(high, v, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (v & sign) */
  *first_out = _mm512_unpacklo_epi8(low, high);
  *second_out = _mm512_unpackhi_epi8(low, high);
}

/* 64 codes in memory to two registers of bf16, in their order: their eighths are dealt first. */
QUIRE_LOOK_UP static inline void quire_e4m3x64(struct quire_e4m3_tables t, const uint8_t *x, __m512i *first_out,
                                               __m512i *second_out) {
  const __m512i deal = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  quire_e4m3_quarters(t, _mm512_permutexvar_epi64(deal, _mm512_loadu_si512(x)), first_out, second_out);
}
#endif

#endif
