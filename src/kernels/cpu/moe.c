/* Routed experts and the shared one (arithmetic.md 11).
 *
 *   sort     (token, choice) pairs by expert: expert e owns slots [begin[e], begin[e + 1])
 *   gather   the rows of x in slot order, so that an expert's rows lie together
 *   inner    h = silu(gate x) * up x      for each expert, columns shared among the members
 *   outer    y = r * (down h)             likewise
 *   home     each token sums its rows by rising expert id, then the shared expert's, into the residual
 *
 * The shared expert is one more with every token as a row. Grouping only moves rows: each is computed as if alone.
 *
 * Where weights were packed at load, a member packs the rows of a batch (of a block of it) for itself when it comes to
 * its first columns of it: a few thousandths of its work, and nobody waits. */
#include "kernels/cpu/moe.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/gemm_prepacked.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

#define COLUMNS 64 /* of an expert, that a member takes at a time */

static_assert(QUIRE_FP8_BLOCK % COLUMNS == 0, "a slice of columns stays within one block of scales");

struct moe_run {
  const struct quire_gemm_isa *isa;
  struct quire_moe op;
};

static_assert(sizeof(struct moe_run) <= QUIRE_STREAM_ARGS_BYTES_MAX, "arguments travel by value");

struct workspace {
  int32_t *begin;    /* [experts + 1] first slot of each expert */
  int32_t *slot_of;  /* [m][k] slot of each pair */
  int32_t *pair_of;  /* [m * k] pair of each slot */
  uint8_t *x;        /* [m * k][hidden] as x */
  uint8_t *inner;    /* [m * k][expert_width] as x */
  uint8_t *shared;   /* [m][shared_width] as x */
  float *outer;      /* [m * k][hidden] */
  float *shared_out; /* [m][hidden] */
  float *columns;    /* [threads][2][m][64]: gate and up on their way into h */
  uint32_t *packed;  /* [threads][packed_words] rows of a block, then a lane of decoded weights */
  int64_t packed_words;
};

struct moe_context {
  const struct moe_run *run;
  struct workspace ws;
};

/* Words a member packs into: a block of rows of the widest product, behind it a lane of a panel. */
static int64_t packed_words(const struct quire_moe *op) {
  QUIRE_ASSERT(op->m >= 0 && op->hidden > 0);
  int32_t k = op->hidden > op->expert_width ? op->hidden : op->expert_width;
  k = k > op->shared_width ? k : op->shared_width;
  int64_t rows = op->m < QUIRE_PACKED_BLOCK ? op->m : QUIRE_PACKED_BLOCK;
  return quire_packed_x_stride(rows, (k + 31) / 32) * QUIRE_GEMM_LANES + quire_prepacked_lane_words(k + 31);
}

/* Sets the workspace (where given) and returns its bytes. Sized for f32. */
static int64_t workspace_carve(const struct quire_moe *op, uint8_t *base, int threads, struct workspace *ws_out) {
  int64_t pairs = (int64_t)op->m * op->k;
  QUIRE_ASSERT(threads > 0 && pairs >= 0);
  int64_t sizes[] = {
      ((int64_t)op->expert_count + 1) * 4,
      pairs * 4,
      pairs * 4,
      pairs * op->hidden * 4,
      pairs * op->expert_width * 4,
      (int64_t)op->m * op->shared_width * 4,
      pairs * op->hidden * 4,
      (int64_t)op->m * op->hidden * 4,
      (int64_t)threads * 2 * op->m * COLUMNS * 4,
      threads * packed_words(op) * (int64_t)sizeof(uint32_t),
  };
  void *pieces[sizeof sizes / sizeof sizes[0]];
  int64_t at = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    pieces[i] = base == NULL ? NULL : base + at;
    at += quire_cpu_padded(sizes[i]);
  }
  if (ws_out != NULL) {
    *ws_out = (struct workspace){
        .begin = pieces[0],
        .slot_of = pieces[1],
        .pair_of = pieces[2],
        .x = pieces[3],
        .inner = pieces[4],
        .shared = pieces[5],
        .outer = pieces[6],
        .shared_out = pieces[7],
        .columns = pieces[8],
        .packed = pieces[9],
        .packed_words = packed_words(op),
    };
  }
  return at;
}

int64_t quire_moe_scratch_bytes(const struct quire_moe *shape, int threads) {
  return workspace_carve(shape, NULL, threads, NULL) + 63; /* the caller's bytes need not be aligned */
}

