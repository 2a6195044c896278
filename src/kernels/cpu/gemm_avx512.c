/* AVX-512 tiles of the matrix product: 16 accumulators of 16 lanes in registers, folded together.
 *
 * The fold is a transposition that adds at each level: two registers of partial sums become one that holds half as
 * many lanes of both, by the tree of arithmetic.md 1.1, until one register holds the 16 sums. */
#include <immintrin.h>

#include "kernels/cpu/e4m3_avx512.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_packed.h"
#include "kernels/cpu/gemm_panel.h"
#include "kernels/cpu/gemm_prepacked.h"
#include "kernels/cpu/lanes_avx512.h"

/* Level h = 8: lanes i + i+8; a in the low half, b in the high. */
QUIRE_INLINE __m512 fold_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Level h = 4: quarters (a, a, b, b) and (c, c, d, d) to (a, b, c, d). */
QUIRE_INLINE __m512 fold_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* Levels h = 2 and 1, within each quarter. */
QUIRE_INLINE __m512 fold_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

QUIRE_INLINE __m512 fold_single(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Four registers to one: quarter q of the result holds, in its low element, ... of input q; see fold16. */
QUIRE_INLINE __m512 fold4(__m512 a, __m512 b, __m512 c, __m512 d) {
  return fold_quarters(fold_halves(a, b), fold_halves(c, d));
}

/* acc[4q + e] folds into element 4q + e: inputs of a fold4 are dealt so that quarter q holds acc[4q ...]. */
QUIRE_INLINE __m512 fold16(const __m512 *acc) {
  __m512 e0 = fold4(acc[0], acc[4], acc[8], acc[12]);
  __m512 e1 = fold4(acc[1], acc[5], acc[9], acc[13]);
  __m512 e2 = fold4(acc[2], acc[6], acc[10], acc[14]);
  __m512 e3 = fold4(acc[3], acc[7], acc[11], acc[15]);
  return fold_single(fold_pairs(e0, e1), fold_pairs(e2, e3));
}

QUIRE_INLINE void out_write(float *out, int64_t ld, int rows, __m512 sums) {
  if (rows == 4) {
    _mm_storeu_ps(out, _mm512_extractf32x4_ps(sums, 0));
    _mm_storeu_ps(out + ld, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(out + 2 * ld, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(out + 3 * ld, _mm512_extractf32x4_ps(sums, 3));
  } else if (rows == 2) {
    _mm256_storeu_ps(out, _mm512_extractf32x8_ps(sums, 0));
    _mm256_storeu_ps(out + ld, _mm512_extractf32x8_ps(sums, 1));
  } else {
    _mm512_storeu_ps(out, sums);
  }
}

/* Operands of some columns of a tile, distances in bytes. */
struct corner {
  const uint8_t *x;
  const uint8_t *w;
  int64_t x_ld;
  int64_t w_ld;
  int rows;
  int columns;
  const uint8_t *ask_w; /* wanted soon: a line each STRIP_TILES steps, and one each step; NULL: nothing */
  const uint8_t *ask_x;
};

QUIRE_INLINE struct corner corner_of(const struct quire_gemm_tile *t, bool bf16, int rows, int column, int columns) {
  int64_t bytes = bf16 ? 2 : 4;
  struct corner c = {
      t->x, (const uint8_t *)t->w + column * t->w_ld * bytes, t->x_ld * bytes, t->w_ld * bytes, rows, columns, NULL,
      NULL};
  return c;
}

#define STRIP_COLUMNS 4
#define STRIP_TILES (QUIRE_GEMM_COLUMNS / STRIP_COLUMNS)
/* Bytes [begin, end) of the operand rows into acc[row * columns + column]; one step is 64 bytes of either type. One
 * flat loop of constant bounds over registers: the compilers unroll it and share the loads. */
QUIRE_INLINE void steps(struct corner at, bool bf16, __m512 *acc, int64_t begin, int64_t end) {
  for (int64_t byte = begin; byte < end; byte += 64) {
    if (at.ask_w != NULL) {
      _mm_prefetch((const char *)at.ask_w + byte / STRIP_TILES, _MM_HINT_T0);
      _mm_prefetch((const char *)at.ask_x + byte, _MM_HINT_T0);
    }
    QUIRE_UNROLL
    for (int i = 0; i < QUIRE_GEMM_OUTPUTS; i++) {
      if (i < at.rows * at.columns) {
        int r = i % at.rows;
        int c = i / at.rows;
        int j = r * at.columns + c;
        __m512i xv = _mm512_loadu_si512(at.x + r * at.x_ld + byte);
        __m512i wv = _mm512_loadu_si512(at.w + c * at.w_ld + byte);
        if (bf16) {
          acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)xv, (__m512bh)wv);
        } else {
          acc[j] = _mm512_fmadd_ps(_mm512_castsi512_ps(xv), _mm512_castsi512_ps(wv), acc[j]);
        }
      }
    }
  }
}

/* What a chunk of k does with lanes. */
enum lanes_way { LANES_ONCE, LANES_FIRST, LANES_NEXT, LANES_LAST };

QUIRE_INLINE enum lanes_way way_of(const struct quire_gemm_tile *t) {
  return t->first ? (t->last ? LANES_ONCE : LANES_FIRST) : t->last ? LANES_LAST : LANES_NEXT;
}

QUIRE_INLINE void tile_plain(const struct quire_gemm_tile *t, struct corner at, bool bf16, enum lanes_way way) {
  __m512 acc[QUIRE_GEMM_OUTPUTS];
  QUIRE_UNROLL
  for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
    bool fresh = way == LANES_ONCE || way == LANES_FIRST;
    acc[j] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(t->lanes + j * QUIRE_GEMM_LANES);
  }
  steps(at, bf16, acc, 0, (int64_t)t->k * (bf16 ? 2 : 4));
  if (way == LANES_ONCE || way == LANES_LAST) {
    out_write(t->out, t->out_ld, at.rows, fold16(acc));
    return;
  }
  QUIRE_UNROLL
  for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
    _mm512_store_ps(t->lanes + j * QUIRE_GEMM_LANES, acc[j]);
  }
}

