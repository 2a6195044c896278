/* The driver of the matrix product, and its plain C tiles.
 *
 * A tile reads rows of W where they lie. Only what a tile cannot read as it is goes through
 * a stage on the stack: fp8 weights (widened once for a block of 64 rows), columns past the end, a k that is no
 * multiple of the step, operands of another type. Lanes live in registers over a chunk of k and in memory between
 * chunks, which changes nothing in them.
 *
 * Where k takes several chunks four n-tiles share a block: rows of x too many for the near caches come a quarter as
 * often. Many rows with a short k go by way of panels (gemm_panel.h), with a long one and scratch both operands are
 * packed (gemm_packed.h). Weights packed at load have ways of their own (gemm_prepacked.h).
 *
 * Rejected: folding the lanes at each 128 block of an fp8 weight (three times the shuffles), and keys as lanes as in
 * the indexer (needs packed weights); a fold by blends (fewer shuffles, slower). */
#include "kernels/cpu/gemm.h"

#include <assert.h>

#include "base/assert.h"
#include "kernels/cpu/gemm_packed.h"
#include "kernels/cpu/gemm_panel.h"
#include "kernels/cpu/gemm_prepacked.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/run.h"

#define BLOCK_OUTPUTS 4096 /* 256 KiB of lanes, in the second level cache */
#define WIDE_COLUMNS 64    /* of a block whose k takes several chunks */
#define ROWS_BLOCK 64
#define CHUNK 1024
#define ROW_GROUP 4
/* Distance of staged rows: rows a multiple of 4 KiB apart would fall into the same few sets of a first level cache. */
#define STAGE_LD (CHUNK + 32)
#define ALIAS_BYTES 4096
#define ALIAS_ROWS 8
#define PREFETCH_ROWS 3

static_assert(CHUNK % QUIRE_FP8_BLOCK == 0, "a chunk is whole fp8 blocks");
static_assert(BLOCK_OUTPUTS == ROWS_BLOCK * WIDE_COLUMNS, "lanes of a wide block");
static_assert(QUIRE_FP8_BLOCK % QUIRE_GEMM_COLUMNS == 0, "the columns of a tile share their scales");

/* What one thread keeps while it computes: operands on their way into tiles and lanes between chunks. */
struct stage {
  _Alignas(64) float lanes[BLOCK_OUTPUTS * QUIRE_GEMM_LANES];
  _Alignas(64) float w[QUIRE_GEMM_COLUMNS * STAGE_LD];
  _Alignas(64) float x[ROW_GROUP * STAGE_LD];
  _Alignas(64) float out[ROWS_BLOCK * QUIRE_GEMM_COLUMNS];
};

struct plan {
  const struct quire_gemm_isa *isa;
  const struct quire_gemm *gemm;
  struct stage *stage;
  bool bf16;    /* the dot: bf16 or f32 */
  bool stage_w; /* whole product: dtype of W or tail of k */
  bool stage_x;
  int32_t step;
};

/* A chunk of k for one n-tile, ready for tiles. */
struct chunk {
  const void *w;
  int64_t w_ld;
  int64_t k_begin;
  int32_t k;        /* elements of the operands */
  int32_t k_padded; /* a multiple of the step */
  const float *scale;
  float *lanes; /* of the n-tile in its block */
  float *out;   /* of the same: Y itself or the stage */
  int64_t out_ld;
  bool first, last;
  int64_t next_column, next_k; /* of W, soon wanted */
};

static int32_t dtype_bytes(enum quire_dtype dtype) {
  return dtype == QUIRE_DTYPE_F32 ? 4 : dtype == QUIRE_DTYPE_BF16 ? 2 : 1;
}

static const void *element(const void *base, enum quire_dtype dtype, int64_t index) {
  return (const uint8_t *)base + index * dtype_bytes(dtype);
}

void quire_bf16_to_f32(const uint16_t *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    f8_store(y + i, f8_of_bf16(x + i));
  }
  for (; i < n; i++) {
    y[i] = quire_bf16_widen(x[i]);
  }
}

