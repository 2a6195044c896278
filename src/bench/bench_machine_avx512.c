/* The machine's limits in AVX-512, for the table of kernels of that name. */
#include <immintrin.h>

#include "bench/bench_machine.h"

#define PIECE 512
#define DOT_CHAINS 16

static void dot(int64_t loops) {
  __m512 acc[DOT_CHAINS];
  __m512i x = _mm512_set1_epi32(0x3f003f00), y = _mm512_set1_epi32(0x3e803e80);
  for (int i = 0; i < DOT_CHAINS; i++) {
    acc[i] = _mm512_setzero_ps();
  }
  for (int64_t n = 0; n < loops; n++) {
#pragma GCC unroll 16
    for (int i = 0; i < DOT_CHAINS; i++) {
      acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)y);
    }
    __asm__ volatile("" : "+v"(x), "+v"(y));
  }
  for (int i = 0; i < DOT_CHAINS; i++) {
    __asm__ volatile("" : : "v"(acc[i]));
  }
}

static void read_wide(const void *from, size_t bytes) {
  const uint8_t *at = from;
  for (size_t i = 0; i < bytes; i += PIECE) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < PIECE / 64; j++) {
      sum = _mm512_or_si512(sum, _mm512_loadu_si512(at + i + 64 * j));
    }
    __asm__ volatile("" : : "v"(sum));
  }
}

static void copy_wide(void *to, const void *from, size_t bytes) {
  const uint8_t *source = from;
  uint8_t *target = to;
  for (size_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512((__m512i *)(void *)(target + i), _mm512_loadu_si512(source + i));
  }
  _mm_sfence();
}

static float largest(const float *from, size_t count) {
  __m512 a = _mm512_set1_ps(-3e38f), b = a, c = a, d = a;
  for (size_t i = 0; i < count; i += 64) {
    a = _mm512_max_ps(a, _mm512_loadu_ps(from + i));
    b = _mm512_max_ps(b, _mm512_loadu_ps(from + i + 16));
    c = _mm512_max_ps(c, _mm512_loadu_ps(from + i + 32));
    d = _mm512_max_ps(d, _mm512_loadu_ps(from + i + 48));
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

const struct bench_isa bench_isa_avx512 = {
    .name = "avx512",
    .dot_name = "vdpbf16ps in registers",
    .dot_operations = DOT_CHAINS * 64.0,
    .dot = dot,
    .read = read_wide,
    .copy = copy_wide,
    .largest = largest,
};
