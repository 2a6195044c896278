/* Scoring and top-k of the indexer: tiles of query rows against stages of keys (select.h, topk.h).
 *
 * Rows that read one source share its stages, so a tile is up to eight neighbours of the same source. With more tiles
 * than members each member takes whole tiles, in turn because later rows see more; few rows (decode) are split by keys:
 * each member finds the best of its range and the lists are merged, which gives the same set because the order is
 * total. */
#include "kernels/cpu/select.h"

#include <assert.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/span.h"
#include "kernels/cpu/topk.h"

#define TILE_ROWS 8

/* Scratch of one thread. */
struct workspace {
  float *stage[2];        /* [QUIRE_SELECT_STAGE] each, in turn */
  uint8_t *keys;          /* [QUIRE_SELECT_KEYS][128 floats, or as many codes] that do not lie side by side */
  float *q;               /* [TILE_ROWS][heads][128] staged */
  float *w;               /* [TILE_ROWS][heads] */
  struct quire_topk *top; /* [TILE_ROWS] */
  uint32_t *lists;        /* [TILE_ROWS][2][capacity] keys and positions */
};

/* Rows [begin, end) of one source. */
struct tile {
  int32_t begin;
  int32_t end;
};

struct select_run {
  const struct quire_select_isa *isa;
  struct quire_select op;
};

struct select_context {
  const struct select_run *run;
  struct tile tile; /* when split by keys */
  int32_t parts;    /* members that hold a list */
};

static_assert(sizeof(struct select_run) <= QUIRE_STREAM_ARGS_BYTES_MAX, "arguments travel by value");

static int64_t workspace_bytes(int32_t heads, int32_t topk) {
  QUIRE_ASSERT(heads > 0 && topk > 0);
  int64_t capacity = quire_topk_capacity(topk);
  return 3 * quire_cpu_padded(QUIRE_SELECT_STAGE * (int64_t)sizeof(float)) +
         quire_cpu_padded((int64_t)TILE_ROWS * heads * QUIRE_INDEX_DIM * (int64_t)sizeof(float)) +
         quire_cpu_padded((int64_t)TILE_ROWS * heads * (int64_t)sizeof(float)) +
         quire_cpu_padded(TILE_ROWS * (int64_t)sizeof(struct quire_topk)) +
         quire_cpu_padded(TILE_ROWS * capacity * (int64_t)(sizeof(uint32_t) + sizeof(int32_t)));
}

int64_t quire_select_scratch_bytes(int32_t heads, int32_t topk, int32_t limit_max, int threads) {
  QUIRE_ASSERT(heads > 0 && topk > 0 && limit_max >= 0 && threads > 0);
  return workspace_bytes(heads, topk) * threads + 63; /* the caller's bytes need not be aligned */
}

static uint8_t *carve(uint8_t **at, int64_t bytes) {
  QUIRE_ASSERT(bytes > 0);
  uint8_t *piece = *at;
  *at += quire_cpu_padded(bytes);
  return piece;
}

/* Where a member's scratch lies. Writes nothing: members look into each other's. */
static struct workspace workspace_of(const struct quire_select *op, int member) {
  QUIRE_ASSERT(op->scratch != NULL && member >= 0);
  uintptr_t base = ((uintptr_t)op->scratch + 63) & ~(uintptr_t)63;
  uint8_t *at = (uint8_t *)base + workspace_bytes(op->heads, op->topk) * member;
  struct workspace ws;
  ws.stage[0] = (float *)carve(&at, QUIRE_SELECT_STAGE * (int64_t)sizeof(float));
  ws.stage[1] = (float *)carve(&at, QUIRE_SELECT_STAGE * (int64_t)sizeof(float));
  ws.keys = carve(&at, QUIRE_SELECT_STAGE * (int64_t)sizeof(float));
  ws.q = (float *)carve(&at, (int64_t)TILE_ROWS * op->heads * QUIRE_INDEX_DIM * (int64_t)sizeof(float));
  ws.w = (float *)carve(&at, (int64_t)TILE_ROWS * op->heads * (int64_t)sizeof(float));
  ws.top = (struct quire_topk *)carve(&at, TILE_ROWS * (int64_t)sizeof(struct quire_topk));
  ws.lists = (uint32_t *)at;
  return ws;
}

