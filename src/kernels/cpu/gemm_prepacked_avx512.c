/* AVX-512 of weights packed at load. */
#include "kernels/cpu/gemm_prepacked.h"

#include <assert.h>
#include <immintrin.h>

#include "base/assert.h"
#include "kernels/cpu/e4m3_avx512.h"
#include "kernels/cpu/lanes_avx512.h"

#define STEP_BYTES 64
#define VECTORS (QUIRE_PACKED_COLUMNS / 16)
#define AHEAD 8192        /* bytes of W that a row alone asks for ahead */
#define AHEAD_CODES 10240 /* of fp8 that no team shares; of a share the first AHEAD have been asked for */
#define BLOCK_STEPS (QUIRE_FP8_BLOCK / 32)
#define HELD_STEPS 4 /* of two lanes of 32 columns: half of the registers */

/* --- packing --- */

/* 16 columns of two steps of fp8, side by side with the 16 after them, into a panel. */
static void pack_codes(const uint8_t *from, int64_t ld, int64_t step, int64_t lane_stride, uint16_t *panel) {
  const __m512i deal = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  __m512i first[16], second[16];
  quire_transpose16_rows(from, ld, first);
  quire_transpose16_rows(from + 16 * ld, ld, second);
  QUIRE_UNROLL
  for (int i = 0; i < 16; i++) { /* u32 i: lanes 2i, 2i + 1 of the first step, then of the second */
    uint16_t *to = panel + (step + i / 8) * QUIRE_PACKED_COLUMNS;
    int lane = i % 8 * 2;
    __m512i low = _mm512_permutex2var_epi64(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first[i])), deal,
                                            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(second[i])));
    __m256i high0 = _mm512_cvtepi32_epi16(_mm512_srli_epi32(first[i], 16));
    __m256i high1 = _mm512_cvtepi32_epi16(_mm512_srli_epi32(second[i], 16));
    __m512i high = _mm512_permutex2var_epi64(_mm512_castsi256_si512(high0), deal, _mm512_castsi256_si512(high1));
    _mm512_store_si512(to + quire_packed_lane(lane) * lane_stride, low);
    _mm512_store_si512(to + quire_packed_lane(lane + 1) * lane_stride, high);
  }
}

#define PIECE 64 /* elements of k that go by way of the stage where columns end */

static void pack(const struct quire_weight *rows, int64_t column, void *panel_out) {
  const bool fp8 = rows->dtype == QUIRE_DTYPE_FP8;
  const int64_t bytes = fp8 ? 1 : 2, steps = rows->k / 32, lane_stride = steps * QUIRE_PACKED_COLUMNS;
  const int64_t columns = rows->n - column < QUIRE_PACKED_COLUMNS ? rows->n - column : QUIRE_PACKED_COLUMNS;
  _Alignas(64) uint8_t stage[QUIRE_PACKED_COLUMNS * PIECE * 2];
  for (int64_t k = 0; k < rows->k; k += PIECE) {
    int64_t n = rows->k - k < PIECE ? rows->k - k : PIECE, ld = rows->ld * bytes;
    const uint8_t *from = (const uint8_t *)rows->data + column * ld + k * bytes;
    if (columns < QUIRE_PACKED_COLUMNS) {
      memset(stage, 0, sizeof stage);
      for (int64_t c = 0; c < columns; c++) {
        memcpy(stage + c * PIECE * bytes, from + c * ld, (size_t)(n * bytes));
      }
      from = stage;
      ld = PIECE * bytes;
    }
    if (fp8) {
      pack_codes(from, ld, k / 32, lane_stride, panel_out);
      continue;
    }
    for (int half = 0; half < 2; half++) {
      uint32_t *at = (uint32_t *)panel_out + k / 32 * QUIRE_PACKED_COLUMNS + half * 16;
      const uint16_t *columns16 = (const uint16_t *)(const void *)(from + half * 16 * ld);
      struct quire_packed_place to = {{at, at + 8}, lane_stride, QUIRE_PACKED_COLUMNS};
      quire_packed_isa_avx512.pack(columns16, ld / 2, (int32_t)(n / 32), to);
    }
  }
}

/* --- a row alone --- */

