/* The indexer over a long context: scores of every key by every head, relu, the weighted sum over the heads and the
 * top-k, of eight query rows (a tile of a prefill) and of one (decode), beside the dot product from registers. What is
 * counted is the dot alone: 2 * heads * 128 operations a key and row. */
#include <stdio.h>

#include "bench/bench_cache.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "bench/bench_shapes.h"

#define ROWS 8

struct select_side {
  const struct quire_kernels *kernels;
  struct quire_stream *stream;
  struct quire_select select;
};

static void select_work(void *context) {
  struct select_side *s = context;
  s->kernels->select(s->stream, s->select);
}

struct buffers {
  float *q, *w;
  int32_t *indices;
  uint8_t *scratch;
  size_t q_bytes, w_bytes, indices_bytes, scratch_bytes;
};

static bool open_buffers(struct buffers *b, const struct quire_model_config *m, int32_t context) {
  b->q_bytes = (size_t)ROWS * (size_t)m->index_heads * QUIRE_INDEX_DIM * sizeof(float);
  b->w_bytes = (size_t)ROWS * (size_t)m->index_heads * sizeof(float);
  b->indices_bytes = (size_t)ROWS * (size_t)m->index_topk * sizeof(int32_t);
  b->scratch_bytes = (size_t)quire_select_scratch_bytes(m->index_heads, m->index_topk, context, BENCH_THREADS_MAX);
  b->q = bench_alloc(b->q_bytes);
  b->w = bench_alloc(b->w_bytes);
  b->indices = bench_alloc(b->indices_bytes);
  b->scratch = bench_alloc(b->scratch_bytes);
  if (b->q == NULL || b->w == NULL || b->indices == NULL || b->scratch == NULL) {
    return false;
  }
  bench_fill_f32(b->q, b->q_bytes / sizeof(float), 11);
  bench_fill_f32(b->w, b->w_bytes / sizeof(float), 12);
  return true;
}

static void close_buffers(struct buffers *b) {
  bench_free(b->q, b->q_bytes);
  bench_free(b->w, b->w_bytes);
  bench_free(b->indices, b->indices_bytes);
  bench_free(b->scratch, b->scratch_bytes);
}

static enum quire_status measure(struct bench *bench, const struct quire_model_config *m, struct bench_case *c,
                                 struct select_side *side, struct quire_error *error_out) {
  struct bench_peak peak = bench_peak_of(bench_isa_of(bench->kernels->name), bench->team[c->threads]);
  int32_t rows = side->select.rows.m;
  double keys = (double)side->select.limit_max * rows;
  c->unit = "Gop/s";
  c->scale = 1e9;
  c->sides = 2;
  c->bars = 1;
  c->side[0] = (struct bench_side){"quire", select_work, NULL, side, 2.0 * m->index_heads * QUIRE_INDEX_DIM * keys};
  c->side[1] = (struct bench_side){"dot peak", bench_peak_work, NULL, &peak, bench_peak_operations(&peak)};
  c->bar[0] = (struct bench_bar){1, rows > 1 ? 0.65 : 0, false, 0};
  return bench_measure(bench, c, NULL, error_out);
}

static enum quire_status measure_model(struct bench *bench, enum bench_model model, struct quire_error *error_out) {
  struct quire_model_config m;
  struct bench_cache cache = {0};
  struct buffers buffers = {0};
  enum quire_status status = QUIRE_OK;
  bench_model_config(model, &m);
  int32_t context = bench->options.tiny ? 4096 : (int32_t)bench->options.context_tokens;
  if (!bench_cache_open(&cache, QUIRE_PART_INDEX_KEY, QUIRE_KV_BF16, context) || !open_buffers(&buffers, &m, context)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "indexer", "no memory for %d keys", context);
  }
  static const int32_t sources[ROWS] = {0};
  int32_t limits[ROWS], counts[ROWS];
  for (int i = 0; i < ROWS; i++) {
    limits[i] = context;
  }
  for (int threads = 1; threads <= bench->threads_max; threads++) {
    for (int32_t rows = ROWS; status == QUIRE_OK && rows >= 1; rows -= ROWS - 1) {
      char name[BENCH_NAME_BYTES];
      snprintf(name, sizeof name, "indexer %s %dK rows=%d t=%d", bench_model_name(model), context >> 10, rows, threads);
      struct select_side side = {
          .kernels = bench->kernels,
          .stream = bench->stream[threads],
          .select = {.rows = {&cache.source, sources, limits, rows, 0},
                     .part = cache.part,
                     .q = buffers.q,
                     .w = buffers.w,
                     .indices_out = buffers.indices,
                     .counts_out = counts,
                     .scratch = buffers.scratch,
                     .format = QUIRE_KV_BF16,
                     .heads = m.index_heads,
                     .topk = m.index_topk,
                     .limit_max = context},
      };
      struct bench_case c = {.name = name, .threads = threads};
      status = measure(bench, &m, &c, &side, error_out);
    }
  }
  close_buffers(&buffers);
  bench_cache_close(&cache);
  return status;
}

enum quire_status bench_indexer(struct bench *bench, struct quire_error *error_out) {
  enum quire_status status = measure_model(bench, BENCH_MODEL_DEEPSEEK_V32, error_out);
  return status != QUIRE_OK ? status : measure_model(bench, BENCH_MODEL_GLM_52, error_out);
}