/* Empties the lists of a member's rows. */
static void lists_clear(const struct select_run *run, const struct workspace *ws) {
  const struct quire_select *op = &run->op;
  int32_t capacity = quire_topk_capacity(op->topk);
  QUIRE_ASSERT(op->topk > 0 && capacity >= op->topk);
  for (int32_t row = 0; row < TILE_ROWS; row++) {
    uint32_t *list = ws->lists + (int64_t)row * capacity * 2;
    ws->top[row] = (struct quire_topk){
        .key = list,
        .position = (int32_t *)(list + capacity),
        .capacity = capacity,
        .k = op->topk,
        .wide = run->isa->wide,
    };
  }
}

/* A row sees more than topk positions. */
static bool row_scores(const struct quire_select *op, int32_t row) {
  return op->rows.limit[row] - op->rows.first > op->topk;
}

/* Positions [first, first + count) with count <= topk: all of them. */
static void row_takes_all(const struct quire_select *op, int32_t row) {
  QUIRE_ASSERT(row >= 0 && row < op->rows.m && op->rows.limit[row] - op->rows.first <= op->topk);
  int32_t *out = op->indices_out + (int64_t)row * op->topk;
  int32_t visible = op->rows.limit[row] - op->rows.first;
  int32_t count = visible > 0 ? visible : 0;
  for (int32_t i = 0; i < op->topk; i++) {
    out[i] = i < count ? op->rows.first + i : -1;
  }
  op->counts_out[row] = count;
}

static void row_writes(const struct quire_select *op, int32_t row, struct quire_topk *top) {
  quire_topk_cut(top);
  QUIRE_ASSERT(top->count == op->topk);
  memcpy(op->indices_out + (int64_t)row * op->topk, top->position, (size_t)top->count * sizeof(int32_t));
  op->counts_out[row] = top->count;
}

/* Stages the heads and weights of one row; slot is its place in the tile. */
static void row_stage(const struct select_run *run, const struct workspace *ws, int32_t row, int32_t slot) {
  QUIRE_ASSERT(slot >= 0 && slot < TILE_ROWS);
  const struct quire_select *op = &run->op;
  const float *q = op->q + (int64_t)row * op->heads * QUIRE_INDEX_DIM;
  const float *w = op->w + (int64_t)row * op->heads;
  float *q_out = ws->q + (int64_t)slot * op->heads * QUIRE_INDEX_DIM;
  float *w_out = ws->w + (int64_t)slot * op->heads;
  if (op->format == QUIRE_KV_F32) {
    memcpy(q_out, q, (size_t)op->heads * QUIRE_INDEX_DIM * sizeof(float));
    memcpy(w_out, w, (size_t)op->heads * sizeof(float));
    return;
  }
  for (int64_t head = 0; head < op->heads; head++) {
    uint8_t codes[QUIRE_INDEX_DIM];
    float scale = quire_quantise_block(q + head * QUIRE_INDEX_DIM, op->any_scale, codes);
    run->isa->stage_query(codes, q_out + head * QUIRE_INDEX_DIM);
    w_out[head] = w[head] * scale;
  }
}

/* The keys at [position, end), as many as a stage takes, where they lie side by side or else copied; behind `end`
 * zeros. Their scales (1 in format f32, and behind the end) into scales [64]. */
static struct quire_select_keys keys_at(const struct quire_select *op, const struct quire_kv_source *source,
                                        const struct workspace *ws, int32_t position, int32_t end, float *scales) {
  QUIRE_ASSERT(position < end && end <= source->end);
  bool quantised = op->format != QUIRE_KV_F32;
  size_t key_bytes = (size_t)op->part.piece[0].row_bytes;
  QUIRE_ASSERT(!quantised || op->part.piece[1].row_bytes == (int32_t)sizeof(float));
  int32_t count = end - position < QUIRE_SELECT_KEYS ? end - position : QUIRE_SELECT_KEYS;
  struct quire_select_keys keys = {ws->keys, quantised};
  for (int32_t i = 0; i < count;) {
    struct quire_span span = quire_span_at(source, &op->part, position + i, count - i);
    if (span.rows == QUIRE_SELECT_KEYS) {
      keys.rows = span.piece[0];
    } else {
      memcpy(ws->keys + (size_t)i * key_bytes, span.piece[0], (size_t)span.rows * key_bytes);
    }
    if (quantised) {
      memcpy(scales + i, span.piece[1], (size_t)span.rows * sizeof(float));
    }
    i += span.rows;
  }
  for (int32_t i = quantised ? count : 0; i < QUIRE_SELECT_KEYS; i++) {
    scales[i] = 1.0f;
  }
  if (count < QUIRE_SELECT_KEYS) {
    memset(ws->keys + (size_t)count * key_bytes, 0, (size_t)(QUIRE_SELECT_KEYS - count) * key_bytes);
  }
  return keys;
}