#define HALF (QUIRE_GEMM_OUTPUTS / 2)

/* Block-scaled, half of the tile's columns: the lanes of the product and those of a block are both in registers. */
QUIRE_INLINE void half_scaled(const struct quire_gemm_tile *t, bool bf16, int rows, int half) {
  const int columns = HALF / rows;
  const int64_t bytes = bf16 ? 2 : 4;
  const int64_t k = t->k * bytes;
  struct corner at = corner_of(t, bf16, rows, half * columns, columns);
  __m512 sum[HALF];
  __m512 block[QUIRE_GEMM_OUTPUTS];
  QUIRE_UNROLL
  for (int j = 0; j < HALF; j++) {
    const float *lanes = t->lanes + (j / columns * 2 * columns + half * columns + j % columns) * QUIRE_GEMM_LANES;
    sum[j] = t->first ? _mm512_setzero_ps() : _mm512_load_ps(lanes);
  }
  for (int64_t begin = 0; begin < k; begin += QUIRE_FP8_BLOCK * bytes) {
    int64_t end = begin + QUIRE_FP8_BLOCK * bytes < k ? begin + QUIRE_FP8_BLOCK * bytes : k;
    __m512 scale = _mm512_set1_ps(t->scale[begin / (QUIRE_FP8_BLOCK * bytes)]);
    QUIRE_UNROLL
    for (int j = 0; j < HALF; j++) {
      block[j] = _mm512_setzero_ps();
    }
    steps(at, bf16, block, begin, end);
    QUIRE_UNROLL
    for (int j = 0; j < HALF; j++) {
      sum[j] = _mm512_fmadd_ps(scale, block[j], sum[j]);
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < HALF; j++) {
    float *lanes = t->lanes + (j / columns * 2 * columns + half * columns + j % columns) * QUIRE_GEMM_LANES;
    _mm512_store_ps(lanes, sum[j]);
  }
}

QUIRE_INLINE void tile_scaled(const struct quire_gemm_tile *t, bool bf16, int rows) {
  half_scaled(t, bf16, rows, 0);
  half_scaled(t, bf16, rows, 1);
  if (t->last) {
    __m512 acc[QUIRE_GEMM_OUTPUTS];
    QUIRE_UNROLL
    for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
      acc[j] = _mm512_load_ps(t->lanes + j * QUIRE_GEMM_LANES);
    }
    out_write(t->out, t->out_ld, rows, fold16(acc));
  }
}