/* n elements of one operand row into the element type of the dot. */
static void widen_row(const struct plan *p, const void *x, enum quire_dtype dtype, void *y, int64_t n) {
  if (p->bf16) {
    if (dtype == QUIRE_DTYPE_FP8) {
      p->isa->e4m3_to_bf16(x, y, n);
    } else {
      memcpy(y, x, (size_t)n * 2);
    }
  } else if (dtype == QUIRE_DTYPE_FP8) {
    p->isa->e4m3_to_f32(x, y, n);
  } else if (dtype == QUIRE_DTYPE_BF16) {
    quire_bf16_to_f32(x, y, n);
  } else {
    memcpy(y, x, (size_t)n * 4);
  }
}

/* Rows of an operand that cannot be read where they are. */
struct operand {
  const void *data; /* first row, at the chunk */
  enum quire_dtype dtype;
  int64_t ld;
  int rows;   /* that the tiles read */
  int filled; /* that exist; the others are zero */
};

/* The operand's rows into the stage, STAGE_LD elements apart, zero padded. */
static void stage_rows(const struct plan *p, const struct chunk *c, const struct operand *from, float *stage) {
  int32_t bytes = p->bf16 ? 2 : 4;
  for (int r = 0; r < from->rows; r++) {
    uint8_t *y = (uint8_t *)stage + (int64_t)r * STAGE_LD * bytes;
    int32_t n = r < from->filled ? c->k : 0;
    if (r + PREFETCH_ROWS < from->filled) { /* runs this short end before the hardware sees them as streams */
      const uint8_t *ahead = element(from->data, from->dtype, (r + PREFETCH_ROWS) * from->ld);
      for (int64_t at = 0; at < (int64_t)c->k * dtype_bytes(from->dtype); at += CACHE_LINE) {
        __builtin_prefetch(ahead + at);
      }
    }
    if (n > 0) {
      widen_row(p, element(from->data, from->dtype, r * from->ld), from->dtype, y, n);
    }
    memset(y + (int64_t)n * bytes, 0, (size_t)(c->k_padded - n) * (size_t)bytes);
  }
}

static struct chunk chunk_of(const struct plan *p, int64_t column, int64_t k_begin) {
  const struct quire_weight *w = &p->gemm->w;
  int64_t rest = w->k - k_begin;
  int64_t k = rest < CHUNK ? rest : CHUNK;
  struct chunk c = {
      .k_begin = k_begin,
      .k = (int32_t)k,
      .k_padded = (int32_t)((k + p->step - 1) / p->step * p->step),
      .first = k_begin == 0,
      .last = k == rest,
  };
  if (w->dtype == QUIRE_DTYPE_FP8) {
    c.scale = w->scale + column / QUIRE_FP8_BLOCK * w->scale_ld + k_begin / QUIRE_FP8_BLOCK;
  }
  int64_t columns = w->n - column;
  const void *from = element(w->data, w->dtype, column * w->ld + k_begin);
  if (p->stage_w || columns < QUIRE_GEMM_COLUMNS) {
    int filled = columns < QUIRE_GEMM_COLUMNS ? (int)columns : QUIRE_GEMM_COLUMNS;
    struct operand operand = {from, w->dtype, w->ld, QUIRE_GEMM_COLUMNS, filled};
    stage_rows(p, &c, &operand, p->stage->w);
    c.w = p->stage->w;
    c.w_ld = STAGE_LD;
  } else {
    c.w = from;
    c.w_ld = w->ld;
  }
  return c;
}

/* Output rows that a tile takes together. */
struct group {
  int64_t row;
  int slot;                     /* of the row in its block */
  int rows;                     /* 4, 2 or 1 */
  const uint8_t *ask_w, *ask_x; /* see the tile */
};

