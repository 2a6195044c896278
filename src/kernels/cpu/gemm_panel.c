/* The driver of panels (gemm_panel.h): 32 columns after another, each packed once for all rows. While rows are computed
 * the columns that come next are asked for, a share with each tile. */
#include "kernels/cpu/gemm_panel.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"

#define K_MAX (QUIRE_PANEL_STEPS * 32)
/* Where panels are faster than tiles, as measured: the shorter k is, the more a tile folds, and the more rows there
 * are, the less packing costs; twice the k for fp8, which a tile scales with two sets of lanes. */
#define ROWS_FEW 16
#define ROWS_MANY 64
#define K_FEW 128
#define SCALED_STEPS (QUIRE_FP8_BLOCK / 32)
#define STAGE_LD (K_MAX + 32)

static_assert(4 * K_FEW <= K_MAX, "the longest k has a panel");
static_assert(2 * K_FEW <= QUIRE_PREPACKED_SHORT_STEPS * 32, "bf16 is of short k");
static_assert(QUIRE_FP8_BLOCK % QUIRE_PACKED_COLUMNS == 0, "the columns of a panel share their scales");
static_assert(QUIRE_PACKED_COLUMNS % QUIRE_GEMM_COLUMNS == 0, "parts begin on panels or in their middle");

struct stage {
  _Alignas(64) uint32_t panel[QUIRE_GEMM_LANES * QUIRE_PANEL_STEPS * QUIRE_PACKED_COLUMNS];
  _Alignas(64) uint16_t w[QUIRE_PACKED_COLUMNS * STAGE_LD];
  _Alignas(64) uint16_t x[QUIRE_PANEL_ROWS * STAGE_LD];
  _Alignas(64) float sums[QUIRE_PREPACKED_SHORT_SUMS];
  _Alignas(64) float out[QUIRE_PANEL_ROWS * QUIRE_PACKED_COLUMNS];
};

struct plan {
  const struct quire_gemm_isa *isa;
  const struct quire_gemm *gemm;
  struct stage *stage;
  int32_t k, steps;
  int32_t w_bytes; /* of an element */
};

/* Columns of one panel: at most 32, up to a multiple of 32. */
struct piece {
  int64_t column;
  int32_t columns;
};

static struct piece piece_at(int64_t column, int64_t end) {
  int64_t whole = QUIRE_PACKED_COLUMNS - column % QUIRE_PACKED_COLUMNS;
  return (struct piece){column, (int32_t)(end - column < whole ? end - column : whole)};
}

static const uint8_t *weight_at(const struct plan *p, int64_t column) {
  return (const uint8_t *)p->gemm->w.data + column * p->gemm->w.ld * p->w_bytes;
}

static int64_t lane_words(const struct plan *p) { return (int64_t)p->steps * QUIRE_PACKED_COLUMNS; }

/* Columns into the panel, by way of the stage where they are fp8 or have an end that no panel has. */
static void piece_pack(const struct plan *p, struct piece piece) {
  const struct quire_gemm *g = p->gemm;
  const uint16_t *w = (const uint16_t *)(const void *)weight_at(p, piece.column);
  int64_t ld = g->w.ld;
  if (g->w.dtype == QUIRE_DTYPE_FP8 || piece.columns < QUIRE_PACKED_COLUMNS || p->k % 32 != 0) {
    for (int32_t c = 0; c < QUIRE_PACKED_COLUMNS; c++) {
      uint16_t *to = p->stage->w + c * STAGE_LD;
      int32_t n = c < piece.columns ? p->k : 0;
      if (n > 0 && g->w.dtype == QUIRE_DTYPE_FP8) {
        p->isa->e4m3_to_bf16(weight_at(p, piece.column + c), to, n);
      } else if (n > 0) {
        memcpy(to, weight_at(p, piece.column + c), (size_t)n * 2);
      }
      memset(to + n, 0, (size_t)(p->steps * 32 - n) * 2);
    }
    w = p->stage->w;
    ld = STAGE_LD;
  }
  for (int half = 0; half < 2; half++) {
    uint32_t *at = p->stage->panel + half * (QUIRE_PACKED_COLUMNS / 2);
    struct quire_packed_place to = {{at, at + QUIRE_PACKED_COLUMNS / 4}, lane_words(p), QUIRE_PACKED_COLUMNS};
    p->isa->packed->pack(w + half * (QUIRE_PACKED_COLUMNS / 2) * ld, ld, p->steps, to);
  }
}

/* The share of a tile, out of `groups`, in asking for the columns that come next, where columns lie one behind
 * another. */
static int32_t ask_lines(const struct plan *p, struct piece next, int64_t groups) {
  int64_t bytes = p->gemm->w.ld == p->k ? (int64_t)next.columns * p->k * p->w_bytes : 0;
  return (int32_t)((bytes / CACHE_LINE + groups - 1) / groups);
}

