/* The driver of weights packed at load (gemm_prepacked.h), and their packing. */
#include "kernels/cpu/gemm_prepacked.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/run.h"

#define STEP 32
#define LINE_WORDS (CACHE_LINE / (int)sizeof(uint32_t))
#define TILE_ROWS (QUIRE_PACKED_TILE_GROUPS * QUIRE_PACKED_ROWS)
#define ASK_FAR 8192 /* bytes ahead of where few rows read */
#define NEAR_K 4096  /* of a row that stays in the first level cache beside the weights that go by */
#define SHORT_LANE_WORDS (QUIRE_FP8_BLOCK / STEP * QUIRE_PACKED_COLUMNS)
#define MIDDLE_K 1024 /* up to here sums are as many bytes as weights */

static_assert(QUIRE_FP8_BLOCK % QUIRE_PACKED_COLUMNS == 0, "the columns of a panel share their scales");
static_assert(QUIRE_PREPACKED_SHORT_ROWS == TILE_ROWS, "one stage for both");
static_assert(QUIRE_PREPACKED_MIDDLE_ROWS <= QUIRE_PACKED_BLOCK, "tiles have the largest sums");

struct stage {
  _Alignas(64) float sums[QUIRE_PACKED_LEVELS * QUIRE_PACKED_LEVEL_STRIDE];
  _Alignas(64) float out[QUIRE_PREPACKED_MIDDLE_ROWS * QUIRE_PACKED_COLUMNS];
  _Alignas(64) uint32_t panel[QUIRE_GEMM_LANES * SHORT_LANE_WORDS]; /* fp8 of a short k, decoded */
};

static bool fp8(const struct quire_weight *w) { return w->dtype == QUIRE_DTYPE_FP8; }

static int64_t panel_bytes(const struct quire_weight *w) {
  return (int64_t)QUIRE_PACKED_COLUMNS * w->k * (fp8(w) ? 1 : 2);
}

static const uint8_t *panel_at(const struct quire_weight *w, int64_t column) {
  return (const uint8_t *)w->data + column / QUIRE_PACKED_COLUMNS * panel_bytes(w);
}

bool quire_weight_can_pack(const struct quire_weight *w) {
  return w->layout == QUIRE_WEIGHT_ROWS && ((w->dtype == QUIRE_DTYPE_BF16 && w->k % STEP == 0) ||
                                            (w->dtype == QUIRE_DTYPE_FP8 && w->k % QUIRE_FP8_BLOCK == 0));
}

int64_t quire_weight_packed_bytes(const struct quire_weight *w) {
  return ((int64_t)w->n + QUIRE_PACKED_COLUMNS - 1) / QUIRE_PACKED_COLUMNS * panel_bytes(w);
}

void quire_weight_pack_avx512(const struct quire_weight *rows, void *data, struct quire_weight *packed_out) {
  QUIRE_ASSERT(quire_weight_can_pack(rows) && (uintptr_t)data % CACHE_LINE == 0);
  for (int64_t column = 0; column < rows->n; column += QUIRE_PACKED_COLUMNS) {
    quire_prepacked_isa_avx512.pack(rows, column, (uint8_t *)data + column / QUIRE_PACKED_COLUMNS * panel_bytes(rows));
  }
  *packed_out = *rows;
  packed_out->layout = QUIRE_WEIGHT_PACKED;
  packed_out->data = data;
  packed_out->ld = rows->k;
}

static bool short_k(const struct quire_weight *w) {
  return fp8(w) ? w->k == QUIRE_FP8_BLOCK : w->k <= QUIRE_PREPACKED_SHORT_STEPS * STEP;
}

static bool row_alone(const struct quire_gemm_isa *isa, const struct quire_weight *w, int64_t rows) {
  return rows == 1 && (!fp8(w) || isa->prepacked->reads_codes());
}

bool quire_prepacked_direct(const struct quire_gemm_isa *isa, const struct quire_weight *w, int64_t rows) {
  return short_k(w) || (row_alone(isa, w, rows) && w->k <= NEAR_K);
}

/* Whether a row alone is packed by itself: whatever weights it meets, no tile reads it. */
static bool row_tight(const struct quire_gemm_isa *isa, int64_t rows) {
  return rows == 1 && isa->prepacked->reads_codes();
}

int64_t quire_prepacked_x_stride(const struct quire_gemm_isa *isa, int64_t rows, int64_t steps) {
  return row_tight(isa, rows) ? (steps + LINE_WORDS - 1) / LINE_WORDS * LINE_WORDS : quire_packed_x_stride(rows, steps);
}