/* All 16 columns of a group, one chunk. */
static void group_compute(const struct plan *p, const struct chunk *c, struct group at) {
  const struct quire_gemm *g = p->gemm;
  enum quire_dtype dot_type = p->bf16 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
  const void *x = element(g->x, g->x_dtype, at.row * g->x_ld + c->k_begin);
  int64_t x_ld = g->x_ld;
  if (p->stage_x) {
    struct operand operand = {x, g->x_dtype, g->x_ld, at.rows, at.rows};
    stage_rows(p, c, &operand, p->stage->x);
    x = p->stage->x;
    x_ld = STAGE_LD;
  }
  struct quire_gemm_tile tile = {
      .x = x,
      .w = c->w,
      .x_ld = x_ld,
      .w_ld = c->w_ld,
      .scale = c->scale,
      .lanes = c->lanes + (int64_t)at.slot * QUIRE_GEMM_COLUMNS * QUIRE_GEMM_LANES,
      .out = c->out + at.slot * c->out_ld,
      .out_ld = c->out_ld,
      .ask_w = at.ask_w,
      .ask_x = at.ask_x,
      .k = c->k_padded,
      .rows = at.rows,
      .first = c->first,
      .last = c->last,
  };
  if (p->bf16 && at.rows == ROW_GROUP && c->scale == NULL) {
    p->isa->strip_bf16(&tile);
    return;
  }
  int columns = QUIRE_GEMM_OUTPUTS / at.rows;
  for (int column = 0; column < QUIRE_GEMM_COLUMNS; column += columns) {
    if (p->bf16) {
      p->isa->tile_bf16(&tile);
    } else {
      p->isa->tile_f32(&tile);
    }
    tile.w = element(tile.w, dot_type, columns * c->w_ld);
    tile.lanes += QUIRE_GEMM_OUTPUTS * QUIRE_GEMM_LANES;
    tile.out += columns;
  }
}

static void rows_write(const struct plan *p, int64_t row, int64_t column, int rows, int columns) {
  const struct quire_gemm *g = p->gemm;
  for (int r = 0; r < rows; r++) {
    const float *out = p->stage->out + r * QUIRE_GEMM_COLUMNS;
    int64_t at = (row + r) * g->y_ld + column;
    if (g->y_dtype == QUIRE_DTYPE_BF16) {
      lanes_to_bf16(out, (uint16_t *)g->y + at, columns);
    } else if (columns == QUIRE_GEMM_COLUMNS) { /* of a known size: no call */
      memcpy((float *)g->y + at, out, QUIRE_GEMM_COLUMNS * sizeof(float));
    } else {
      memcpy((float *)g->y + at, out, (size_t)columns * sizeof(float));
    }
  }
}

/* Column number `index` of the chunk of W that comes after this one; NULL past its end. */
static const uint8_t *next_column(const struct plan *p, const struct chunk *c, int index) {
  const struct quire_weight *w = &p->gemm->w;
  int64_t column = c->next_column + index;
  if (index >= QUIRE_GEMM_COLUMNS || column >= w->n) {
    return NULL;
  }
  return element(w->data, w->dtype, column * w->ld + c->next_k);
}

/* Asks for columns [begin, end) of the next chunk, so that they arrive while this one is computed. (Always inline: gcc
 * takes a function that only prefetches for one without effect, and drops its calls.) */
QUIRE_INLINE void next_ask(const struct plan *p, const struct chunk *c, int begin, int end) {
  int64_t rest = p->gemm->w.k - c->next_k;
  int64_t bytes = (rest < CHUNK ? rest : CHUNK) * dtype_bytes(p->gemm->w.dtype);
  for (int index = begin; index < end; index++) {
    const uint8_t *from = next_column(p, c, index);
    for (int64_t at = 0; from != NULL && at < bytes; at += CACHE_LINE) {
      __builtin_prefetch(from + at);
    }
  }
}

/* Rows of an n-tile, one chunk of it. Each group of rows asks for its share of the next chunk; a strip for one column
 * by itself. */
static void chunk_compute(const struct plan *p, const struct chunk *c, int64_t row, int rows) {
  const struct quire_gemm *g = p->gemm;
  int groups = (rows + ROW_GROUP - 1) / ROW_GROUP;
  int share = rows > ROW_GROUP ? (QUIRE_GEMM_COLUMNS + groups - 1) / groups : 0;
  bool strips = p->bf16 && g->w.dtype == QUIRE_DTYPE_BF16;
  for (int r = 0; r < rows;) {
    int left = rows - r;
    struct group group = {row + r, r, left >= 4 ? 4 : left >= 2 ? 2 : 1, NULL, NULL};
    if (share > 0 && r % ROW_GROUP == 0) {
      int begin = r / ROW_GROUP * share;
      group.ask_w = strips ? next_column(p, c, begin) : NULL;
      next_ask(p, c, begin + strips, begin + share);
    }
    if (left >= 2 * ROW_GROUP) {
      group.ask_x = element(g->x, g->x_dtype, (row + r + ROW_GROUP) * g->x_ld + c->k_begin);
    }
    group_compute(p, c, group);
    r += group.rows;
  }
}