/* The keys at [position, end), as far as one stage and one run of them go: what scoring asks for, so that they arrive
 * before they are staged beside the next. Their scales, a few lines, are asked for here. (Always inline: gcc takes a
 * function that only prefetches for one without effect, and drops its calls.) */
QUIRE_INLINE void keys_ask(const struct quire_select *op, const struct quire_kv_source *source, int32_t position,
                           int32_t end, struct quire_select_score *score_out) {
  QUIRE_DEBUG(position >= 0);
  score_out->ask_lines = 0;
  if (position >= end) {
    return;
  }
  int32_t count = end - position < QUIRE_SELECT_KEYS ? end - position : QUIRE_SELECT_KEYS;
  struct quire_span span = quire_span_at(source, &op->part, position, count);
  score_out->ask = span.piece[0];
  score_out->ask_lines = (int32_t)((int64_t)span.rows * op->part.piece[0].row_bytes / CACHE_LINE);
  if (op->part.pieces > 1) {
    for (int64_t at = 0; at < (int64_t)span.rows * op->part.piece[1].row_bytes; at += CACHE_LINE) {
      __builtin_prefetch(span.piece[1] + at);
    }
  }
}

/* Scores positions [begin, end) for the rows of a tile, as far as each sees, into their lists. */
static void tile_score(const struct select_run *run, const struct workspace *ws, struct tile tile, int32_t begin,
                       int32_t end) {
  const struct quire_select *op = &run->op;
  lists_clear(run, ws);
  for (int32_t row = tile.begin; row < tile.end; row++) {
    if (row_scores(op, row) && begin < end) {
      row_stage(run, ws, row, row - tile.begin);
    }
  }
  if (begin >= end) {
    return;
  }
  const struct quire_kv_source *source = &op->rows.sources[op->rows.source_of[tile.begin]];
  float scales[2][QUIRE_SELECT_KEYS];
  int turn = 0;
  run->isa->stage_keys(keys_at(op, source, ws, begin, end, scales[turn]), ws->stage[turn]);
  for (int32_t position = begin; position < end; position += QUIRE_SELECT_KEYS, turn ^= 1) {
    float scores[QUIRE_SELECT_KEYS];
    int32_t next = position + QUIRE_SELECT_KEYS;
    int32_t count = next < end ? QUIRE_SELECT_KEYS : end - position;
    struct quire_select_score score = {.heads = op->heads, .quantised = op->format != QUIRE_KV_F32};
    score.stage = ws->stage[turn];
    score.next_stage = ws->stage[turn ^ 1];
    if (next < end) { /* some row sees them, so some row sees these */
      score.next = keys_at(op, source, ws, next, end, scales[turn ^ 1]);
    }
    keys_ask(op, source, next + QUIRE_SELECT_KEYS, end, &score);
    for (int32_t row = tile.begin; row < tile.end; row++) {
      int32_t slot = row - tile.begin;
      int32_t seen = op->rows.limit[row] - position;
      if (seen <= 0 || !row_scores(op, row)) {
        continue;
      }
      score.q = ws->q + (int64_t)slot * op->heads * QUIRE_INDEX_DIM;
      score.w = ws->w + (int64_t)slot * op->heads;
      run->isa->score(&score, scores);
      score.ask_lines = 0;
      score.next.rows = NULL;
      for (int i = 0; i < QUIRE_SELECT_KEYS; i++) {
        scores[i] = scales[turn][i] * scores[i];
      }
      quire_topk_push(&ws->top[slot], scores, position, seen < count ? seen : count);
    }
  }
}

/* The tile that starts at row `begin`. */
static struct tile tile_at(const struct quire_select *op, int32_t begin) {
  QUIRE_ASSERT(begin >= 0 && begin < op->rows.m);
  struct tile tile = {begin, begin + 1};
  while (tile.end < op->rows.m && tile.end - begin < TILE_ROWS &&
         op->rows.source_of[tile.end] == op->rows.source_of[begin]) {
    tile.end++;
  }
  return tile;
}

