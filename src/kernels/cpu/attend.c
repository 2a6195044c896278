/* Attention of one query row at a time over its selected rows, for up to 64 heads at a time.
 *
 *   gather   the selected rows, decoded, side by side in scratch: once for all heads
 *   scores   q x rows, the product of gemm.h
 *   softmax  maximum, exponentials, their sum
 *   values   of a block of 256 rows, a cache line's width stays in the near cache while every head passes over it
 *
 * Rows that see all their positions have lists that are beginnings of one another, so the gather of the row before is
 * kept and only grown; that is most of a short prefill. Many rows are dealt to the members in turn; few rows (decode)
 * are gathered by all members together and then split by heads. */
#include "kernels/cpu/attend.h"

#include <assert.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/run.h"

#define ROWS_BLOCK 256
#define DEAL_ROWS_MAX 8
#define PREFETCH_ROWS 8

static_assert(ROWS_BLOCK % 2 == 0, "blocks hold whole pairs");

struct workspace {
  uint8_t *rows; /* [topk + 1][576] bf16 or f32 */
  uint8_t *q;    /* [QUIRE_ATTEND_HEADS][576] */
  float *scores; /* [QUIRE_ATTEND_HEADS][score_ld]; bf16 probabilities lie at the start of each head's */
  float *out;    /* [QUIRE_ATTEND_HEADS][512] */
  int64_t score_ld;
  const struct quire_kv_source *held; /* whose positions from first on the rows are, */
  int32_t held_count;                 /* so many; 0: something else */
};

struct attend_run {
  const struct quire_attend_isa *isa;
  struct quire_attend op;
};

struct attend_context {
  const struct attend_run *run;
  int32_t row;  /* when split by heads */
  int32_t deal; /* rows dealt at a time */
};

static_assert(sizeof(struct attend_run) <= QUIRE_STREAM_ARGS_BYTES_MAX, "arguments travel by value");

static bool is_bf16(const struct quire_attend *op) {
  return op->q_dtype == QUIRE_DTYPE_BF16 && op->format != QUIRE_KV_F32;
}

static int64_t padded_topk(int32_t topk) { return ((int64_t)topk + LANES - 1) / LANES * LANES; }

/* A line more than needed: a power of two would put the same place of all heads into the same set of the cache. */
static int64_t score_ld(int32_t topk) { return padded_topk(topk) + LANES; }

static int64_t workspace_bytes(int32_t topk) {
  return quire_cpu_padded(((int64_t)topk + 1) * QUIRE_KV_DIM * 4) +
         quire_cpu_padded((int64_t)QUIRE_ATTEND_HEADS * QUIRE_KV_DIM * 4) +
         quire_cpu_padded(QUIRE_ATTEND_HEADS * score_ld(topk) * 4) +
         quire_cpu_padded((int64_t)QUIRE_ATTEND_HEADS * QUIRE_LATENT_DIM * 4);
}

int64_t quire_attend_scratch_bytes(int32_t heads, int32_t topk, int threads) {
  QUIRE_ASSERT(heads > 0 && topk > 0 && threads > 0);
  return workspace_bytes(topk) * threads + 63; /* the caller's bytes need not be aligned */
}

static struct workspace workspace_of(const struct quire_attend *op, int member) {
  QUIRE_ASSERT(op->scratch != NULL && member >= 0);
  uintptr_t base = ((uintptr_t)op->scratch + 63) & ~(uintptr_t)63;
  uint8_t *at = (uint8_t *)base + workspace_bytes(op->topk) * member;
  struct workspace ws = {.score_ld = score_ld(op->topk)};
  ws.rows = at;
  at += quire_cpu_padded(((int64_t)op->topk + 1) * QUIRE_KV_DIM * 4);
  ws.q = at;
  at += quire_cpu_padded((int64_t)QUIRE_ATTEND_HEADS * QUIRE_KV_DIM * 4);
  ws.scores = (float *)at;
  at += quire_cpu_padded(QUIRE_ATTEND_HEADS * ws.score_ld * 4);
  ws.out = (float *)at;
  return ws;
}

