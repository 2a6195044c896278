/* The driver of packed operands (gemm_packed.h): for each block of rows the team packs x, then each member takes its
 * columns, a panel after another. */
#include "kernels/cpu/gemm_packed.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/run.h"

#define PACK_ROWS 16 /* of x, or columns of W, in one call */
#define STEP 32      /* elements of k */
#define UNIT_STEPS 4 /* of k packed at a time: a block of fp8 */
#define UNIT_ELEMENTS (UNIT_STEPS * STEP)
#define LINE_WORDS 16 /* behind each lane, so that their beginnings do not share sets of a cache */
#define ALIAS_BYTES 4096
#define UNITS_AHEAD 1 /* between asking for weights and packing them */
#define TILE_ROWS (QUIRE_PACKED_TILE_GROUPS * QUIRE_PACKED_ROWS)
/* Where packing pays, as measured. */
#define ROWS_MIN 128
#define COLUMNS_MIN 256
#define K_MIN 1024

static_assert(UNIT_ELEMENTS == QUIRE_FP8_BLOCK, "a unit of fp8 has one scale");
static_assert(QUIRE_FP8_BLOCK % QUIRE_PACKED_COLUMNS == 0, "the columns of a panel share their scales");
static_assert(QUIRE_PACKED_BLOCK % TILE_ROWS == 0 && TILE_ROWS % PACK_ROWS == 0, "tiles and packing fill a block");

struct stage {
  _Alignas(64) float sums[QUIRE_PACKED_LEVELS * QUIRE_PACKED_LEVEL_STRIDE];
  _Alignas(64) float out[TILE_ROWS * QUIRE_PACKED_COLUMNS];
  _Alignas(64) uint16_t rows[PACK_ROWS * UNIT_ELEMENTS];
};

/* One block of rows of a product. */
struct plan {
  const struct quire_gemm_isa *isa;
  const struct quire_gemm *gemm;
  struct quire_packed_rows x;
  uint32_t *w; /* two panels of each member */
  int64_t row;
  int32_t rows;
  int32_t steps;
  bool aliased;     /* columns of W lie a multiple of ALIAS_BYTES apart */
  int64_t w_stride; /* between lanes */
};

