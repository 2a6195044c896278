/* What the AVX-512 kernels share beyond lanes.h. Internal to files compiled with AVX-512. Pure. */
#ifndef QUIRE_KERNELS_CPU_LANES_AVX512_H
#define QUIRE_KERNELS_CPU_LANES_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/lanes.h"

/* 32 e4m3 to bf16 (quire_e4m3_to_bf16): shift and rebias; the eight subnormal magnitudes and NaN come from tables. */
QUIRE_INLINE __m512i quire_e4m3x32(const uint8_t *x) {
  /* bf16 of 0, 1, ... 7 times 2^-9 */
  const __m512i tiny =
      _mm512_broadcast_i32x4(_mm_setr_epi16(0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  __m512i v = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)x));
  __m512i magnitude = _mm512_and_si512(v, _mm512_set1_epi16(0x7f));
  __m512i sign = _mm512_slli_epi16(_mm512_andnot_si512(_mm512_set1_epi16(0x7f), v), 8);
  __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  __mmask32 is_tiny = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
  __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
  bits = _mm512_mask_permutexvar_epi16(bits, is_tiny, magnitude, tiny);
  bits = _mm512_mask_mov_epi16(bits, is_nan, _mm512_set1_epi16(0x7fc0));
  return _mm512_or_si512(bits, sign);
}

/* 16 f32 to bf16 (quire_bf16_round): the instruction, which rounds and flushes just so. */
QUIRE_INLINE __m256i quire_bf16x16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

/* Rows of 16 u32 to columns. */
QUIRE_INLINE void quire_transpose16(__m512i *v) {
  __m512i t[16];
  QUIRE_UNROLL
  for (int i = 0; i < 16; i += 2) { /* pairs of rows: u32 of both side by side */
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  QUIRE_UNROLL
  for (int i = 0; i < 16; i++) { /* four rows: v[4g + j], quarter q = column 4q + j of rows 4g .. 4g + 3 */
    int from = i / 4 * 4 + i % 4 / 2;
    v[i] = i % 2 == 0 ? _mm512_unpacklo_epi64(t[from], t[from + 2]) : _mm512_unpackhi_epi64(t[from], t[from + 2]);
  }
  QUIRE_UNROLL
  for (int i = 0; i < 8; i++) { /* quarters 0, 1 or 2, 3 of two groups of rows */
    int column = i % 4;
    int group = i / 4 * 8;
    t[2 * i] = _mm512_shuffle_i32x4(v[group + column], v[group + 4 + column], 0x88);
    t[2 * i + 1] = _mm512_shuffle_i32x4(v[group + column], v[group + 4 + column], 0xdd);
  }
  /* t[2c] of rows 0..7: columns c, 8 + c; t[2c + 1]: columns 4 + c, 12 + c; t[8 + ...] the same of rows 8..15 */
  QUIRE_UNROLL
  for (int c = 0; c < 4; c++) {
    v[c] = _mm512_shuffle_i32x4(t[2 * c], t[8 + 2 * c], 0x88);
    v[8 + c] = _mm512_shuffle_i32x4(t[2 * c], t[8 + 2 * c], 0xdd);
    v[4 + c] = _mm512_shuffle_i32x4(t[2 * c + 1], t[8 + 2 * c + 1], 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(t[2 * c + 1], t[8 + 2 * c + 1], 0xdd);
  }
}

/* 8 rows of 8 u32 in memory, `ld` bytes apart, on the way to columns: half of quire_transpose16 with its first level
 * done by loads that bring halves of two rows together. Quarters of half[c]: column c, then c + 4 of rows 0-3, then
 * both of rows 4-7. */
QUIRE_INLINE void quire_transpose8_rows(const uint8_t *rows, int64_t ld, __m512i *half) {
  __m512i a[4], t[4];
  QUIRE_UNROLL
  for (int j = 0; j < 4; j++) { /* j and j + 4 share a register */
    const uint8_t *row = rows + j * ld;
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)row);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(row + 4 * ld));
    a[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  t[0] = _mm512_unpacklo_epi32(a[0], a[1]);
  t[1] = _mm512_unpackhi_epi32(a[0], a[1]);
  t[2] = _mm512_unpacklo_epi32(a[2], a[3]);
  t[3] = _mm512_unpackhi_epi32(a[2], a[3]);
  half[0] = _mm512_unpacklo_epi64(t[0], t[2]);
  half[1] = _mm512_unpackhi_epi64(t[0], t[2]);
  half[2] = _mm512_unpacklo_epi64(t[1], t[3]);
  half[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

/* Column c of 16 rows of 8 u32, from the halves of rows 0-7 and 8-15. */
QUIRE_INLINE __m512i quire_transposed_column(const __m512i *first, const __m512i *second, int c) {
  return c < 4 ? _mm512_shuffle_i32x4(first[c], second[c], 0x88)
               : _mm512_shuffle_i32x4(first[c - 4], second[c - 4], 0xdd);
}

/* Columns of 16 rows of 16 u32 in memory, `ld` bytes apart. column[c] holds rows 0 to 15. */
QUIRE_INLINE void quire_transpose16_rows(const uint8_t *rows, int64_t ld, __m512i *column) {
  QUIRE_UNROLL
  for (int side = 0; side < 2; side++) { /* of the columns */
    __m512i half[2][4];
    quire_transpose8_rows(rows + side * 32, ld, half[0]);
    quire_transpose8_rows(rows + side * 32 + 8 * ld, ld, half[1]);
    QUIRE_UNROLL
    for (int c = 0; c < 8; c++) {
      column[8 * side + c] = quire_transposed_column(half[0], half[1], c);
    }
  }
}

#endif