/* 512 codes and 4 scales at `stored` to f32: the product, which bf16 need not hold (arithmetic.md 8). */
static void latent_fp8_f32(const uint8_t *stored, float *latent_out) {
  for (int i = 0; i < QUIRE_LATENT_DIM; i += 16) {
    float scale;
    uint16_t wide[16];
    quire_h16 v = h16_of_e4m3(stored + i);
    memcpy(&scale, stored + QUIRE_LATENT_DIM + i / QUIRE_LATENT_BLOCK * 4, sizeof scale);
    memcpy(wide, &v, sizeof v);
    f8_store(latent_out + i, f8_of_bf16(wide) * scale);
    f8_store(latent_out + i + 8, f8_of_bf16(wide + 8) * scale);
  }
}

/* One stored row, decoded to the type of the dot. */
static void row_decode(const struct attend_run *run, const uint8_t *stored, uint8_t *out) {
  const struct quire_attend *op = &run->op;
  uint16_t decoded[QUIRE_KV_DIM];
  bool bf16 = is_bf16(op);
  QUIRE_DEBUG(op->format != QUIRE_KV_F32 || !bf16);
  if (op->format == QUIRE_KV_F32) {
    memcpy(out, stored, QUIRE_KV_DIM * 4);
    return;
  }
  uint16_t *to = bf16 ? (uint16_t *)out : decoded;
  int32_t wide = 0; /* values already in f32 */
  if (op->format == QUIRE_KV_BF16) {
    memcpy(to, stored, QUIRE_KV_DIM * 2);
  } else {
    int64_t rope_at = QUIRE_LATENT_DIM + QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK * 4;
    if (bf16) {
      run->isa->latent_fp8(stored, to);
    } else {
      latent_fp8_f32(stored, (float *)out);
      wide = QUIRE_LATENT_DIM;
    }
    memcpy(to + QUIRE_LATENT_DIM, stored + rope_at, QUIRE_ROPE_DIM * 2);
  }
  if (!bf16) {
    quire_bf16_to_f32(to + wide, (float *)out + wide, QUIRE_KV_DIM - wide);
  }
}

/* Selected rows [begin, end) of a query row into the workspace. */
static void rows_gather(const struct attend_run *run, uint8_t *rows, int32_t row, int32_t begin, int32_t end) {
  const struct quire_attend *op = &run->op;
  if (begin >= end) {
    return;
  }
  const struct quire_kv_source *source = &op->rows.sources[op->rows.source_of[row]];
  const int32_t *list = op->indices + (int64_t)row * op->topk;
  int64_t bytes = (int64_t)QUIRE_KV_DIM * (is_bf16(op) ? 2 : 4);
  for (int32_t i = begin; i < end; i++) {
    QUIRE_ASSERT(list[i] >= 0 && list[i] < source->end && list[i] < op->rows.limit[row]);
    if (i + PREFETCH_ROWS < end) {
      const uint8_t *ahead = quire_kv_source_row(source, &op->part, 0, list[i + PREFETCH_ROWS]);
      for (int32_t at = 0; at < op->part.row_bytes; at += CACHE_LINE) {
        __builtin_prefetch(ahead + at);
      }
    }
    row_decode(run, quire_kv_source_row(source, &op->part, 0, list[i]), rows + i * bytes);
  }
}

/* An odd list gets a row of zeros to pair with its last. */
static void rows_close(const struct quire_attend *op, uint8_t *rows, int32_t count) {
  QUIRE_ASSERT(count > 0);
  int64_t bytes = (int64_t)QUIRE_KV_DIM * (is_bf16(op) ? 2 : 4);
  if (count % 2 != 0) {
    memset(rows + count * bytes, 0, (size_t)bytes);
  }
}

/* Gathers a row's list, starting from what the workspace holds already. */
static void rows_grow(const struct attend_run *run, struct workspace *ws, int32_t row) {
  QUIRE_ASSERT(row >= 0 && row < run->op.rows.m);
  const struct quire_attend *op = &run->op;
  const struct quire_kv_source *source = &op->rows.sources[op->rows.source_of[row]];
  int32_t count = op->counts[row];
  bool whole = count == op->rows.limit[row] - op->rows.first;
  int32_t have = whole && ws->held == source ? ws->held_count : 0;
  rows_gather(run, ws->rows, row, have, count);
  rows_close(op, ws->rows, count);
  ws->held = source;
  ws->held_count = 0;
  if (whole) { /* closing an odd list has overwritten the row behind it */
    ws->held_count = count >= have || count % 2 != 0 ? count : have;
  }
}