void quire_prepacked_x(const struct quire_gemm_isa *isa, const struct quire_packed_rows *from, int64_t begin,
                       int64_t end) {
  QUIRE_ASSERT(from->k % STEP == 0 && from->index == NULL && end <= from->rows);
  if (!row_tight(isa, from->rows)) {
    quire_packed_x(isa, from, begin, end);
    return;
  }
  for (int position = 0; begin < end && position < QUIRE_GEMM_LANES; position++) {
    const uint16_t *x = from->x + 2 * quire_packed_lane(position);
    uint32_t *to = from->to + position * from->stride;
    for (int32_t step = 0; step < from->k / STEP; step++) {
      memcpy(to + step, x + step * STEP, sizeof *to);
    }
  }
}

int64_t quire_prepacked_lane_words(int32_t k) { return (int64_t)k / STEP * QUIRE_PACKED_COLUMNS; }

/* A panel of a block of rows. */
struct panel {
  const struct quire_prepacked_block *block;
  const struct quire_gemm *gemm;
  struct stage *stage;
  const uint8_t *w;
  const float *scale;
  int64_t column;
  int32_t columns;
  bool direct; /* outputs go to y itself */
};

/* The same panel for `rows` of its rows: outputs of short and middle k are written in fours, so of others by way of the
 * stage. */
static struct panel panel_in_fours(const struct panel *p, int32_t rows) {
  struct panel fours = *p;
  fours.direct = p->direct && rows % 4 == 0;
  return fours;
}

static int64_t out_ld(const struct panel *p) { return p->direct ? p->gemm->y_ld : QUIRE_PACKED_COLUMNS; }

static float *out_at(const struct panel *p, int64_t row) {
  return p->direct ? (float *)p->gemm->y + (p->block->row + row) * p->gemm->y_ld + p->column : p->stage->out;
}

static void out_write(const struct panel *p, int64_t row, int32_t rows) {
  if (!p->direct) {
    quire_packed_out(p->gemm, p->stage->out, p->block->row + row, rows, p->column, p->columns);
  }
}

static const uint16_t *x_at(const struct panel *p, int64_t row) {
  return (const uint16_t *)p->gemm->x + (p->block->row + row) * p->gemm->x_ld;
}

static void short_compute(const struct quire_gemm_isa *isa, const struct panel *p) {
  const struct quire_weight *w = &p->gemm->w;
  int32_t blocks = (p->block->rows + QUIRE_PREPACKED_SHORT_ROWS - 1) / QUIRE_PREPACKED_SHORT_ROWS;
  int32_t lines = (int32_t)((panel_bytes(w) / CACHE_LINE + blocks - 1) / blocks);
  struct quire_prepacked_short rows = {
      .w = (const uint32_t *)(const void *)p->w,
      .scale = p->scale,
      .sums = p->stage->sums,
      .ask = p->w + panel_bytes(w),
      .x_ld = p->gemm->x_ld,
      .steps = w->k / STEP,
      .ask_lines = lines,
  };
  if (fp8(w)) {
    isa->prepacked->decode(p->w, (int64_t)QUIRE_GEMM_LANES * rows.steps, p->stage->panel);
    rows.w = p->stage->panel;
    rows.ask_lines = 0;
  }
  for (int32_t row = 0; row < p->block->rows; row += QUIRE_PREPACKED_SHORT_ROWS) {
    int32_t left = p->block->rows - row;
    rows.rows = left < QUIRE_PREPACKED_SHORT_ROWS ? left : QUIRE_PREPACKED_SHORT_ROWS;
    const struct panel to = panel_in_fours(p, rows.rows);
    rows.x = x_at(p, row);
    rows.out = out_at(&to, row);
    rows.out_ld = out_ld(&to);
    isa->prepacked->short_k(&rows);
    rows.ask += (int64_t)lines * CACHE_LINE;
    out_write(&to, row, rows.rows);
  }
}

/* bf16, and enough rows that lanes go by in pairs. */
static bool middle_k(const struct quire_weight *w, int64_t rows) {
  return !fp8(w) && !short_k(w) && w->k <= MIDDLE_K && rows > QUIRE_PACKED_ROWS;
}

static void middle_compute(const struct quire_gemm_isa *isa, const struct panel *p) {
  const struct quire_packed_rows *x = p->block->x;
  struct quire_prepacked_middle rows = {
      .w = (const uint32_t *)(const void *)p->w,
      .sums = p->stage->sums,
      .x_stride = x->stride,
      .steps = p->gemm->w.k / STEP,
  };
  for (int32_t row = 0; row < p->block->rows; row += QUIRE_PREPACKED_MIDDLE_ROWS) {
    int32_t left = p->block->rows - row;
    rows.rows = left < QUIRE_PREPACKED_MIDDLE_ROWS ? left : QUIRE_PREPACKED_MIDDLE_ROWS;
    rows.x = x->to + quire_packed_x_row(row, rows.steps);
    const struct panel to = panel_in_fours(p, rows.rows);
    rows.out = out_at(&to, row);
    rows.out_ld = out_ld(&to);
    isa->prepacked->middle_k(&rows);
    out_write(&to, row, rows.rows);
  }
}