QUIRE_INLINE void tile_rows(const struct quire_gemm_tile *t, bool bf16, int rows) {
  struct corner at = corner_of(t, bf16, rows, 0, QUIRE_GEMM_OUTPUTS / rows);
  if (t->scale != NULL) {
    tile_scaled(t, bf16, rows);
    return;
  }
  switch (way_of(t)) {
  case LANES_ONCE:
    tile_plain(t, at, bf16, LANES_ONCE);
    break;
  case LANES_FIRST:
    tile_plain(t, at, bf16, LANES_FIRST);
    break;
  case LANES_NEXT:
    tile_plain(t, at, bf16, LANES_NEXT);
    break;
  case LANES_LAST:
    tile_plain(t, at, bf16, LANES_LAST);
    break;
  }
}

QUIRE_INLINE void tile(const struct quire_gemm_tile *t, bool bf16) {
  if (t->rows == 4) {
    tile_rows(t, bf16, 4);
  } else if (t->rows == 2) {
    tile_rows(t, bf16, 2);
  } else {
    tile_rows(t, bf16, 1);
  }
}

static void tile_bf16(const struct quire_gemm_tile *t) { tile(t, true); }

/* Each tile asks for its share of what is wanted, a line every few steps: asked for all at once, it would be in the
 * way of what the tiles themselves miss. */
QUIRE_INLINE void strip_way(const struct quire_gemm_tile *t, enum lanes_way way) {
  struct quire_gemm_tile at = *t;
  for (int tile = 0; tile < STRIP_TILES; tile++) {
    struct corner corner = corner_of(&at, true, QUIRE_GEMM_OUTPUTS / STRIP_COLUMNS, 0, STRIP_COLUMNS);
    corner.ask_w = t->ask_w == NULL ? corner.w : t->ask_w + (int64_t)tile * t->k * 2 / STRIP_TILES;
    corner.ask_x = t->ask_x == NULL ? corner.w : t->ask_x + tile * corner.x_ld;
    tile_plain(&at, corner, true, way);
    at.w = (const uint16_t *)at.w + STRIP_COLUMNS * at.w_ld;
    at.lanes += QUIRE_GEMM_OUTPUTS * QUIRE_GEMM_LANES;
    at.out += STRIP_COLUMNS;
  }
}

static void strip_bf16(const struct quire_gemm_tile *t) {
  switch (way_of(t)) {
  case LANES_ONCE:
    strip_way(t, LANES_ONCE);
    break;
  case LANES_FIRST:
    strip_way(t, LANES_FIRST);
    break;
  case LANES_NEXT:
    strip_way(t, LANES_NEXT);
    break;
  case LANES_LAST:
    strip_way(t, LANES_LAST);
    break;
  }
}

static void tile_f32(const struct quire_gemm_tile *t) { tile(t, false); }

/* Returns how many were done. */
QUIRE_LOOK_UP static int64_t e4m3_looked_up(const uint8_t *x, uint16_t *y, int64_t n) {
  struct quire_e4m3_tables tables = quire_e4m3_tables();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512i first, second;
    quire_e4m3x64(tables, x + i, &first, &second);
    _mm512_storeu_si512(y + i, first);
    _mm512_storeu_si512(y + i + 32, second);
  }
  return i;
}

/* --- few rows --- */

/* A pass reads some columns of W side by side, a line of each at a time, and asks for the columns after them one line
 * behind another, as they lie in memory: that is nearly twice as fast as asking for the same place of each. Where
 * columns are short it looks several passes ahead. */
QUIRE_INLINE int64_t ahead_bytes(int64_t pass) { return (QUIRE_GEMM_AHEAD + pass - 1) / pass * pass; }