/* Slots of the pairs, by expert, tokens in order: a counting sort. */
static void pairs_sort(const struct quire_moe *op, const struct workspace *ws) {
  int64_t pairs = (int64_t)op->m * op->k;
  memset(ws->begin, 0, ((size_t)op->expert_count + 1) * sizeof(int32_t));
  for (int64_t pair = 0; pair < pairs; pair++) {
    int32_t expert = op->ids[pair];
    QUIRE_ASSERT(expert >= 0 && expert < op->expert_count);
    QUIRE_ASSERT(pair % op->k == 0 || expert > op->ids[pair - 1]); /* so an expert has at most m rows */
    ws->slot_of[pair] = ws->begin[expert + 1]++;                   /* number within its expert */
  }
  for (int32_t e = 0; e < op->expert_count; e++) {
    ws->begin[e + 1] += ws->begin[e];
  }
  for (int64_t pair = 0; pair < pairs; pair++) {
    ws->slot_of[pair] += ws->begin[op->ids[pair]];
    ws->pair_of[ws->slot_of[pair]] = (int32_t)pair;
  }
}

static int64_t x_bytes(const struct quire_moe *op) { return op->x_dtype == QUIRE_DTYPE_BF16 ? 2 : 4; }

static void gather_share(void *context, int member, int threads) {
  const struct moe_context *c = context;
  const struct quire_moe *op = &c->run->op;
  QUIRE_ASSERT(op->m <= 1 || op->x_ld >= op->hidden);
  int64_t begin, end;
  int64_t bytes = x_bytes(op);
  quire_team_share((int64_t)op->m * op->k, 1, member, threads, &begin, &end);
  for (int64_t slot = begin; slot < end; slot++) {
    int64_t token = c->ws.pair_of[slot] / op->k;
    memcpy(c->ws.x + slot * op->hidden * bytes, (const uint8_t *)op->x + token * op->x_ld * bytes,
           (size_t)(op->hidden * bytes));
  }
}

/* One expert's rows: x [rows, hidden] -> inner [rows, width] -> outer [rows, hidden]. */
struct batch {
  const struct quire_expert *expert;
  const uint8_t *x;
  int64_t x_ld;
  uint8_t *inner;
  float *outer;
  int64_t rows;
  int32_t width;
};

/* Batch number `index`: the experts by id, then the shared one. */
static struct batch batch_at(const struct moe_context *c, int32_t index) {
  QUIRE_ASSERT(index >= 0 && index <= c->run->op.expert_count);
  const struct quire_moe *op = &c->run->op;
  int64_t bytes = x_bytes(op);
  if (index == op->expert_count) {
    return (struct batch){.expert = &op->shared,
                          .x = op->x,
                          .x_ld = op->x_ld,
                          .inner = c->ws.shared,
                          .outer = c->ws.shared_out,
                          .rows = op->m,
                          .width = op->shared_width};
  }
  int64_t slot = c->ws.begin[index];
  return (struct batch){.expert = &op->experts[index],
                        .x = c->ws.x + slot * op->hidden * bytes,
                        .x_ld = op->hidden,
                        .inner = c->ws.inner + slot * op->expert_width * bytes,
                        .outer = c->ws.outer + slot * op->hidden,
                        .rows = c->ws.begin[index + 1] - slot,
                        .width = op->expert_width};
}

static int32_t batch_count(const struct quire_moe *op) { return op->expert_count + (op->shared.gate.n > 0); }

/* Rows [begin, ...) of a batch, as many as are computed together: of packed weights a block. */
static struct batch batch_rows(const struct moe_context *c, const struct batch *whole, int64_t begin) {
  QUIRE_ASSERT(begin >= 0 && begin <= whole->rows);
  const struct quire_moe *op = &c->run->op;
  struct batch b = *whole;
  b.x += begin * b.x_ld * x_bytes(op);
  b.inner += begin * b.width * x_bytes(op);
  b.outer += begin * op->hidden;
  b.rows -= begin;
  const struct quire_expert *e = b.expert; /* a checkpoint may store any of the three in another type */
  bool packed = e->gate.layout == QUIRE_WEIGHT_PACKED || e->up.layout == QUIRE_WEIGHT_PACKED ||
                e->down.layout == QUIRE_WEIGHT_PACKED;
  if (packed && b.rows > QUIRE_PACKED_BLOCK) {
    b.rows = QUIRE_PACKED_BLOCK;
  }
  return b;
}

/* What a member has packed: the rows of a batch it is at, or nothing yet. */
struct packing {
  struct quire_packed_rows rows;
  uint32_t *lane;
};

static struct packing packing_of(const struct moe_context *c, int member, int32_t k) {
  struct packing p = {.rows = {.to = c->ws.packed + member * c->ws.packed_words, .k = k}};
  p.lane = p.rows.to + c->ws.packed_words - quire_prepacked_lane_words(k + 31);
  QUIRE_ASSERT(p.lane > p.rows.to);
  return p;
}