/* Few rows read W once and ask ahead of where they read; of many, the first tile asks for the lane that comes next. */
static void tiles_compute(const struct quire_gemm_isa *isa, const struct panel *p) {
  const struct quire_prepacked_block *b = p->block;
  const int32_t steps = p->gemm->w.k / STEP;
  const int64_t lane_bytes = panel_bytes(&p->gemm->w) / QUIRE_GEMM_LANES;
  struct quire_packed_tile tile = {.scale = p->scale, .out_ld = out_ld(p), .steps = steps};
  for (tile.position = 0; tile.position < QUIRE_GEMM_LANES; tile.position++) {
    const uint8_t *lane = p->w + tile.position * lane_bytes;
    tile.w = (const uint32_t *)(const void *)lane;
    if (p->scale != NULL) {
      isa->prepacked->decode(lane, steps, b->lane);
      tile.w = b->lane;
    }
    tile.ask = b->rows <= QUIRE_PACKED_ROWS ? lane + ASK_FAR : lane + lane_bytes;
    for (int32_t row = 0; row < b->rows; row += TILE_ROWS, tile.ask = NULL) {
      tile.x = b->x->to + tile.position * b->x->stride + (int64_t)row * steps;
      tile.sums = p->stage->sums + (int64_t)row * QUIRE_PACKED_COLUMNS;
      tile.out = out_at(p, row);
      tile.rows = b->rows - row < TILE_ROWS ? b->rows - row : TILE_ROWS;
      isa->packed->tile(&tile);
      if (tile.position == QUIRE_GEMM_LANES - 1) {
        out_write(p, row, tile.rows);
      }
    }
  }
}

/* Asks for the beginning of a share. (Always inline: gcc takes a function that only prefetches for one without effect,
 * and drops its calls.) */
QUIRE_INLINE void share_open(const uint8_t *begin, const uint8_t *end) {
  for (const uint8_t *at = begin; at < end && at < begin + ASK_FAR; at += CACHE_LINE) {
    __builtin_prefetch(at);
  }
}

/* A row alone: whole panels into y itself where it is f32, or as many at a time as the stage has room for. */
static void row_compute(const struct quire_gemm_isa *isa, const struct quire_prepacked_block *b, struct stage *stage,
                        int64_t column, int64_t end) {
  const struct quire_gemm *g = b->gemm;
  const bool direct = quire_prepacked_direct(isa, &g->w, 1);
  struct quire_prepacked_row row = {.scale_ld = g->w.scale_ld, .steps = g->w.k / STEP};
  row.scale = fp8(&g->w) ? g->w.scale : NULL;
  row.x = direct ? (const uint8_t *)((const uint16_t *)g->x + b->row * g->x_ld) : (const uint8_t *)b->x->to;
  row.step_bytes = direct ? STEP * 2 : (row_tight(isa, 1) ? 1 : QUIRE_PACKED_ROWS) * (int64_t)sizeof(uint32_t);
  for (int position = 0; position < QUIRE_GEMM_LANES; position++) {
    int64_t word = direct ? quire_packed_lane(position) : position * b->x->stride;
    row.lane[position] = word * (int64_t)sizeof(uint32_t);
  }
  row.ask_end = (const uint8_t *)UINTPTR_MAX; /* what follows a matrix is likely the next */
  if (b->shared) {
    row.ask_end = panel_at(&g->w, end + QUIRE_PACKED_COLUMNS - 1);
    share_open(panel_at(&g->w, column), row.ask_end);
  }
  while (column < end) {
    int64_t left = end - column;
    bool whole = g->y_dtype == QUIRE_DTYPE_F32 && left >= QUIRE_PACKED_COLUMNS;
    int64_t panels = whole ? left / QUIRE_PACKED_COLUMNS : (left + QUIRE_PACKED_COLUMNS - 1) / QUIRE_PACKED_COLUMNS;
    row.panel = (int32_t)(column / QUIRE_PACKED_COLUMNS);
    row.panels = (int32_t)(whole || panels < TILE_ROWS ? panels : TILE_ROWS);
    row.w = panel_at(&g->w, column);
    row.out = whole ? (float *)g->y + b->row * g->y_ld + column : stage->out;
    isa->prepacked->row(&row);
    int64_t columns = row.panels * (int64_t)QUIRE_PACKED_COLUMNS;
    if (!whole) {
      quire_packed_out(g, stage->out, b->row, 1, column, (int32_t)(left < columns ? left : columns));
    }
    column += columns;
  }
}