#define ROW_COLUMNS 4 /* of bf16 in a pass */

/* rows x ROW_COLUMNS sums, acc[r * stride + c]. */
QUIRE_INLINE void row_pass(const struct quire_gemm_row *r, int rows, const uint8_t *w, int stride, __m512 *acc) {
  const int64_t ld = r->w_ld * 2;
  const uint8_t *next = w + ahead_bytes(ROW_COLUMNS * ld);
  __m512 sum[QUIRE_GEMM_OUTPUTS];
  QUIRE_UNROLL
  for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
    sum[j] = _mm512_setzero_ps();
  }
  for (int64_t byte = 0; byte < r->k * 2; byte += CACHE_LINE) {
    QUIRE_UNROLL
    for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
      if (j < rows * ROW_COLUMNS) {
        __m512i wv = _mm512_loadu_si512(w + j % ROW_COLUMNS * ld + byte);
        __m512i xv = _mm512_loadu_si512((const uint8_t *)(r->x + j / ROW_COLUMNS * r->x_ld) + byte);
        sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)xv, (__m512bh)wv);
      }
    }
    QUIRE_UNROLL
    for (int c = 0; c < ROW_COLUMNS; c++) {
      _mm_prefetch((const char *)(next + byte * ROW_COLUMNS + c * CACHE_LINE), _MM_HINT_T0);
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
    if (j < rows * ROW_COLUMNS) {
      acc[j / ROW_COLUMNS * stride + j % ROW_COLUMNS] = sum[j];
    }
  }
}

#define SHORT_K 512 /* columns of bf16 up to here are read one behind another */

/* One row, 16 short columns in the order of memory: where columns are few lines long, several side by side cost a third
 * of the bandwidth. Their chains of sums run beside one another all the same. */
QUIRE_INLINE void row_short(const struct quire_gemm_row *r) {
  __m512 acc[QUIRE_GEMM_OUTPUTS];
  QUIRE_UNROLL
  for (int c = 0; c < QUIRE_GEMM_OUTPUTS; c++) {
    const uint8_t *w = (const uint8_t *)r->w + c * r->w_ld * 2;
    acc[c] = _mm512_setzero_ps();
    for (int64_t byte = 0; byte < r->k * 2; byte += 2 * CACHE_LINE) {
      QUIRE_UNROLL
      for (int64_t line = byte; line < byte + 2 * CACHE_LINE; line += CACHE_LINE) {
        __m512i wv = _mm512_loadu_si512(w + line);
        __m512i xv = _mm512_loadu_si512((const uint8_t *)r->x + line);
        _mm_prefetch((const char *)(w + QUIRE_GEMM_AHEAD + line), _MM_HINT_T0);
        acc[c] = _mm512_dpbf16_ps(acc[c], (__m512bh)xv, (__m512bh)wv);
      }
    }
  }
  out_write(r->out, QUIRE_GEMM_COLUMNS, 1, fold16(acc));
}

/* rows x 16 columns: as many passes as fill one fold, and as many folds. */
QUIRE_INLINE void row_bf16(const struct quire_gemm_row *r, int rows) {
  const int columns = QUIRE_GEMM_OUTPUTS / rows; /* of a fold */
  for (int column = 0; column < QUIRE_GEMM_COLUMNS; column += columns) {
    __m512 acc[QUIRE_GEMM_OUTPUTS];
    QUIRE_UNROLL
    for (int c = 0; c < columns; c += ROW_COLUMNS) {
      row_pass(r, rows, (const uint8_t *)r->w + (column + c) * r->w_ld * 2, columns, acc + c);
    }
    out_write(r->out + column, QUIRE_GEMM_COLUMNS, rows, fold16(acc));
  }
}

#define CODE_COLUMNS 2 /* of fp8 in a pass: their sums and blocks, and the tables, are all in registers */