/* Heads [head, head + heads) of a query row: (latent, rope) side by side in the type of the dot. */
static void heads_stage(const struct quire_attend *op, const struct workspace *ws, int32_t row, int32_t head,
                        int heads) {
  QUIRE_ASSERT(heads > 0 && head + heads <= op->heads);
  for (int h = 0; h < heads; h++) {
    int64_t index = (int64_t)row * op->heads + head + h;
    if (op->q_dtype == QUIRE_DTYPE_F32) {
      float *to = (float *)ws->q + (int64_t)h * QUIRE_KV_DIM;
      memcpy(to, (const float *)op->q_latent + index * QUIRE_LATENT_DIM, QUIRE_LATENT_DIM * 4);
      memcpy(to + QUIRE_LATENT_DIM, (const float *)op->q_rope + index * QUIRE_ROPE_DIM, QUIRE_ROPE_DIM * 4);
    } else if (is_bf16(op)) {
      uint16_t *to = (uint16_t *)ws->q + (int64_t)h * QUIRE_KV_DIM;
      memcpy(to, (const uint16_t *)op->q_latent + index * QUIRE_LATENT_DIM, QUIRE_LATENT_DIM * 2);
      memcpy(to + QUIRE_LATENT_DIM, (const uint16_t *)op->q_rope + index * QUIRE_ROPE_DIM, QUIRE_ROPE_DIM * 2);
    } else {
      float *to = (float *)ws->q + (int64_t)h * QUIRE_KV_DIM;
      quire_bf16_to_f32((const uint16_t *)op->q_latent + index * QUIRE_LATENT_DIM, to, QUIRE_LATENT_DIM);
      quire_bf16_to_f32((const uint16_t *)op->q_rope + index * QUIRE_ROPE_DIM, to + QUIRE_LATENT_DIM, QUIRE_ROPE_DIM);
    }
  }
}

static void values_sum(const struct attend_run *run, const struct workspace *ws, const uint8_t *rows, int heads,
                       int32_t count) {
  QUIRE_ASSERT(heads > 0 && count > 0);
  memset(ws->out, 0, (size_t)heads * QUIRE_LATENT_DIM * sizeof(float));
  for (int32_t from = 0; from < count; from += ROWS_BLOCK) {
    int32_t n = count - from < ROWS_BLOCK ? count - from : ROWS_BLOCK;
    int64_t at = (int64_t)from * QUIRE_KV_DIM;
    if (is_bf16(&run->op)) {
      const uint16_t *p = (const uint16_t *)(const void *)ws->scores + from;
      run->isa->values_bf16(p, 2 * ws->score_ld, heads, (const uint16_t *)rows + at, (n + 1) / 2, ws->out);
    } else {
      run->isa->values_f32(ws->scores + from, ws->score_ld, heads, (const float *)rows + at, n, ws->out);
    }
  }
}