/* Largest limit among the rows that score; 0 when none does. */
static int32_t tile_limit(const struct quire_select *op, struct tile tile) {
  QUIRE_ASSERT(tile.begin < tile.end && tile.end <= op->rows.m);
  int32_t limit = 0;
  for (int32_t row = tile.begin; row < tile.end; row++) {
    if (row_scores(op, row) && op->rows.limit[row] > limit) {
      limit = op->rows.limit[row];
    }
  }
  return limit;
}

/* Whole tiles, dealt in turn. */
static void tiles_share(void *context, int member, int threads) {
  const struct select_run *run = ((const struct select_context *)context)->run;
  const struct quire_select *op = &run->op;
  QUIRE_ASSERT(op->rows.m >= 0 && member < threads);
  struct workspace ws = workspace_of(op, member);
  struct tile tile;
  int index = 0;
  for (int32_t begin = 0; begin < op->rows.m; begin = tile.end, index++) {
    tile = tile_at(op, begin);
    if (index % threads != member) {
      continue;
    }
    tile_score(run, &ws, tile, op->rows.first, tile_limit(op, tile));
    for (int32_t row = tile.begin; row < tile.end; row++) {
      if (row_scores(op, row)) {
        row_writes(op, row, &ws.top[row - tile.begin]);
      } else {
        row_takes_all(op, row);
      }
    }
  }
}

/* One member's range of keys of one tile. */
static void keys_share(void *context, int member, int threads) {
  const struct select_context *c = context;
  const struct quire_select *op = &c->run->op;
  QUIRE_ASSERT(c->tile.begin < c->tile.end && c->tile.end <= op->rows.m);
  struct workspace ws = workspace_of(op, member);
  int64_t begin = 0;
  int64_t end = 0;
  int32_t limit = tile_limit(op, c->tile);
  if (limit > op->rows.first) {
    quire_team_share(limit - op->rows.first, QUIRE_SELECT_KEYS, member, threads, &begin, &end);
  }
  tile_score(c->run, &ws, c->tile, op->rows.first + (int32_t)begin, op->rows.first + (int32_t)end);
  for (int32_t row = c->tile.begin; row < c->tile.end; row++) {
    quire_topk_cut(&ws.top[row - c->tile.begin]);
  }
}

/* Merges the lists of the members, rows shared among them. */
static void merge_share(void *context, int member, int threads) {
  const struct select_context *c = context;
  const struct quire_select *op = &c->run->op;
  QUIRE_ASSERT(c->parts == threads && c->tile.end - c->tile.begin <= TILE_ROWS);
  for (int32_t row = c->tile.begin + member; row < c->tile.end; row += threads) {
    if (!row_scores(op, row)) {
      row_takes_all(op, row);
      continue;
    }
    int32_t slot = row - c->tile.begin;
    struct quire_topk *top = &workspace_of(op, 0).top[slot];
    for (int other = 1; other < c->parts; other++) {
      quire_topk_merge(top, &workspace_of(op, other).top[slot]);
    }
    row_writes(op, row, top);
  }
}

/* Multiply-adds of all scores. */
static int64_t score_work(const struct quire_select *op) {
  QUIRE_ASSERT(op->heads > 0);
  int64_t positions = 0;
  for (int32_t row = 0; row < op->rows.m; row++) {
    positions += row_scores(op, row) ? op->rows.limit[row] : 0;
  }
  return positions * op->heads * QUIRE_INDEX_DIM;
}

static void select_run(void *args, struct quire_team *whole) {
  const struct select_run *run = args;
  const struct quire_select *op = &run->op;
  QUIRE_ASSERT(op->rows.m >= 0 && op->topk > 0);
  struct quire_team *team = quire_cpu_team(whole, score_work(op) / QUIRE_CPU_MACS);
  struct select_context context = {.run = run, .parts = quire_team_threads(team)};
  if (op->rows.m > TILE_ROWS || context.parts == 1) {
    quire_cpu_run(team, tiles_share, &context);
    return;
  }
  for (int32_t begin = 0; begin < op->rows.m; begin = context.tile.end) {
    context.tile = tile_at(op, begin);
    quire_cpu_run(team, keys_share, &context);
    quire_cpu_run(team, merge_share, &context);
  }
}

static void launch(struct quire_stream *stream, const struct quire_select_isa *isa, const struct quire_select *op) {
  struct select_run run = {.isa = isa, .op = *op};
  QUIRE_ASSERT(op->rows.m >= 0 && op->heads > 0 && op->topk > 0 && op->topk <= QUIRE_TOPK_MAX);
  QUIRE_ASSERT(op->part.kind == QUIRE_PART_INDEX_KEY);
  if (op->rows.m > 0) {
    quire_stream_launch(stream, select_run, &run, sizeof run);
  }
}