/* Up to 64 rows of one n-tile or of four neighbours. Those take turns at each chunk, so that
 * the chunk of x is in a near cache for all but the first. */
static void block_compute(const struct plan *p, struct quire_gemm_part part) {
  const struct quire_gemm *g = p->gemm;
  int rows = (int)(part.row_end - part.row_begin);
  for (int64_t k_begin = 0; k_begin < g->w.k; k_begin += CHUNK) {
    for (int64_t column = part.column_begin; column < part.column_end; column += QUIRE_GEMM_COLUMNS) {
      int64_t columns = part.column_end - column;
      bool whole = columns >= QUIRE_GEMM_COLUMNS;
      bool direct = whole && g->y_dtype == QUIRE_DTYPE_F32;
      int64_t done = (column - part.column_begin) * rows;
      struct chunk c = chunk_of(p, column, k_begin);
      c.lanes = p->stage->lanes + done * QUIRE_GEMM_LANES;
      c.out = direct ? (float *)g->y + part.row_begin * g->y_ld + column : p->stage->out;
      c.out_ld = direct ? g->y_ld : QUIRE_GEMM_COLUMNS;
      bool back = column + QUIRE_GEMM_COLUMNS >= part.column_end && !c.last;
      c.next_column = back ? part.column_begin : column + QUIRE_GEMM_COLUMNS;
      c.next_k = back ? k_begin + CHUNK : column + QUIRE_GEMM_COLUMNS >= part.column_end ? 0 : k_begin;
      chunk_compute(p, &c, part.row_begin, rows);
      if (c.last && !direct) {
        rows_write(p, part.row_begin, column, rows, (int)(whole ? QUIRE_GEMM_COLUMNS : columns));
      }
    }
  }
}

/* Whether 16 columns of a few rows were computed without a stage. */
static bool rows_compute(const struct plan *p, int64_t row, int32_t rows, int64_t column) {
  const struct quire_gemm *g = p->gemm;
  struct quire_gemm_row r = {
      .x = element(g->x, g->x_dtype, row * g->x_ld),
      .w = element(g->w.data, g->w.dtype, column * g->w.ld),
      .x_ld = g->x_ld,
      .w_ld = g->w.ld,
      .out = p->stage->out,
      .k = g->w.k,
      .rows = rows,
  };
  if (g->w.dtype == QUIRE_DTYPE_FP8) {
    r.scale = g->w.scale + column / QUIRE_FP8_BLOCK * g->w.scale_ld;
  }
  if (!p->isa->row(&r)) {
    return false;
  }
  rows_write(p, row, column, rows, QUIRE_GEMM_COLUMNS);
  return true;
}

/* Asks for the beginning of a part of W: what comes later is asked for on the way. (Always inline, as next_ask.) */
QUIRE_INLINE void few_open(const struct plan *p, struct quire_gemm_part part) {
  const struct quire_weight *w = &p->gemm->w;
  const uint8_t *from = element(w->data, w->dtype, part.column_begin * w->ld);
  int64_t bytes = ((part.column_end - part.column_begin - 1) * w->ld + w->k) * dtype_bytes(w->dtype);
  for (int64_t at = 0; at < bytes && at < QUIRE_GEMM_AHEAD; at += CACHE_LINE) {
    __builtin_prefetch(from + at);
  }
}

/* Few rows by whole n-tiles that need no stage, as many as there are; returns the columns that are left. */
static int64_t few_compute(const struct plan *p, struct quire_gemm_part part) {
  int64_t rows = part.row_end - part.row_begin;
  int64_t rows_max = p->gemm->w.dtype == QUIRE_DTYPE_FP8 ? 1 : ROW_GROUP;
  bool suits = p->bf16 && rows <= rows_max && rows != 3 && p->gemm->w.k % QUIRE_GEMM_ROW_STEP == 0;
  int64_t column = part.column_begin;
  if (suits) {
    few_open(p, part);
  }
  while (suits && part.column_end - column >= QUIRE_GEMM_COLUMNS &&
         rows_compute(p, part.row_begin, (int32_t)rows, column)) {
    column += QUIRE_GEMM_COLUMNS;
  }
  return column;
}