/* Up to QUIRE_ATTEND_HEADS heads of a query row whose list is gathered in `rows`. */
static void heads_attend(const struct attend_run *run, const struct workspace *ws, const uint8_t *rows, int32_t row,
                         int32_t head, int heads) {
  QUIRE_ASSERT(heads > 0 && heads <= QUIRE_ATTEND_HEADS && run->op.counts[row] > 0);
  const struct quire_attend *op = &run->op;
  int32_t count = op->counts[row];
  float sums[QUIRE_ATTEND_HEADS];
  enum quire_dtype type = is_bf16(op) ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
  heads_stage(op, ws, row, head, heads);
  struct quire_gemm dots = {
      .x = ws->q,
      .y = ws->scores,
      .w = {.data = rows, .dtype = type, .n = count, .k = QUIRE_KV_DIM, .ld = QUIRE_KV_DIM},
      .x_dtype = type,
      .y_dtype = QUIRE_DTYPE_F32,
      .m = heads,
      .x_ld = QUIRE_KV_DIM,
      .y_ld = ws->score_ld,
  };
  quire_gemm_compute(run->isa->gemm, &dots, (struct quire_gemm_part){.row_end = heads, .column_end = count});
  for (int h = 0; h < heads; h++) {
    float max;
    float *scores = ws->scores + h * ws->score_ld;
    sums[h] = run->isa->softmax(scores, count, op->scale, is_bf16(op), &max);
    op->lse[(int64_t)row * op->heads + head + h] = (float)((double)max + quire_log((double)sums[h]));
  }
  values_sum(run, ws, rows, heads, count);
  bool to_bf16 = op->out_dtype == QUIRE_DTYPE_BF16;
  for (int h = 0; h < heads; h++) {
    int64_t at = ((int64_t)row * op->heads + head + h) * QUIRE_LATENT_DIM;
    void *to = (uint8_t *)op->out + at * (to_bf16 ? 2 : 4);
    run->isa->finish(ws->out + (int64_t)h * QUIRE_LATENT_DIM, sums[h], to_bf16, to);
  }
}

/* No rows: zeros and a log-sum-exp of -inf. */
static void row_empty(const struct quire_attend *op, int32_t row) {
  QUIRE_ASSERT(op->counts[row] == 0);
  int64_t bytes = op->out_dtype == QUIRE_DTYPE_BF16 ? 2 : 4;
  int64_t values = (int64_t)op->heads * QUIRE_LATENT_DIM;
  memset((uint8_t *)op->out + row * values * bytes, 0, (size_t)(values * bytes));
  for (int32_t head = 0; head < op->heads; head++) {
    op->lse[(int64_t)row * op->heads + head] = -quire_float_of(QUIRE_INF_BITS);
  }
}

static void groups_attend(const struct attend_run *run, const struct workspace *ws, const uint8_t *rows, int32_t row,
                          int32_t begin, int32_t end) {
  QUIRE_ASSERT(begin >= 0 && end <= run->op.heads);
  for (int32_t head = begin; head < end; head += QUIRE_ATTEND_HEADS) {
    int32_t heads = end - head < QUIRE_ATTEND_HEADS ? end - head : QUIRE_ATTEND_HEADS;
    heads_attend(run, ws, rows, row, head, heads);
  }
}

/* Rows dealt in turn. */
static void rows_share(void *context, int member, int threads) {
  const struct attend_context *c = context;
  QUIRE_ASSERT(c->deal > 0 && member < threads);
  const struct quire_attend *op = &c->run->op;
  struct workspace ws = workspace_of(op, member);
  for (int32_t row = 0; row < op->rows.m; row++) {
    if (row / c->deal % threads != member) {
      continue;
    }
    if (op->counts[row] == 0) {
      row_empty(op, row);
      continue;
    }
    rows_grow(c->run, &ws, row);
    groups_attend(c->run, &ws, ws.rows, row, 0, op->heads);
  }
}

/* A member's share of the gather of one row, into the first workspace. */
static void gather_share(void *context, int member, int threads) {
  const struct attend_context *c = context;
  const struct quire_attend *op = &c->run->op;
  QUIRE_ASSERT(c->row >= 0 && c->row < op->rows.m && op->counts[c->row] > 0);
  uint8_t *rows = workspace_of(op, 0).rows;
  int64_t begin, end;
  quire_team_share(op->counts[c->row], 1, member, threads, &begin, &end);
  rows_gather(c->run, rows, c->row, (int32_t)begin, (int32_t)end);
  if (member == 0) {
    rows_close(op, rows, op->counts[c->row]);
  }
}

/* A member's share of the heads of one row. */
static void heads_share(void *context, int member, int threads) {
  const struct attend_context *c = context;
  const struct quire_attend *op = &c->run->op;
  QUIRE_ASSERT(c->row >= 0 && c->row < op->rows.m && op->counts[c->row] > 0);
  struct workspace ws = workspace_of(op, member);
  int64_t begin, end;
  quire_team_share(op->heads, 1, member, threads, &begin, &end);
  groups_attend(c->run, &ws, workspace_of(op, 0).rows, c->row, (int32_t)begin, (int32_t)end);
}