/* The lanes of CODE_COLUMNS columns. */
QUIRE_LOOK_UP static inline void code_pass(const struct quire_gemm_row *r, const uint8_t *w, __m512 *sum) {
  struct quire_e4m3_tables tables = quire_e4m3_tables();
  const uint8_t *next = w + ahead_bytes(CODE_COLUMNS * r->w_ld);
  QUIRE_UNROLL
  for (int c = 0; c < CODE_COLUMNS; c++) {
    sum[c] = _mm512_setzero_ps();
  }
  for (int64_t begin = 0; begin < r->k; begin += QUIRE_FP8_BLOCK) {
    int64_t end = begin + QUIRE_FP8_BLOCK < r->k ? begin + QUIRE_FP8_BLOCK : r->k;
    __m512 scale = _mm512_set1_ps(r->scale[begin / QUIRE_FP8_BLOCK]);
    __m512 block[CODE_COLUMNS];
    QUIRE_UNROLL
    for (int c = 0; c < CODE_COLUMNS; c++) {
      block[c] = _mm512_setzero_ps();
    }
    for (int64_t at = begin; at < end; at += QUIRE_GEMM_ROW_STEP) {
      __m512i x0 = _mm512_loadu_si512(r->x + at);
      __m512i x1 = _mm512_loadu_si512(r->x + at + QUIRE_GEMM_ROW_STEP / 2);
      QUIRE_UNROLL
      for (int c = 0; c < CODE_COLUMNS; c++) {
        __m512i first, second;
        _mm_prefetch((const char *)(next + at * CODE_COLUMNS + c * CACHE_LINE), _MM_HINT_T0);
        quire_e4m3x64(tables, w + c * r->w_ld + at, &first, &second);
        block[c] = _mm512_dpbf16_ps(block[c], (__m512bh)x0, (__m512bh)first);
        block[c] = _mm512_dpbf16_ps(block[c], (__m512bh)x1, (__m512bh)second);
      }
    }
    QUIRE_UNROLL
    for (int c = 0; c < CODE_COLUMNS; c++) {
      sum[c] = _mm512_fmadd_ps(scale, block[c], sum[c]);
    }
  }
}

QUIRE_LOOK_UP static void row_codes(const struct quire_gemm_row *r) {
  const uint8_t *w = r->w;
  __m512 sum[QUIRE_GEMM_OUTPUTS];
  for (int column = 0; column < QUIRE_GEMM_COLUMNS; column += CODE_COLUMNS) {
    code_pass(r, w + column * r->w_ld, sum + column);
  }
  out_write(r->out, QUIRE_GEMM_COLUMNS, 1, fold16(sum));
}

static bool row(const struct quire_gemm_row *r) {
  if (r->scale != NULL) {
    if (!quire_e4m3_looks_up()) {
      return false;
    }
    row_codes(r);
  } else if (r->rows == 4) {
    row_bf16(r, 4);
  } else if (r->rows == 2) {
    row_bf16(r, 2);
  } else if (r->k <= SHORT_K) {
    row_short(r);
  } else {
    row_bf16(r, 1);
  }
  return true;
}

static void e4m3_to_bf16(const uint8_t *x, uint16_t *y, int64_t n) {
  int64_t i = quire_e4m3_looks_up() ? e4m3_looked_up(x, y, n) : 0;
  for (; i + 32 <= n; i += 32) {
    _mm512_storeu_si512(y + i, quire_e4m3x32(x + i));
  }
  for (; i < n; i++) {
    y[i] = quire_e4m3_to_bf16(x[i]);
  }
}

static void e4m3_to_f32(const uint8_t *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m512i v = quire_e4m3x32(x + i);
    __m512i low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16);
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16);
    _mm512_storeu_si512(y + i, low);
    _mm512_storeu_si512(y + i + 16, high);
  }
  for (; i < n; i++) {
    y[i] = quire_e4m3_widen(x[i]);
  }
}

const struct quire_gemm_isa quire_gemm_isa_avx512 = {
    .panel = &quire_panel_isa_avx512,
    .packed = &quire_packed_isa_avx512,
    .prepacked = &quire_prepacked_isa_avx512,
    .row = row,
    .tile_bf16 = tile_bf16,
    .tile_f32 = tile_f32,
    .strip_bf16 = strip_bf16,
    .e4m3_to_bf16 = e4m3_to_bf16,
    .e4m3_to_f32 = e4m3_to_f32,
};