void quire_gemm_compute(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_gemm_part part) {
  struct stage stage;
  bool bf16 = gemm->x_dtype == QUIRE_DTYPE_BF16 && gemm->w.dtype != QUIRE_DTYPE_F32;
  enum quire_dtype dot_type = bf16 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
  struct plan p = {.isa = isa, .gemm = gemm, .stage = &stage, .bf16 = bf16, .step = bf16 ? 32 : 16};
  QUIRE_ASSERT(gemm->x_dtype != QUIRE_DTYPE_FP8 && gemm->y_dtype != QUIRE_DTYPE_FP8);
  QUIRE_ASSERT(gemm->w.layout == QUIRE_WEIGHT_ROWS);
  if (part.row_begin >= part.row_end || part.column_begin >= part.column_end) {
    return;
  }
  if (part.row_begin == part.row_end || part.column_begin == part.column_end) {
    return; /* a member without a share: it begins where everything ends, on a tile or not */
  }
  QUIRE_ASSERT(part.column_begin % QUIRE_GEMM_COLUMNS == 0 && gemm->w.k > 0);
  if (quire_panel_suits(isa, gemm, part.row_end - part.row_begin)) {
    quire_panel_compute(isa, gemm, part);
    return;
  }
  bool tail = gemm->w.k % p.step != 0;
  bool aliased =
      part.row_end - part.row_begin > ALIAS_ROWS && gemm->w.ld * dtype_bytes(gemm->w.dtype) % ALIAS_BYTES == 0;
  p.stage_w = tail || aliased || gemm->w.dtype != dot_type;
  p.stage_x = tail || gemm->x_dtype != dot_type;
  part.column_begin = few_compute(&p, part);
  bool few = part.row_end - part.row_begin <= ROW_GROUP; /* bound by reading W, best row after row */
  int64_t wide = gemm->w.k > CHUNK && !few ? WIDE_COLUMNS : QUIRE_GEMM_COLUMNS;
  for (int64_t column = part.column_begin; column < part.column_end; column += wide) {
    int64_t columns = part.column_end - column;
    columns = columns < wide ? columns : wide;
    for (int64_t row = part.row_begin; row < part.row_end; row += ROWS_BLOCK) {
      int64_t rows = part.row_end - row;
      rows = rows < ROWS_BLOCK ? rows : ROWS_BLOCK;
      block_compute(&p, (struct quire_gemm_part){row, row + rows, column, column + columns});
    }
  }
}

struct quire_gemm_part quire_gemm_share(const struct quire_gemm *gemm, int member, int threads) {
  struct quire_gemm_part part = {.row_end = gemm->m, .column_end = gemm->w.n};
  if (gemm->w.n >= 2 * (int64_t)threads * QUIRE_GEMM_COLUMNS || gemm->m <= ROW_GROUP) {
    quire_team_share(gemm->w.n, QUIRE_GEMM_COLUMNS, member, threads, &part.column_begin, &part.column_end);
  } else {
    quire_team_share(gemm->m, ROW_GROUP, member, threads, &part.row_begin, &part.row_end);
  }
  return part;
}

/* --- plain C tiles --- */

/* AVX2 has 16 registers of eight lanes: a tile runs as halves of its lanes and of its rows or columns, eight
 * accumulators at a time. u32 number i of a step of bf16 holds elements 2i (low half) and 2i + 1 (high half). */
QUIRE_INLINE quire_u8 load_pairs(const void *x, int64_t pair) {
  quire_u8 v;
  memcpy(&v, (const uint8_t *)x + pair * 4, sizeof v);
  return v;
}

QUIRE_INLINE quire_f8 odd_of(quire_u8 pairs) { return (quire_f8)(pairs & 0xffff0000u); }

QUIRE_INLINE quire_f8 even_of(quire_u8 pairs) { return (quire_f8)(pairs << 16); }

/* rows x columns = 8 outputs of a tile. */
struct corner {
  const uint8_t *x;
  const uint8_t *w;
  int64_t x_ld; /* bytes */
  int64_t w_ld;
  int rows;
};

/* Pairs [begin, end), 16 a step, into eight lanes of each of the outputs. One flat loop over them: the compiler shares
 * the loads. */