void quire_prepacked_compute(const struct quire_gemm_isa *isa, const struct quire_prepacked_block *block,
                             int64_t column_begin, int64_t column_end) {
  const struct quire_gemm *g = block->gemm;
  struct stage stage;
  QUIRE_ASSERT(g->w.layout == QUIRE_WEIGHT_PACKED && g->x_dtype == QUIRE_DTYPE_BF16 && isa->prepacked != NULL);
  QUIRE_ASSERT(column_begin == column_end || column_begin % QUIRE_PACKED_COLUMNS == 0);
  QUIRE_ASSERT(block->rows > 0 && block->rows <= QUIRE_PACKED_BLOCK);
  if (row_alone(isa, &g->w, block->rows)) {
    row_compute(isa, block, &stage, column_begin, column_end);
    return;
  }
  for (int64_t column = column_begin; column < column_end; column += QUIRE_PACKED_COLUMNS) {
    int64_t columns = column_end - column;
    struct panel p = {.block = block, .gemm = g, .stage = &stage, .column = column, .w = panel_at(&g->w, column)};
    p.columns = (int32_t)(columns < QUIRE_PACKED_COLUMNS ? columns : QUIRE_PACKED_COLUMNS);
    p.scale = fp8(&g->w) ? g->w.scale + column / QUIRE_FP8_BLOCK * g->w.scale_ld : NULL;
    p.direct = g->y_dtype == QUIRE_DTYPE_F32 && columns >= QUIRE_PACKED_COLUMNS;
    if (short_k(&g->w)) {
      short_compute(isa, &p);
    } else if (middle_k(&g->w, block->rows)) {
      middle_compute(isa, &p);
    } else {
      tiles_compute(isa, &p);
    }
  }
}

/* --- a whole product --- */

struct run {
  const struct quire_gemm_isa *isa;
  const struct quire_gemm *gemm;
  struct quire_packed_rows x;
  uint32_t *lanes; /* of each member */
  int64_t row;
  int32_t rows;
};

static void x_share(void *context, int member, int threads) {
  const struct run *r = context;
  int64_t begin, end;
  quire_team_share(r->rows, 2 * QUIRE_PACKED_ROWS, member, threads, &begin, &end);
  quire_prepacked_x(r->isa, &r->x, begin, end);
}

static void w_share(void *context, int member, int threads) {
  const struct run *r = context;
  int64_t begin, end;
  struct quire_prepacked_block block = {r->gemm, &r->x, NULL, r->row, r->rows, threads > 1};
  if (r->lanes != NULL) {
    block.lane = r->lanes + member * quire_prepacked_lane_words(r->gemm->w.k);
  }
  quire_team_share(r->gemm->w.n, QUIRE_PACKED_COLUMNS, member, threads, &begin, &end);
  quire_prepacked_compute(r->isa, &block, begin, end);
}

void quire_prepacked_run(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_team *team) {
  struct run r = {.isa = isa, .gemm = gemm};
  int32_t steps = gemm->w.k / STEP;
  int32_t rows_max = short_k(&gemm->w) || gemm->w.k > MIDDLE_K ? QUIRE_PACKED_BLOCK : QUIRE_PREPACKED_MIDDLE_ROWS;
  int32_t blocks = (gemm->m + rows_max - 1) / rows_max;
  int32_t even = ((gemm->m + blocks - 1) / blocks + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
  for (r.row = 0; r.row < gemm->m; r.row += r.rows) {
    r.rows = (int32_t)(gemm->m - r.row < even ? gemm->m - r.row : even);
    if (!quire_prepacked_direct(isa, &gemm->w, r.rows)) {
      QUIRE_ASSERT(gemm->scratch != NULL);
      r.x = (struct quire_packed_rows){.ld = gemm->x_ld, .rows = r.rows, .k = gemm->w.k};
      r.x.x = (const uint16_t *)gemm->x + r.row * gemm->x_ld;
      r.x.to = (uint32_t *)(((uintptr_t)gemm->scratch + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
      r.x.stride = quire_prepacked_x_stride(isa, r.rows, steps);
      r.lanes = r.x.to + QUIRE_GEMM_LANES * r.x.stride;
      quire_cpu_run(quire_cpu_team(team, (int64_t)r.rows * gemm->w.k), x_share, &r);
    }
    quire_cpu_run(team, w_share, &r);
  }
}