QUIRE_INLINE __m512i pair_of(const uint8_t *x) {
  int32_t two;
  memcpy(&two, x, sizeof two);
  return _mm512_set1_epi32(two);
}

/* How far ahead to ask while `bytes` of a lane are read from w on: `far`, or not at all. */
QUIRE_INLINE int64_t ahead_of(const struct quire_prepacked_row *r, const uint8_t *w, int64_t bytes, int64_t far) {
  return (uintptr_t)w + (uintptr_t)(bytes + far) <= (uintptr_t)r->ask_end ? far : 0;
}

/* Sums of a lane go into the tree. Where the position is known to the compiler, what waits is in registers. */
QUIRE_INLINE void row_carry(__m512 (*waiting)[VECTORS], const int position, float *out, __m512 *acc) {
  const int levels = __builtin_ctz(~(unsigned)position);
  for (int level = 0; level < levels; level++) {
    acc[0] = _mm512_add_ps(waiting[level][0], acc[0]);
    acc[1] = _mm512_add_ps(waiting[level][1], acc[1]);
  }
  if (levels < QUIRE_PACKED_LEVELS) {
    waiting[levels][0] = acc[0];
    waiting[levels][1] = acc[1];
  } else {
    _mm512_storeu_ps(out, acc[0]);
    _mm512_storeu_ps(out + 16, acc[1]);
  }
}

QUIRE_INLINE void lane_bf16(const struct quire_prepacked_row *r, const int position, const uint8_t *w,
                            const int64_t steps, __m512 *acc_out) {
  const int64_t ahead = ahead_of(r, w, steps * VECTORS * CACHE_LINE, AHEAD);
  const uint8_t *x = r->x + r->lane[position];
  __m512 acc[VECTORS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t step = 0; step < steps; step++, w += VECTORS * CACHE_LINE, x += r->step_bytes) {
    __m512i two = pair_of(x);
    QUIRE_UNROLL
    for (int v = 0; v < VECTORS; v++) {
      _mm_prefetch((const char *)w + ahead + v * CACHE_LINE, _MM_HINT_T0);
      acc[v] = _mm512_dpbf16_ps(acc[v], (__m512bh)two, (__m512bh)_mm512_load_si512(w + v * CACHE_LINE));
    }
  }
  acc_out[0] = acc[0];
  acc_out[1] = acc[1];
}

/* Any k. */
static void row_bf16(const struct quire_prepacked_row *r) {
  const int64_t steps = r->steps, lane_bytes = steps * VECTORS * CACHE_LINE;
  const uint8_t *w = r->w;
  for (int32_t panel = 0; panel < r->panels; panel++) {
    __m512 waiting[QUIRE_PACKED_LEVELS][VECTORS], acc[VECTORS];
    for (int position = 0; position < QUIRE_GEMM_LANES; position++, w += lane_bytes) {
      lane_bf16(r, position, w, steps, acc);
      row_carry(waiting, position, r->out + panel * QUIRE_PACKED_COLUMNS, acc);
    }
  }
}

/* A k so short that the tree, position by position, would cost as much as the reading. */
QUIRE_INLINE void row_bf16_short(const struct quire_prepacked_row *r, const int64_t steps) {
  const uint8_t *w = r->w;
  for (int32_t panel = 0; panel < r->panels; panel++) {
    __m512 waiting[QUIRE_PACKED_LEVELS][VECTORS], acc[VECTORS];
    QUIRE_UNROLL
    for (int position = 0; position < QUIRE_GEMM_LANES; position++, w += steps * VECTORS * CACHE_LINE) {
      lane_bf16(r, position, w, steps, acc);
      row_carry(waiting, position, r->out + panel * QUIRE_PACKED_COLUMNS, acc);
    }
  }
}

#define SCALED_PANELS (QUIRE_FP8_BLOCK / QUIRE_PACKED_COLUMNS) /* share their scales */