QUIRE_INLINE void half_bf16(struct corner at, quire_f8 *acc, int64_t begin, int64_t end) {
  int columns = 8 / at.rows;
  for (int64_t pair = begin; pair < end; pair += 16) {
    QUIRE_UNROLL
    for (int i = 0; i < 8; i++) {
      int r = i % at.rows;
      int c = i / at.rows;
      int j = r * columns + c;
      quire_u8 xv = load_pairs(at.x + r * at.x_ld, pair);
      quire_u8 wv = load_pairs(at.w + c * at.w_ld, pair);
      acc[j] = f8_fma(odd_of(xv), odd_of(wv), acc[j]);
      acc[j] = f8_fma(even_of(xv), even_of(wv), acc[j]);
    }
  }
}

QUIRE_INLINE void half_f32(struct corner at, quire_f8 *acc, int64_t begin, int64_t end) {
  int columns = 8 / at.rows;
  for (int64_t e = begin; e < end; e += 16) {
    QUIRE_UNROLL
    for (int i = 0; i < 8; i++) {
      int r = i % at.rows;
      int c = i / at.rows;
      int j = r * columns + c;
      quire_f8 xv = f8_load((const float *)(const void *)(at.x + r * at.x_ld) + e);
      quire_f8 wv = f8_load((const float *)(const void *)(at.w + c * at.w_ld) + e);
      acc[j] = f8_fma(xv, wv, acc[j]);
    }
  }
}

/* rows x columns = 8 outputs of the tile from (r0, c0), one half of their lanes. */
QUIRE_INLINE void eight(const struct quire_gemm_tile *t, bool bf16, int r0, int c0, int rows, int half) {
  int columns = 8 / rows;
  int64_t bytes = bf16 ? 2 : 4;
  struct corner at = {(const uint8_t *)t->x + r0 * t->x_ld * bytes, (const uint8_t *)t->w + c0 * t->w_ld * bytes,
                      t->x_ld * bytes, t->w_ld * bytes, rows};
  int tile_columns = QUIRE_GEMM_OUTPUTS / t->rows;
  float *lanes = t->lanes + half * 8;
  int64_t units = bf16 ? t->k / 2 : t->k; /* pairs or elements */
  int64_t block = t->scale == NULL ? units : bf16 ? QUIRE_FP8_BLOCK / 2 : QUIRE_FP8_BLOCK;
  for (int64_t begin = 0; begin < units; begin += block) {
    int64_t end = begin + block < units ? begin + block : units;
    bool fresh = t->scale != NULL || t->first;
    quire_f8 acc[8];
    QUIRE_UNROLL
    for (int j = 0; j < 8; j++) {
      int output = (r0 + j / columns) * tile_columns + c0 + j % columns;
      acc[j] = fresh ? f8_all(0.0f) : f8_load(lanes + output * QUIRE_GEMM_LANES);
    }
    if (bf16) {
      half_bf16(at, acc, begin + half * 8, end);
    } else {
      half_f32(at, acc, begin + half * 8, end);
    }
    QUIRE_UNROLL
    for (int j = 0; j < 8; j++) {
      float *to = lanes + ((r0 + j / columns) * tile_columns + c0 + j % columns) * QUIRE_GEMM_LANES;
      if (t->scale != NULL) {
        quire_f8 former = t->first && begin == 0 ? f8_all(0.0f) : f8_load(to);
        acc[j] = f8_fma(f8_all(t->scale[begin / block]), acc[j], former);
      }
      f8_store(to, acc[j]);
    }
  }
}

QUIRE_INLINE void tile(const struct quire_gemm_tile *t, bool bf16) {
  for (int half = 0; half < 2; half++) {
    if (t->rows == 4) {
      eight(t, bf16, 0, 0, 2, half);
      eight(t, bf16, 2, 0, 2, half);
    } else if (t->rows == 2) {
      eight(t, bf16, 0, 0, 2, half);
      eight(t, bf16, 0, 4, 2, half);
    } else {
      eight(t, bf16, 0, 0, 1, half);
      eight(t, bf16, 0, 8, 1, half);
    }
  }
  if (t->last) {
    int columns = QUIRE_GEMM_OUTPUTS / t->rows;
    for (int j = 0; j < QUIRE_GEMM_OUTPUTS; j++) {
      struct quire_lanes l = lanes_load(t->lanes + j * QUIRE_GEMM_LANES, LANES);
      t->out[j / columns * t->out_ld + j % columns] = lanes_fold(l);
    }
  }
}