/* Points a tile at its rows of x; a k that ends within a step goes by way of the stage. */
static void rows_point(const struct plan *p, int64_t row, struct quire_panel_tile *tile) {
  tile->x = (const uint16_t *)p->gemm->x + row * p->gemm->x_ld;
  tile->x_ld = p->gemm->x_ld;
  if (p->k % 32 != 0) {
    for (int32_t r = 0; r < tile->rows; r++) {
      uint16_t *to = p->stage->x + r * STAGE_LD;
      memcpy(to, tile->x + r * tile->x_ld, (size_t)p->k * 2);
      memset(to + p->k, 0, (size_t)(p->steps * 32 - p->k) * 2);
    }
    tile->x = p->stage->x;
    tile->x_ld = STAGE_LD;
  }
}

/* Rows against the panel: as they meet weights packed at load, where those have a way for it. */
static void tile_compute(const struct plan *p, const struct quire_panel_tile *tile) {
  if (tile->scale != NULL && tile->steps != SCALED_STEPS) {
    p->isa->panel->tile(tile);
    return;
  }
  struct quire_prepacked_short rows = {.x = tile->x,
                                       .w = tile->panel,
                                       .scale = tile->scale,
                                       .sums = p->stage->sums,
                                       .out = tile->out,
                                       .ask = tile->ask,
                                       .x_ld = tile->x_ld,
                                       .out_ld = tile->out_ld,
                                       .steps = tile->steps,
                                       .rows = tile->rows,
                                       .ask_lines = tile->ask_lines};
  p->isa->prepacked->short_k(&rows);
}

/* One panel, all rows of the part. */
static void piece_compute(const struct plan *p, struct piece piece, struct piece next, struct quire_gemm_part part) {
  const struct quire_gemm *g = p->gemm;
  int64_t groups = (part.row_end - part.row_begin + QUIRE_PANEL_ROWS - 1) / QUIRE_PANEL_ROWS;
  bool whole = g->y_dtype == QUIRE_DTYPE_F32 && piece.columns == QUIRE_PACKED_COLUMNS;
  struct quire_panel_tile tile = {
      .panel = p->stage->panel,
      .scale = g->w.dtype == QUIRE_DTYPE_FP8 ? g->w.scale + piece.column / QUIRE_FP8_BLOCK * g->w.scale_ld : NULL,
      .ask = weight_at(p, next.column),
      .ask_lines = ask_lines(p, next, groups),
      .steps = p->steps,
  };
  piece_pack(p, piece);
  for (int64_t group = 0; group < groups; group++) {
    int64_t row = part.row_begin + group * QUIRE_PANEL_ROWS;
    tile.rows = (int32_t)(part.row_end - row < QUIRE_PANEL_ROWS ? part.row_end - row : QUIRE_PANEL_ROWS);
    rows_point(p, row, &tile);
    bool direct = whole && tile.rows % 4 == 0; /* written in fours */
    tile.out = direct ? (float *)g->y + row * g->y_ld + piece.column : p->stage->out;
    tile.out_ld = direct ? g->y_ld : QUIRE_PACKED_COLUMNS;
    tile_compute(p, &tile);
    tile.ask += (int64_t)tile.ask_lines * CACHE_LINE;
    if (!direct) {
      quire_packed_out(g, p->stage->out, row, tile.rows, piece.column, piece.columns);
    }
  }
}

bool quire_panel_suits(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, int64_t rows) {
  int64_t k_few = gemm->w.dtype == QUIRE_DTYPE_FP8 ? 2 * K_FEW : K_FEW;
  bool shape = rows >= ROWS_MANY ? gemm->w.k <= 2 * k_few : rows >= ROWS_FEW && gemm->w.k <= k_few;
  return isa->panel != NULL && shape && gemm->x_dtype == QUIRE_DTYPE_BF16 && gemm->w.dtype != QUIRE_DTYPE_F32;
}

void quire_panel_compute(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_gemm_part part) {
  struct stage stage;
  struct plan p = {.isa = isa,
                   .gemm = gemm,
                   .stage = &stage,
                   .k = gemm->w.k,
                   .steps = (gemm->w.k + 31) / 32,
                   .w_bytes = gemm->w.dtype == QUIRE_DTYPE_FP8 ? 1 : 2};
  QUIRE_ASSERT(part.column_begin % QUIRE_GEMM_COLUMNS == 0 && gemm->w.k > 0 && gemm->w.k <= K_MAX);
  QUIRE_ASSERT(isa->packed != NULL && isa->prepacked != NULL);
  struct piece piece = piece_at(part.column_begin, part.column_end);
  while (piece.columns > 0) {
    struct piece next = piece_at(piece.column + piece.columns, part.column_end);
    piece_compute(&p, piece, next, part);
    piece = next;
  }
}