QUIRE_LOOK_UP static void row_codes(const struct quire_prepacked_row *r) {
  const struct quire_e4m3_tables tables = quire_e4m3_tables();
  const int64_t far = r->ask_end == (const uint8_t *)UINTPTR_MAX ? AHEAD_CODES : AHEAD;
  const uint8_t *w = r->w;
  for (int32_t panel = 0; panel < r->panels; panel++) {
    const float *scales = r->scale + (r->panel + panel) / SCALED_PANELS * r->scale_ld;
    __m512 waiting[QUIRE_PACKED_LEVELS][VECTORS];
    for (int position = 0; position < QUIRE_GEMM_LANES; position++) {
      const uint8_t *x = r->x + r->lane[position];
      const int64_t ahead = ahead_of(r, w, (int64_t)r->steps * CACHE_LINE, far);
      __m512 acc[VECTORS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t begin = 0; begin < r->steps; begin += BLOCK_STEPS) {
        __m512 scale = _mm512_set1_ps(scales[begin / BLOCK_STEPS]);
        __m512 block0 = _mm512_setzero_ps(), block1 = _mm512_setzero_ps();
        QUIRE_UNROLL
        for (int step = 0; step < BLOCK_STEPS; step++, w += CACHE_LINE, x += r->step_bytes) {
          __m512i two = pair_of(x), first, second;
          _mm_prefetch((const char *)w + ahead, _MM_HINT_T0);
          quire_e4m3_quarters(tables, _mm512_load_si512(w), &first, &second);
          block0 = _mm512_dpbf16_ps(block0, (__m512bh)two, (__m512bh)first);
          block1 = _mm512_dpbf16_ps(block1, (__m512bh)two, (__m512bh)second);
        }
        acc[0] = _mm512_fmadd_ps(scale, block0, acc[0]);
        acc[1] = _mm512_fmadd_ps(scale, block1, acc[1]);
      }
      row_carry(waiting, position, r->out + panel * QUIRE_PACKED_COLUMNS, acc);
    }
  }
}

static void row(const struct quire_prepacked_row *r) {
  if (r->scale != NULL) {
    row_codes(r);
  } else if (r->steps == HELD_STEPS) {
    row_bf16_short(r, HELD_STEPS);
  } else if (r->steps == 2 * HELD_STEPS) {
    row_bf16_short(r, 2 * HELD_STEPS);
  } else {
    row_bf16(r);
  }
}

/* --- short k --- */

/* Rows of a short k at a pair of positions. It goes by value, and how many levels of the tree are added is known to the
 * compiler: asked for row after row, both cost a tenth of the products. */
struct pass {
  const uint32_t *w; /* of the first lane of the pair */
  const uint8_t *x;  /* at that lane of the first row */
  const float *sums;
  float *to;
  int64_t x_bytes, to_ld; /* between rows */
  const uint8_t *ask;
  int ask_lines; /* with each four rows; held weights leave asking to the caller */
  float scale;
  int rows;
};

static_assert(QUIRE_PREPACKED_SHORT_ROWS % 4 == 0, "rows go by in twos or fours");
static_assert(HELD_STEPS == BLOCK_STEPS, "weights that are held and scaled are those of one block");
#define LEVEL_STRIDE (QUIRE_PREPACKED_SHORT_ROWS * QUIRE_PACKED_COLUMNS)