/* Multiply-adds of all rows. */
static int64_t attend_work(const struct quire_attend *op) {
  QUIRE_ASSERT(op->rows.m >= 0 && op->heads > 0);
  int64_t rows = 0;
  for (int32_t row = 0; row < op->rows.m; row++) {
    rows += op->counts[row];
  }
  return rows * op->heads * (QUIRE_KV_DIM + QUIRE_LATENT_DIM);
}

static void attend_run(void *args, struct quire_team *whole) {
  const struct attend_run *run = args;
  const struct quire_attend *op = &run->op;
  QUIRE_ASSERT(op->rows.m >= 0 && op->heads > 0);
  struct quire_team *team = quire_cpu_team(whole, attend_work(op) / QUIRE_CPU_MACS);
  int32_t threads = quire_team_threads(team);
  struct attend_context context = {.run = run};
  if (threads == 1 || op->rows.m >= 2 * threads) {
    int32_t deal = op->rows.m / (2 * threads);
    context.deal = deal < 1 ? 1 : deal > DEAL_ROWS_MAX ? DEAL_ROWS_MAX : deal;
    quire_cpu_run(team, rows_share, &context);
    return;
  }
  for (context.row = 0; context.row < op->rows.m; context.row++) {
    if (op->counts[context.row] == 0) {
      row_empty(op, context.row);
      continue;
    }
    quire_cpu_run(team, gather_share, &context);
    quire_cpu_run(team, heads_share, &context);
  }
}

static void launch(struct quire_stream *stream, const struct quire_attend_isa *isa, const struct quire_attend *op) {
  struct attend_run run = {.isa = isa, .op = *op};
  QUIRE_ASSERT(op->rows.m >= 0 && op->heads > 0 && op->topk > 0);
  QUIRE_ASSERT(op->part.kind == QUIRE_PART_LATENT);
  QUIRE_ASSERT(op->q_dtype != QUIRE_DTYPE_FP8 && op->out_dtype != QUIRE_DTYPE_FP8);
  if (op->rows.m > 0) {
    quire_stream_launch(stream, attend_run, &run, sizeof run);
  }
}

void quire_attend_portable(struct quire_stream *stream, struct quire_attend attend) {
  launch(stream, &quire_attend_isa_portable, &attend);
}

void quire_attend_avx512(struct quire_stream *stream, struct quire_attend attend) {
  launch(stream, &quire_attend_isa_avx512, &attend);
}

/* --- plain C --- */

static void latent_fp8(const uint8_t *stored, uint16_t *latent_out) {
  float decoded[QUIRE_LATENT_DIM];
  latent_fp8_f32(stored, decoded);
  lanes_to_bf16(decoded, latent_out, QUIRE_LATENT_DIM);
}

static float softmax(float *scores, int32_t count, float scale, bool bf16, float *max_out) {
  QUIRE_ASSERT(count > 0);
  quire_f8 largest = f8_all(-quire_float_of(QUIRE_INF_BITS));
  int64_t padded = padded_topk(count);
  for (int64_t j = count; j < padded; j++) {
    scores[j] = 0.0f;
  }
  for (int64_t j = 0; j < padded; j += 8) {
    f8_store(scores + j, f8_load(scores + j) * scale);
  }
  for (int64_t j = count; j < padded; j++) { /* padding: its exponential is the zero that the lanes take */
    scores[j] = -quire_float_of(QUIRE_INF_BITS);
  }
  for (int64_t j = 0; j < padded; j += 8) {
    largest = f8_max(largest, f8_load(scores + j));
  }
  float max = largest[0];
  for (int i = 1; i < 8; i++) {
    max = largest[i] > max ? largest[i] : max;
  }
  struct quire_lanes sum = lanes_zero();
  for (int64_t j = 0; j < padded; j += LANES) {
    quire_f8 low = f8_exp(f8_load(scores + j) - max);
    quire_f8 high = f8_exp(f8_load(scores + j + 8) - max);
    f8_store(scores + j, low);
    f8_store(scores + j + 8, high);
    sum.low = sum.low + low;
    sum.high = sum.high + high;
  }
  if (bf16) {
    lanes_to_bf16(scores, (uint16_t *)(void *)scores, padded);
  }
  *max_out = max;
  return lanes_fold(sum);
}