/* Columns [column, end) of a product on the calling member. `p` belongs to these rows of x. */
static void product_compute(const struct moe_run *run, const struct quire_gemm *product, struct packing *p,
                            int64_t column, int64_t end) {
  QUIRE_ASSERT(column >= 0 && column <= end && end <= product->w.n);
  if (product->w.layout == QUIRE_WEIGHT_ROWS) {
    struct quire_gemm_part part = {.row_end = product->m, .column_begin = column, .column_end = end};
    quire_gemm_compute(run->isa, product, part);
    return;
  }
  if (p->rows.x == NULL && !quire_prepacked_direct(run->isa, &product->w, product->m)) {
    p->rows.x = product->x;
    p->rows.ld = product->x_ld;
    p->rows.rows = product->m;
    p->rows.stride = quire_prepacked_x_stride(run->isa, product->m, product->w.k / 32);
    quire_prepacked_x(run->isa, &p->rows, 0, product->m);
  }
  struct quire_prepacked_block block = {product, &p->rows, p->lane, 0, product->m, false};
  quire_prepacked_compute(run->isa, &block, column, end);
}

/* Rows [column, end) of a weight, at most COLUMNS of them; column is a multiple of COLUMNS. */
static struct quire_weight weight_slice(const struct quire_weight *w, int64_t column, int64_t end) {
  QUIRE_ASSERT(column >= 0 && column % COLUMNS == 0 && column < end && end <= w->n);
  int64_t bytes = w->dtype == QUIRE_DTYPE_F32 ? 4 : w->dtype == QUIRE_DTYPE_BF16 ? 2 : 1;
  struct quire_weight slice = *w; /* packed: whole panels before it, of as many bytes */
  slice.data = (const uint8_t *)w->data + column * w->ld * bytes;
  slice.n = (int32_t)(end - column);
  if (w->dtype == QUIRE_DTYPE_FP8) {
    slice.scale = w->scale + column / QUIRE_FP8_BLOCK * w->scale_ld;
  }
  return slice;
}

/* Columns [column, end) of h of one batch; gate and up pass through `columns`. */
static void inner_compute(const struct moe_run *run, const struct batch *b, struct packing *packing, float *columns,
                          int64_t column, int64_t end) {
  const struct quire_moe *op = &run->op;
  float *up = columns + b->rows * COLUMNS;
  struct quire_gemm product = {.x = b->x,
                               .y = columns,
                               .w = weight_slice(&b->expert->gate, column, end),
                               .x_dtype = op->x_dtype,
                               .y_dtype = QUIRE_DTYPE_F32,
                               .m = (int32_t)b->rows,
                               .x_ld = b->x_ld,
                               .y_ld = COLUMNS};
  product_compute(run, &product, packing, 0, end - column);
  product.w = weight_slice(&b->expert->up, column, end);
  product.y = up;
  product_compute(run, &product, packing, 0, end - column);
  for (int64_t row = 0; row < b->rows; row++) {
    quire_silu_mul_row(columns + row * COLUMNS, up + row * COLUMNS, b->inner + (row * b->width + column) * x_bytes(op),
                       op->x_dtype, end - column);
  }
}

/* Calls are dealt in turn over all batches, so that members end together whatever the router chose. */
static void inner_share(void *context, int member, int threads) {
  const struct moe_context *c = context;
  const struct quire_moe *op = &c->run->op;
  float *columns = c->ws.columns + (int64_t)member * 2 * op->m * COLUMNS;
  int64_t turn = 0;
  for (int32_t index = 0; index < batch_count(op); index++) {
    struct batch whole = batch_at(c, index), b;
    for (int64_t row = 0; row < whole.rows; row += b.rows) {
      struct packing packing = packing_of(c, member, op->hidden);
      b = batch_rows(c, &whole, row);
      for (int64_t column = 0; column < b.width; column += COLUMNS, turn++) {
        if (turn % threads == member) {
          int64_t end = column + COLUMNS < b.width ? column + COLUMNS : b.width;
          inner_compute(c->run, &b, &packing, columns, column, end);
        }
      }
    }
  }
}

static void outer_compute(const struct moe_context *c, const struct batch *b, struct packing *packing, int64_t column,
                          int64_t end) {
  const struct quire_moe *op = &c->run->op;
  struct quire_gemm product = {.x = b->inner,
                               .y = b->outer,
                               .w = b->expert->down,
                               .x_dtype = op->x_dtype,
                               .y_dtype = QUIRE_DTYPE_F32,
                               .m = (int32_t)b->rows,
                               .x_ld = b->width,
                               .y_ld = op->hidden};
  product_compute(c->run, &product, packing, column, end);
  if (b->expert == &op->shared) {
    return; /* not weighted */
  }
  int64_t slot = (b->outer - c->ws.outer) / op->hidden;
  for (int64_t row = 0; row < b->rows; row++) {
    float weight = op->weights[c->ws.pair_of[slot + row]];
    float *y = b->outer + row * op->hidden;
    for (int64_t i = column; i < end; i++) {
      y[i] = weight * y[i];
    }
  }
}