/* The two lanes of a pair are added, then what waits; `rows` of them from number `row`. */
QUIRE_INLINE void pass_carry(struct pass p, int row, const int rows, const int levels, __m512 *acc) {
  const int count = rows * VECTORS;
  const float *waiting = p.sums + row * QUIRE_PACKED_COLUMNS;
  float *to = p.to + row * p.to_ld;
  QUIRE_UNROLL
  for (int j = 0; j < 4 * VECTORS; j++) {
    acc[j] = j < count ? _mm512_add_ps(acc[j], acc[count + j]) : acc[j];
  }
  QUIRE_UNROLL
  for (int level = 1; level < QUIRE_PACKED_LEVELS; level++) {
    QUIRE_UNROLL
    for (int j = 0; j < 4 * VECTORS; j++) {
      if (level < levels && j < count) {
        acc[j] = _mm512_add_ps(_mm512_load_ps(waiting + level * LEVEL_STRIDE + j * 16), acc[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 4 * VECTORS; j++) {
    if (j < count) {
      _mm512_storeu_ps(to + j / VECTORS * p.to_ld + j % VECTORS * 16, acc[j]);
    }
  }
}

/* One block of k: both lanes' weights stay in registers, rows go by in twos. */
QUIRE_INLINE void pass_held(struct pass p, bool scaled, const int levels) {
  const __m512 scale = _mm512_set1_ps(p.scale);
  __m512i w[2 * HELD_STEPS * VECTORS];
  QUIRE_UNROLL
  for (int j = 0; j < 2 * HELD_STEPS * VECTORS; j++) {
    w[j] = _mm512_load_si512(p.w + j * 16);
  }
  for (int row = 0; row < p.rows; row += 2) {
    const uint8_t *x[2] = {p.x + row * p.x_bytes, p.x + (row + (row + 1 < p.rows)) * p.x_bytes};
    __m512 acc[4 * VECTORS];
    QUIRE_UNROLL
    for (int j = 0; j < 4 * VECTORS; j++) {
      acc[j] = _mm512_setzero_ps();
    }
    QUIRE_UNROLL
    for (int i = 0; i < 4 * HELD_STEPS; i++) { /* step, lane, row */
      int step = i / 4, lane = i / 2 % 2, r = i % 2;
      __m512i two = pair_of(x[r] + step * STEP_BYTES + lane * (STEP_BYTES / 2));
      QUIRE_UNROLL
      for (int v = 0; v < VECTORS; v++) {
        __m512 *sum = &acc[(lane * 2 + r) * VECTORS + v];
        *sum = _mm512_dpbf16_ps(*sum, (__m512bh)two, (__m512bh)w[(lane * HELD_STEPS + step) * VECTORS + v]);
      }
    }
    QUIRE_UNROLL
    for (int j = 0; j < 4 * VECTORS; j++) {
      acc[j] = scaled ? _mm512_fmadd_ps(scale, acc[j], _mm512_setzero_ps()) : acc[j];
    }
    pass_carry(p, row, 2, levels, acc);
  }
}

/* Both lanes side by side, rows in fours. */
QUIRE_INLINE void pass_pairs(struct pass p, const int64_t steps, const int levels) {
  for (int row = 0; row < p.rows; row += 4) {
    const uint8_t *x[4];
    __m512 acc[8 * VECTORS];
    for (int line = 0; line < p.ask_lines; line++, p.ask += CACHE_LINE) {
      _mm_prefetch((const char *)p.ask, _MM_HINT_T0);
    }
    QUIRE_UNROLL
    for (int r = 0; r < 4; r++) {
      x[r] = p.x + (row + r < p.rows ? row + r : p.rows - 1) * p.x_bytes;
    }
    QUIRE_UNROLL
    for (int j = 0; j < 8 * VECTORS; j++) {
      acc[j] = _mm512_setzero_ps();
    }
    for (int64_t step = 0; step < steps; step++) {
      QUIRE_UNROLL
      for (int j = 0; j < 8 * VECTORS; j++) {
        int lane = j / (4 * VECTORS);
        __m512i two = pair_of(x[j / VECTORS % 4] + step * STEP_BYTES + lane * (STEP_BYTES / 2));
        __m512i wv = _mm512_load_si512(p.w + (lane * steps + step) * QUIRE_PACKED_COLUMNS + j % VECTORS * 16);
        acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)two, (__m512bh)wv);
      }
    }
    pass_carry(p, row, 4, levels, acc);
  }
}

QUIRE_INLINE void pass_go(struct pass p, const struct quire_prepacked_short *s, const int levels) {
  if (s->scale != NULL) {
    pass_held(p, true, levels);
  } else if (s->steps == HELD_STEPS) {
    pass_held(p, false, levels);
  } else if (s->steps == 2 * HELD_STEPS) {
    pass_pairs(p, 2 * HELD_STEPS, levels);
  } else {
    pass_pairs(p, s->steps, levels);
  }
}

static void short_k(const struct quire_prepacked_short *s) {
  QUIRE_ASSERT(s->rows > 0 && s->rows <= QUIRE_PREPACKED_SHORT_ROWS);
  QUIRE_ASSERT(s->scale == NULL ? s->steps > 0 && s->steps <= QUIRE_PREPACKED_SHORT_STEPS : s->steps == HELD_STEPS);
  const int share = (s->ask_lines + QUIRE_GEMM_LANES / 2 - 1) / (QUIRE_GEMM_LANES / 2);
  const uint8_t *ask = s->ask;
  const bool held = s->steps == HELD_STEPS;
  const int quads = (s->rows + 3) / 4;
  struct pass p = {.sums = s->sums, .ask_lines = (share + quads - 1) / quads, .x_bytes = s->x_ld * 2, .rows = s->rows};
  p.scale = s->scale != NULL ? s->scale[0] : 1.0f;
  for (int position = 0; position < QUIRE_GEMM_LANES; position += 2) {
    int levels = __builtin_ctz(~(unsigned)(position + 1));
    p.w = s->w + (int64_t)position * s->steps * QUIRE_PACKED_COLUMNS;
    p.x = (const uint8_t *)s->x + quire_packed_lane(position) * 4;
    p.to = s->sums + levels * LEVEL_STRIDE;
    p.to_ld = QUIRE_PACKED_COLUMNS;
    p.ask = ask;
    for (int line = 0; held && line < share; line++) {
      _mm_prefetch((const char *)ask + line * CACHE_LINE, _MM_HINT_T0);
    }
    ask += (int64_t)share * CACHE_LINE;
    if (levels == 1) {
      pass_go(p, s, 1);
    } else if (levels == 2) {
      pass_go(p, s, 2);
    } else if (levels == 3) {
      pass_go(p, s, 3);
    } else {
      p.to = s->out;
      p.to_ld = s->out_ld;
      pass_go(p, s, QUIRE_PACKED_LEVELS);
    }
  }
}

/* --- middle k --- */

#define MIDDLE_STRIDE (QUIRE_PREPACKED_MIDDLE_ROWS * QUIRE_PACKED_COLUMNS)
#define MIDDLE_STEPS 4 /* of a turn of the loop */
#define X_STEP_BYTES (QUIRE_PACKED_ROWS * 4)

static_assert(QUIRE_PREPACKED_MIDDLE_ROWS % 4 == 0 && QUIRE_PACKED_ROWS % 4 == 0, "rows go by in fours");

/* Rows of a middle k at a pair of positions. */
struct middle_pass {
  const struct quire_prepacked_middle *s;
  const uint32_t *w; /* of the first lane of the pair */
  const uint8_t *x;  /* at that lane of the first row */
  float *sums, *to;
  int64_t to_ld;
};

/* A step of both lanes and four rows: acc[(lane * 4 + row) * 2 + vector]. */
QUIRE_INLINE void middle_step(const struct middle_pass *p, const uint8_t *const *x, int64_t lane_bytes,
                              const int64_t steps, int64_t step, __m512 *acc) {
  QUIRE_UNROLL
  for (int j = 0; j < 8 * VECTORS; j++) {
    int lane = j / (4 * VECTORS);
    __m512i two = pair_of(x[j / VECTORS % 4] + step * X_STEP_BYTES + lane * lane_bytes);
    __m512i wv = _mm512_load_si512(p->w + (lane * steps + step) * QUIRE_PACKED_COLUMNS + j % VECTORS * 16);
    acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)two, (__m512bh)wv);
  }
}