static void finish(const float *out, float sum, bool bf16, void *finished_out) {
  float quotient[QUIRE_LATENT_DIM];
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 8) {
    f8_store(quotient + d, f8_load(out + d) / f8_all(sum));
  }
  if (bf16) {
    lanes_to_bf16(quotient, finished_out, QUIRE_LATENT_DIM);
  } else {
    memcpy(finished_out, quotient, sizeof quotient);
  }
}

struct weighted {
  const void *p; /* bf16 or f32 [heads][p_ld] */
  int64_t p_ld;
  const void *rows; /* [576 each], at the first dimension wanted */
  int steps;        /* pairs of rows, or rows */
};

/* `heads` (4 or 1) heads x 16 dimensions: eight accumulators. Loops over registers have constant bounds: only then do
 * both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void values_block(struct weighted in, int heads, bool bf16, float *out) {
  quire_f8 acc[8];
  QUIRE_UNROLL
  for (int j = 0; j < 8; j++) {
    acc[j] = j < 2 * heads ? f8_load(out + j / 2 * QUIRE_LATENT_DIM + j % 2 * 8) : f8_all(0.0f);
  }
  for (int64_t s = 0; s < in.steps; s++) {
    QUIRE_UNROLL
    for (int j = 0; j < 8; j++) {
      int64_t h = j / 2;
      if (j >= 2 * heads) {
        continue;
      }
      if (bf16) {
        const uint16_t *even = (const uint16_t *)in.rows + 2 * s * QUIRE_KV_DIM + j % 2 * 8;
        const uint16_t *p = (const uint16_t *)in.p + h * in.p_ld + 2 * s;
        acc[j] = f8_fma(f8_all(quire_bf16_widen(p[1])), f8_of_bf16(even + QUIRE_KV_DIM), acc[j]);
        acc[j] = f8_fma(f8_all(quire_bf16_widen(p[0])), f8_of_bf16(even), acc[j]);
      } else {
        const float *row = (const float *)in.rows + s * QUIRE_KV_DIM + j % 2 * 8;
        acc[j] = f8_fma(f8_all(((const float *)in.p)[h * in.p_ld + s]), f8_load(row), acc[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 8; j++) {
    if (j < 2 * heads) {
      f8_store(out + j / 2 * QUIRE_LATENT_DIM + j % 2 * 8, acc[j]);
    }
  }
}

QUIRE_INLINE void values(struct weighted in, int heads, bool bf16, float *out) {
  QUIRE_DEBUG(heads > 0 && in.steps >= 0);
  int bytes = bf16 ? 2 : 4;
  for (int d = 0; d < QUIRE_LATENT_DIM; d += 16) {
    struct weighted at = {.p = in.p, .p_ld = in.p_ld, .rows = (const uint8_t *)in.rows + d * bytes, .steps = in.steps};
    int h = 0;
    for (; h + 4 <= heads; h += 4) {
      at.p = (const uint8_t *)in.p + h * in.p_ld * bytes;
      values_block(at, 4, bf16, out + h * QUIRE_LATENT_DIM + d);
    }
    for (; h < heads; h++) {
      at.p = (const uint8_t *)in.p + h * in.p_ld * bytes;
      values_block(at, 1, bf16, out + h * QUIRE_LATENT_DIM + d);
    }
  }
}

static void values_bf16(const uint16_t *p, int64_t p_ld, int heads, const uint16_t *rows, int pairs, float *out) {
  values((struct weighted){p, p_ld, rows, pairs}, heads, true, out);
}

static void values_f32(const float *p, int64_t p_ld, int heads, const float *rows, int count, float *out) {
  values((struct weighted){p, p_ld, rows, count}, heads, false, out);
}

const struct quire_attend_isa quire_attend_isa_portable = {
    .gemm = &quire_gemm_isa_portable,
    .latent_fp8 = latent_fp8,
    .softmax = softmax,
    .finish = finish,
    .values_bf16 = values_bf16,
    .values_f32 = values_f32,
};