static void outer_share(void *context, int member, int threads) {
  const struct moe_context *c = context;
  const struct quire_moe *op = &c->run->op;
  int64_t turn = 0;
  for (int32_t index = 0; index < batch_count(op); index++) {
    struct batch whole = batch_at(c, index), b;
    for (int64_t row = 0; row < whole.rows; row += b.rows) {
      struct packing packing = packing_of(c, member, whole.width);
      b = batch_rows(c, &whole, row);
      for (int64_t column = 0; column < op->hidden; column += COLUMNS, turn++) {
        if (turn % threads == member) {
          int64_t end = column + COLUMNS < op->hidden ? column + COLUMNS : op->hidden;
          outer_compute(c, &b, &packing, column, end);
        }
      }
    }
  }
}

static void home_share(void *context, int member, int threads) {
  const struct moe_context *c = context;
  const struct quire_moe *op = &c->run->op;
  QUIRE_ASSERT(op->m <= 1 || op->residual_ld >= op->hidden);
  bool shared = op->shared.gate.n > 0;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t token = begin; token < end; token++) {
    const int32_t *slots = c->ws.slot_of + token * op->k;
    float *residual = op->residual + token * op->residual_ld;
    const float *last = c->ws.shared_out + token * op->hidden;
    for (int64_t i = 0; i < op->hidden; i++) {
      float t = op->k > 0 ? c->ws.outer[(int64_t)slots[0] * op->hidden + i] : last[i];
      for (int32_t j = 1; j < op->k; j++) { /* ids rise with j */
        t = t + c->ws.outer[(int64_t)slots[j] * op->hidden + i];
      }
      t = shared && op->k > 0 ? t + last[i] : t;
      residual[i] = residual[i] + t;
    }
  }
}

/* Multiply-adds of all experts; few rows are bound by reading weights, as if there were four. */
static int64_t expert_work(const struct quire_moe *op) {
  QUIRE_ASSERT(op->m >= 0 && op->k >= 0);
  int64_t rows = op->m < 4 ? 4 : op->m;
  return 3 * rows * op->hidden * ((int64_t)op->k * op->expert_width + op->shared_width);
}

static void moe_run(void *args, struct quire_team *whole) {
  const struct moe_run *run = args;
  const struct quire_moe *op = &run->op;
  QUIRE_ASSERT(op->scratch != NULL);
  struct quire_team *team = quire_cpu_team(whole, expert_work(op) / QUIRE_CPU_MACS);
  struct moe_context context = {.run = run};
  uintptr_t base = ((uintptr_t)op->scratch + 63) & ~(uintptr_t)63;
  workspace_carve(op, (uint8_t *)base, quire_team_threads(team), &context.ws);
  pairs_sort(op, &context.ws);
  quire_cpu_run(quire_cpu_team(team, (int64_t)op->m * op->k * op->hidden), gather_share, &context);
  quire_cpu_run(team, inner_share, &context);
  quire_cpu_run(team, outer_share, &context);
  quire_cpu_run(quire_cpu_team(team, (int64_t)op->m * (op->k + 1) * op->hidden), home_share, &context);
}

static void launch(struct quire_stream *stream, const struct quire_gemm_isa *isa, const struct quire_moe *op) {
  struct moe_run run = {.isa = isa, .op = *op};
  QUIRE_ASSERT(op->m >= 0 && op->k >= 0 && op->hidden > 0);
  QUIRE_ASSERT(op->x_dtype == QUIRE_DTYPE_BF16 || op->x_dtype == QUIRE_DTYPE_F32);
  QUIRE_ASSERT(op->k > 0 || op->shared.gate.n > 0);
  QUIRE_ASSERT(isa->prepacked != NULL || op->k == 0 || op->experts[0].gate.layout == QUIRE_WEIGHT_ROWS);
  if (op->m > 0) {
    quire_stream_launch(stream, moe_run, &run, sizeof run);
  }
}

void quire_moe_portable(struct quire_stream *stream, struct quire_moe moe) {
  launch(stream, &quire_gemm_isa_portable, &moe);
}

void quire_moe_avx512(struct quire_stream *stream, struct quire_moe moe) {
  launch(stream, &quire_gemm_isa_avx512, &moe);
}