static void tile_bf16(const struct quire_gemm_tile *t) { tile(t, true); }

static void strip_bf16(const struct quire_gemm_tile *t) {
  struct quire_gemm_tile at = *t;
  for (int column = 0; column < QUIRE_GEMM_COLUMNS; column += QUIRE_GEMM_OUTPUTS / ROW_GROUP) {
    tile(&at, true);
    at.w = (const uint16_t *)at.w + QUIRE_GEMM_OUTPUTS / ROW_GROUP * at.w_ld;
    at.lanes += QUIRE_GEMM_OUTPUTS * QUIRE_GEMM_LANES;
    at.out += QUIRE_GEMM_OUTPUTS / ROW_GROUP;
  }
}

static void tile_f32(const struct quire_gemm_tile *t) { tile(t, false); }

static void e4m3_to_bf16(const uint8_t *x, uint16_t *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    quire_h16 v = h16_of_e4m3(x + i);
    memcpy(y + i, &v, sizeof v);
  }
  for (; i < n; i++) {
    y[i] = quire_e4m3_to_bf16(x[i]);
  }
}

static void e4m3_to_f32(const uint8_t *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t wide[16];
    quire_h16 v = h16_of_e4m3(x + i);
    memcpy(wide, &v, sizeof v);
    f8_store(y + i, f8_of_bf16(wide));
    f8_store(y + i + 8, f8_of_bf16(wide + 8));
  }
  for (; i < n; i++) {
    y[i] = quire_e4m3_widen(x[i]);
  }
}

static bool row(const struct quire_gemm_row *r) {
  (void)r; /* decoding is no cheaper than the stage here */
  return false;
}

const struct quire_gemm_isa quire_gemm_isa_portable = {
    .row = row,
    .tile_bf16 = tile_bf16,
    .tile_f32 = tile_f32,
    .strip_bf16 = strip_bf16,
    .e4m3_to_bf16 = e4m3_to_bf16,
    .e4m3_to_f32 = e4m3_to_f32,
};

/* --- launchers --- */

struct gemm_run {
  const struct quire_gemm_isa *isa;
  struct quire_gemm gemm;
};

static_assert(sizeof(struct gemm_run) <= QUIRE_STREAM_ARGS_BYTES_MAX, "arguments travel by value");

static void member(void *context, int member_index, int threads) {
  const struct gemm_run *run = context;
  quire_gemm_compute(run->isa, &run->gemm, quire_gemm_share(&run->gemm, member_index, threads));
}

/* Few rows are bound by reading W: as if there were four. */
static void gemm_run(void *args, struct quire_team *team) {
  const struct gemm_run *run = args;
  const struct quire_gemm *gemm = &run->gemm;
  int64_t rows = gemm->m < ROW_GROUP ? ROW_GROUP : gemm->m;
  struct quire_team *useful = quire_cpu_team(team, rows * gemm->w.n * gemm->w.k / QUIRE_CPU_MACS);
  if (gemm->w.layout == QUIRE_WEIGHT_PACKED) {
    quire_prepacked_run(run->isa, gemm, useful);
  } else if (quire_packed_suits(run->isa, gemm)) {
    quire_packed_run(run->isa, gemm, useful);
  } else {
    quire_cpu_run(useful, member, args);
  }
}

static void launch(struct quire_stream *stream, const struct quire_gemm_isa *isa, const struct quire_gemm *gemm) {
  struct gemm_run run = {.isa = isa, .gemm = *gemm};
  QUIRE_ASSERT(gemm->m >= 0 && gemm->w.n > 0 && gemm->w.k > 0);
  QUIRE_ASSERT(gemm->w.layout == QUIRE_WEIGHT_ROWS || (isa->prepacked != NULL && gemm->x_dtype == QUIRE_DTYPE_BF16));
  if (gemm->m > 0) {
    quire_stream_launch(stream, gemm_run, &run, sizeof run);
  }
}

void quire_gemm_portable(struct quire_stream *stream, struct quire_gemm gemm) {
  launch(stream, &quire_gemm_isa_portable, &gemm);
}

void quire_gemm_avx512(struct quire_stream *stream, struct quire_gemm gemm) {
  launch(stream, &quire_gemm_isa_avx512, &gemm);
}