/* The lanes of a pair are added, then what waits. */
QUIRE_INLINE void middle_carry(const struct middle_pass *p, const int levels, int row, __m512 *acc) {
  const float *waiting = p->sums + row * QUIRE_PACKED_COLUMNS;
  float *to = p->to + row * p->to_ld;
  QUIRE_UNROLL
  for (int j = 0; j < 4 * VECTORS; j++) {
    acc[j] = _mm512_add_ps(acc[j], acc[4 * VECTORS + j]);
  }
  QUIRE_UNROLL
  for (int level = 1; level < QUIRE_PACKED_LEVELS; level++) {
    QUIRE_UNROLL
    for (int j = 0; j < 4 * VECTORS; j++) {
      if (level < levels) {
        acc[j] = _mm512_add_ps(_mm512_load_ps(waiting + level * MIDDLE_STRIDE + j * 16), acc[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 4 * VECTORS; j++) {
    _mm512_storeu_ps(to + j / VECTORS * p->to_ld + j % VECTORS * 16, acc[j]);
  }
}

/* All rows at a pair of positions. The lines that come next are spread over the rows: asked for in one go they hold up
 * the products. */
QUIRE_INLINE void middle_rows(const struct middle_pass *p, const int64_t steps, const int levels) {
  const struct quire_prepacked_middle *s = p->s;
  const int quads = (s->rows + 3) / 4, lines = (2 * (int)steps * VECTORS + quads - 1) / quads;
  const uint8_t *ask = (const uint8_t *)(p->w + 2 * steps * QUIRE_PACKED_COLUMNS);
  for (int row = 0; row < s->rows; row += 4) {
    const uint8_t *first = p->x + quire_packed_x_row(row, steps) * 4;
    const uint8_t *const x[4] = {first, first + 4, first + 8, first + 12};
    __m512 acc[8 * VECTORS];
    int64_t step = 0;
    for (int line = 0; line < lines; line++, ask += CACHE_LINE) {
      _mm_prefetch((const char *)ask, _MM_HINT_T0);
    }
    QUIRE_UNROLL
    for (int j = 0; j < 8 * VECTORS; j++) {
      acc[j] = _mm512_setzero_ps();
    }
    for (; step + MIDDLE_STEPS <= steps; step += MIDDLE_STEPS) {
      QUIRE_UNROLL
      for (int i = 0; i < MIDDLE_STEPS; i++) {
        middle_step(p, x, s->x_stride * 4, steps, step + i, acc);
      }
    }
    for (; step < steps; step++) {
      middle_step(p, x, s->x_stride * 4, steps, step, acc);
    }
    middle_carry(p, levels, row, acc);
  }
}

static void middle_k(const struct quire_prepacked_middle *s) {
  struct middle_pass p = {.s = s, .sums = s->sums, .to_ld = QUIRE_PACKED_COLUMNS};
  for (int position = 0; position < QUIRE_GEMM_LANES; position += 2) {
    int levels = __builtin_ctz(~(unsigned)(position + 1));
    p.w = s->w + (int64_t)position * s->steps * QUIRE_PACKED_COLUMNS;
    p.x = (const uint8_t *)(s->x + position * s->x_stride);
    p.to = s->sums + levels * MIDDLE_STRIDE;
    if (levels == 1) {
      middle_rows(&p, s->steps, 1);
    } else if (levels == 2) {
      middle_rows(&p, s->steps, 2);
    } else if (levels == 3) {
      middle_rows(&p, s->steps, 3);
    } else {
      p.to = s->out;
      p.to_ld = s->out_ld;
      middle_rows(&p, s->steps, QUIRE_PACKED_LEVELS);
    }
  }
}

/* --- decoding --- */

QUIRE_LOOK_UP static void decode_looked_up(const uint8_t *from, int64_t steps, uint32_t *out) {
  const struct quire_e4m3_tables tables = quire_e4m3_tables();
  for (int64_t step = 0; step < steps; step++) {
    __m512i first, second;
    _mm_prefetch((const char *)from + AHEAD + step * CACHE_LINE, _MM_HINT_T0);
    quire_e4m3_quarters(tables, _mm512_load_si512(from + step * CACHE_LINE), &first, &second);
    _mm512_store_si512(out + step * QUIRE_PACKED_COLUMNS, first);
    _mm512_store_si512(out + step * QUIRE_PACKED_COLUMNS + 16, second);
  }
}

static void decode(const void *lanes, int64_t steps, uint32_t *out) {
  const __m512i gather = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const uint8_t *from = lanes;
  if (quire_e4m3_looks_up()) {
    decode_looked_up(from, steps, out);
    return;
  }
  for (int64_t step = 0; step < steps; step++) {
    _Alignas(64) uint8_t codes[CACHE_LINE];
    _mm512_store_si512(codes, _mm512_permutexvar_epi64(gather, _mm512_load_si512(from + step * CACHE_LINE)));
    _mm512_store_si512(out + step * QUIRE_PACKED_COLUMNS, quire_e4m3x32(codes));
    _mm512_store_si512(out + step * QUIRE_PACKED_COLUMNS + 16, quire_e4m3x32(codes + CACHE_LINE / 2));
  }
}

const struct quire_prepacked_isa quire_prepacked_isa_avx512 = {
    .pack = pack,
    .reads_codes = quire_e4m3_looks_up,
    .row = row,
    .short_k = short_k,
    .middle_k = middle_k,
    .decode = decode,
};