int64_t quire_packed_x_stride(int64_t rows, int64_t steps) {
  int64_t packed = (rows + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS;
  return packed * steps + LINE_WORDS;
}

static int64_t w_lane(int64_t steps) { return QUIRE_PACKED_COLUMNS * steps + LINE_WORDS; }

int64_t quire_gemm_scratch_bytes(int32_t m, int32_t k, int threads) {
  int64_t rows = m < QUIRE_PACKED_BLOCK ? m : QUIRE_PACKED_BLOCK;
  int64_t steps = ((int64_t)k + STEP - 1) / STEP;
  QUIRE_ASSERT(m >= 0 && k > 0 && threads > 0);
  return CACHE_LINE + (quire_packed_x_stride(rows, steps) + 2 * threads * w_lane(steps)) * QUIRE_GEMM_LANES *
                          (int64_t)sizeof(uint32_t);
}

/* 16 rows of one operand, from element k on, at most a unit. */
struct source {
  const uint8_t *data; /* first row, at element k */
  enum quire_dtype dtype;
  int64_t ld;
  const int32_t *index; /* of the rows; NULL: they follow one another */
  int64_t k;            /* elements that are left */
  int32_t rows;
};

/* Packs a unit, by way of the stage where rows or steps are not whole, rows lie apart or elements are fp8. */
static void unit_pack(const struct quire_gemm_isa *isa, struct source from, uint16_t *stage,
                      struct quire_packed_place to) {
  int32_t n = from.k < UNIT_ELEMENTS ? (int32_t)from.k : UNIT_ELEMENTS;
  int32_t steps = (n + STEP - 1) / STEP;
  const uint16_t *rows = (const uint16_t *)(const void *)from.data;
  if (from.dtype == QUIRE_DTYPE_FP8 || from.rows < PACK_ROWS || n % STEP != 0 || from.index != NULL) {
    for (int32_t r = 0; r < PACK_ROWS; r++) {
      uint16_t *y = stage + r * UNIT_ELEMENTS;
      int32_t filled = r < from.rows ? n : 0;
      int64_t row = filled > 0 && from.index != NULL ? from.index[r] : r;
      if (filled > 0 && from.dtype == QUIRE_DTYPE_FP8) {
        isa->e4m3_to_bf16(from.data + row * from.ld, y, filled);
      } else if (filled > 0) {
        memcpy(y, rows + row * from.ld, (size_t)filled * 2);
      }
      memset(y + filled, 0, (size_t)(steps * STEP - filled) * 2);
    }
    rows = stage;
    from.ld = UNIT_ELEMENTS;
  }
  isa->packed->pack(rows, from.ld, steps, to);
}

/* --- x --- */

void quire_packed_x(const struct quire_gemm_isa *isa, const struct quire_packed_rows *from, int64_t begin,
                    int64_t end) {
  _Alignas(64) uint16_t stage[PACK_ROWS * UNIT_ELEMENTS];
  int64_t group_words = (from->k + STEP - 1) / STEP * (int64_t)QUIRE_PACKED_ROWS;
  QUIRE_ASSERT((begin == end || begin % PACK_ROWS == 0) && end <= from->rows);
  for (int64_t row = begin; row < end; row += PACK_ROWS) {
    const uint16_t *x = from->index != NULL ? from->x : from->x + row * from->ld;
    for (int64_t k = 0; k < from->k; k += UNIT_ELEMENTS) {
      struct source source = {(const uint8_t *)(x + k), QUIRE_DTYPE_BF16, from->ld, NULL, from->k - k, PACK_ROWS};
      source.index = from->index != NULL ? from->index + row : NULL;
      source.rows = (int32_t)(end - row < PACK_ROWS ? end - row : PACK_ROWS);
      uint32_t *at = from->to + row / QUIRE_PACKED_ROWS * group_words + k / STEP * QUIRE_PACKED_ROWS;
      struct quire_packed_place to = {{at, at + group_words}, from->stride, QUIRE_PACKED_ROWS};
      unit_pack(isa, source, stage, to);
    }
  }
}

static void x_share(void *context, int member, int threads) {
  const struct plan *p = context;
  int64_t begin, end;
  quire_team_share(p->rows, PACK_ROWS, member, threads, &begin, &end);
  quire_packed_x(p->isa, &p->x, begin, end);
}

/* --- W --- */

/* A panel on its way: at most 32 columns, up to a multiple of 32; they are packed unit by unit, each 16 columns of 128
 * elements, and their lines asked for in the same order. */
struct panel {
  uint32_t *data;
  int64_t column;
  int32_t columns;
  int32_t units, packed; /* of the whole panel */
  int64_t lines, asked;
};

static struct panel panel_at(const struct plan *p, uint32_t *data, int64_t column, int64_t end) {
  int64_t whole = QUIRE_PACKED_COLUMNS - column % QUIRE_PACKED_COLUMNS;
  struct panel panel = {.data = data, .column = column};
  panel.columns = (int32_t)(end - column < whole ? end - column : whole);
  panel.units = panel.columns > 0 ? (p->steps + UNIT_STEPS - 1) / UNIT_STEPS * (QUIRE_PACKED_COLUMNS / PACK_ROWS) : 0;
  panel.lines = panel.units * (int64_t)PACK_ROWS;
  return panel;
}

static int32_t w_bytes(const struct plan *p) { return p->gemm->w.dtype == QUIRE_DTYPE_FP8 ? 1 : 2; }

/* Column c of unit u. */
QUIRE_INLINE const uint8_t *unit_at(const struct plan *p, const struct panel *panel, int64_t unit, int64_t c) {
  const int32_t halves = QUIRE_PACKED_COLUMNS / PACK_ROWS;
  const struct quire_weight *w = &p->gemm->w;
  int64_t column = panel->column + unit % halves * PACK_ROWS + c;
  return (const uint8_t *)w->data + (column * w->ld + unit / halves * UNIT_ELEMENTS) * w_bytes(p);
}

/* Asks for runs of a unit's elements in one column, up to `until`; where columns share sets of the first level cache,
 * into the second. (Always inline: gcc takes a function that only prefetches for one without effect, and drops its
 * calls.) */
QUIRE_INLINE void panel_ask(const struct plan *p, struct panel *panel, int64_t until) {
  for (; panel->asked < until && panel->asked < panel->lines; panel->asked++) {
    const uint8_t *from = unit_at(p, panel, panel->asked / PACK_ROWS, panel->asked % PACK_ROWS);
    for (int64_t at = 0; at < UNIT_ELEMENTS * w_bytes(p); at += CACHE_LINE) {
      if (p->aliased) {
        __builtin_prefetch(from + at, 0, 2);
      } else {
        __builtin_prefetch(from + at);
      }
    }
  }
}

static void panel_pack(const struct plan *p, struct panel *panel, struct stage *stage, int32_t until) {
  const int32_t halves = QUIRE_PACKED_COLUMNS / PACK_ROWS;
  const struct quire_weight *w = &p->gemm->w;
  for (; panel->packed < until; panel->packed++) {
    int64_t begin = panel->packed % halves * PACK_ROWS, k = (int64_t)(panel->packed / halves) * UNIT_ELEMENTS;
    int64_t columns = panel->columns - begin;
    struct source from = {unit_at(p, panel, panel->packed, 0), w->dtype, w->ld, NULL, w->k - k, PACK_ROWS};
    from.rows = (int32_t)(columns < 0 ? 0 : columns < PACK_ROWS ? columns : PACK_ROWS);
    uint32_t *at = panel->data + k / STEP * QUIRE_PACKED_COLUMNS + begin;
    struct quire_packed_place to = {{at, at + PACK_ROWS / 2}, p->w_stride, QUIRE_PACKED_COLUMNS};
    unit_pack(p->isa, from, stage->rows, to);
  }
}

void quire_packed_out(const struct quire_gemm *gemm, const float *from, int64_t row, int32_t rows, int64_t column,
                      int32_t columns) {
  for (int32_t r = 0; r < rows; r++) {
    const float *out = from + r * QUIRE_PACKED_COLUMNS;
    int64_t at = (row + r) * gemm->y_ld + column;
    if (gemm->y_dtype == QUIRE_DTYPE_BF16) {
      lanes_to_bf16(out, (uint16_t *)gemm->y + at, columns);
    } else {
      memcpy((float *)gemm->y + at, out, (size_t)columns * sizeof(float));
    }
  }
}

/* One panel, all rows of the block, while the next is packed. */
static void panel_compute(const struct plan *p, const struct panel *panel, struct panel *next, struct stage *stage) {
  const struct quire_gemm *g = p->gemm;
  bool direct = g->y_dtype == QUIRE_DTYPE_F32 && panel->columns == QUIRE_PACKED_COLUMNS;
  int64_t tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS * QUIRE_GEMM_LANES, tile_number = 0;
  struct quire_packed_tile tile = {
      .scale = g->w.dtype == QUIRE_DTYPE_FP8 ? g->w.scale + panel->column / QUIRE_FP8_BLOCK * g->w.scale_ld : NULL,
      .out = stage->out,
      .out_ld = direct ? g->y_ld : QUIRE_PACKED_COLUMNS,
      .steps = p->steps,
  };
  for (tile.position = 0; tile.position < QUIRE_GEMM_LANES; tile.position++) {
    tile.w = panel->data + tile.position * p->w_stride;
    for (int64_t row = 0; row < p->rows; row += TILE_ROWS, tile_number++) {
      panel_ask(p, next, next->lines * (tile_number + 1) / tiles + UNITS_AHEAD * PACK_ROWS);
      panel_pack(p, next, stage, (int32_t)(next->units * (tile_number + 1) / tiles));
      tile.x = p->x.to + tile.position * p->x.stride + row * p->steps;
      tile.sums = stage->sums + row * QUIRE_PACKED_COLUMNS;
      tile.rows = (int32_t)(p->rows - row < TILE_ROWS ? p->rows - row : TILE_ROWS);
      if (direct) {
        tile.out = (float *)g->y + (p->row + row) * g->y_ld + panel->column;
      }
      p->isa->packed->tile(&tile);
      if (tile.position == QUIRE_GEMM_LANES - 1 && !direct) {
        quire_packed_out(g, stage->out, p->row + row, tile.rows, panel->column, panel->columns);
      }
    }
  }
}

static void w_share(void *context, int member, int threads) {
  const struct plan *p = context;
  struct stage stage;
  int64_t column, end, panel_words = QUIRE_GEMM_LANES * p->w_stride;
  uint32_t *data = p->w + 2 * member * panel_words;
  quire_team_share(p->gemm->w.n, QUIRE_PACKED_COLUMNS, member, threads, &column, &end);
  struct panel panel = panel_at(p, data, column, end);
  panel_ask(p, &panel, UNITS_AHEAD * PACK_ROWS);
  for (int32_t unit = 1; unit <= panel.units; unit++) {
    panel_ask(p, &panel, (unit + UNITS_AHEAD) * (int64_t)PACK_ROWS);
    panel_pack(p, &panel, &stage, unit);
  }
  for (int turn = 1; panel.columns > 0; turn ^= 1) {
    struct panel next = panel_at(p, data + turn * panel_words, panel.column + panel.columns, end);
    panel_compute(p, &panel, &next, &stage);
    panel = next;
  }
}

bool quire_packed_suits(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm) {
  return isa->packed != NULL && gemm->scratch != NULL && gemm->x_dtype == QUIRE_DTYPE_BF16 &&
         gemm->w.dtype != QUIRE_DTYPE_F32 && gemm->m >= ROWS_MIN && gemm->w.n >= COLUMNS_MIN && gemm->w.k >= K_MIN;
}

void quire_packed_run(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_team *team) {
  struct plan p = {.isa = isa, .gemm = gemm, .steps = (gemm->w.k + STEP - 1) / STEP};
  int32_t blocks = (gemm->m + QUIRE_PACKED_BLOCK - 1) / QUIRE_PACKED_BLOCK;
  int32_t even = ((gemm->m + blocks - 1) / blocks + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS;
  QUIRE_ASSERT(quire_packed_suits(isa, gemm) && gemm->y_dtype != QUIRE_DTYPE_FP8);
  p.x = (struct quire_packed_rows){.ld = gemm->x_ld, .k = gemm->w.k};
  p.x.to = (uint32_t *)(((uintptr_t)gemm->scratch + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
  p.w_stride = w_lane(p.steps);
  p.aliased = gemm->w.ld * w_bytes(&p) % ALIAS_BYTES == 0;
  for (p.row = 0; p.row < gemm->m; p.row += p.rows) {
    p.rows = (int32_t)(gemm->m - p.row < even ? gemm->m - p.row : even);
    p.x.x = (const uint16_t *)gemm->x + p.row * gemm->x_ld;
    p.x.rows = p.rows;
    p.x.stride = quire_packed_x_stride(p.rows, p.steps);
    p.w = p.x.to + QUIRE_GEMM_LANES * p.x.stride;
    quire_cpu_run(team, x_share, &p);
    quire_cpu_run(team, w_share, &p);
  }
}