void quire_select_portable(struct quire_stream *stream, struct quire_select select) {
  launch(stream, &quire_select_isa_portable, &select);
}

void quire_select_avx512(struct quire_stream *stream, struct quire_select select) {
  launch(stream, &quire_select_isa_avx512, &select);
}

/* --- plain C: the stage is f32 [128][64 keys], dimensions in the order of the dot (odd before even when quantised) ---
 */

static void stage_query(const uint8_t *codes, float *stage) {
  for (int i = 0; i < QUIRE_INDEX_DIM; i++) {
    stage[i] = quire_e4m3_widen(codes[i ^ 1]);
  }
}

static void stage_keys(struct quire_select_keys keys, float *stage) {
  int swap = keys.quantised ? 1 : 0;
  for (int lane = 0; lane < QUIRE_SELECT_KEYS; lane++) {
    float row[QUIRE_INDEX_DIM];
    if (keys.quantised) {
      for (int i = 0; i < QUIRE_INDEX_DIM; i += 16) {
        uint16_t wide[16];
        quire_h16 v = h16_of_e4m3(keys.rows + lane * QUIRE_INDEX_DIM + i);
        memcpy(wide, &v, sizeof v);
        f8_store(row + i, f8_of_bf16(wide));
        f8_store(row + i + 8, f8_of_bf16(wide + 8));
      }
    } else {
      memcpy(row, keys.rows + lane * sizeof row, sizeof row);
    }
    for (int i = 0; i < QUIRE_INDEX_DIM; i++) {
      stage[i * QUIRE_SELECT_KEYS + lane] = row[i ^ swap];
    }
  }
}

/* `heads` (1 or 2) heads against 32 keys; sum[4] goes on over the heads. Loops over registers have constant bounds:
 * only then do both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void score_heads(const float *q, const float *w, int heads, const float *stage, quire_f8 *sum) {
  quire_f8 dot[8];
  QUIRE_UNROLL
  for (int j = 0; j < 8; j++) {
    dot[j] = f8_all(0.0f);
  }
  for (int d = 0; d < QUIRE_INDEX_DIM; d++) {
    QUIRE_UNROLL
    for (int j = 0; j < 8; j++) {
      if (j < 4 * heads) {
        quire_f8 k = f8_load(stage + d * QUIRE_SELECT_KEYS + j % 4 * 8);
        dot[j] = f8_fma(f8_all(q[j / 4 * QUIRE_INDEX_DIM + d]), k, dot[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < 8; j++) { /* heads ascending: j / 4 is the slower index */
    if (j < 4 * heads) {
      quire_f8 zero = f8_all(0.0f);
      quire_f8 relu = f8_choose(zero > dot[j], zero, dot[j]);
      sum[j % 4] = f8_fma(f8_all(w[j / 4]), relu, sum[j % 4]);
    }
  }
}

static void score(const struct quire_select_score *score, float *scores_out) {
  QUIRE_ASSERT(score->heads > 0); /* quantised or not: the order lies in the stage */
  for (int32_t i = 0; i < score->ask_lines; i++) {
    __builtin_prefetch(score->ask + (int64_t)i * CACHE_LINE);
  }
  for (int half = 0; half < QUIRE_SELECT_KEYS; half += 32) {
    quire_f8 sum[4] = {f8_all(0.0f), f8_all(0.0f), f8_all(0.0f), f8_all(0.0f)};
    const float *q = score->q, *w = score->w;
    int32_t head = 0;
    for (; head + 2 <= score->heads; head += 2) {
      score_heads(q + (int64_t)head * QUIRE_INDEX_DIM, w + head, 2, score->stage + half, sum);
    }
    if (head < score->heads) {
      score_heads(q + (int64_t)head * QUIRE_INDEX_DIM, w + head, 1, score->stage + half, sum);
    }
    for (int j = 0; j < 4; j++) {
      f8_store(scores_out + half + j * 8, sum[j]);
    }
  }
  if (score->next.rows != NULL) {
    stage_keys(score->next, score->next_stage);
  }
}

const struct quire_select_isa quire_select_isa_portable = {
    .wide = false,
    .stage_keys = stage_keys,
    .stage_query = stage_query,
    .score = score,
};
