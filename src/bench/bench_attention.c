/* Sparse attention at real dimensions: eight query rows, each over its own 2,048 rows of a long context.
 *
 *   dot peak      2 * heads * selected * (576 + 512) operations a row at the rate of the dot product from registers
 *   composition   the same from oneDNN's parts, a row at a time: gather (asked for ahead) and dequantise to bf16,
 *                 product, softmax, rounding of P to bf16, product; without oneDNN it is left out */
#include <stdio.h>
#include <string.h>

#include "bench/bench_cache.h"
#include "bench/bench_dnnl.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "bench/bench_shapes.h"

#define ROWS 8
#define AHEAD_ROWS 8 /* that the composition asks for */

struct attend_side {
  const struct quire_kernels *kernels;
  struct quire_stream *stream;
  struct quire_attend attend;
  /* the composition's */
  struct bench_dnnl_product *scores, *values;
  struct bench_dnnl_softmax *softmax;
  uint16_t *rows;   /* [topk][576] */
  uint16_t *q;      /* [ROWS][heads][576] */
  float *a;         /* [heads][topk] */
  uint16_t *p;      /* [heads][topk] */
  float *out;       /* [heads][512] */
  uint16_t *result; /* [heads][512] */
};

static void attend_work(void *context) {
  struct attend_side *s = context;
  s->kernels->attend(s->stream, s->attend);
}

static void to_bf16(const float *from, uint16_t *to, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, from + i, sizeof bits);
    to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

/* e4m3 bits moved into a float's place are the value divided by 2^120, exactly, subnormals included. */
static void dequantise(const uint8_t *codes, float scale, uint16_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    uint32_t bits = (uint32_t)(codes[i] & 0x7f) << 20 | (uint32_t)(codes[i] & 0x80) << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    value = value * 0x1p120f * scale;
    memcpy(&bits, &value, sizeof bits);
    to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

static void decode_row(const struct attend_side *s, const uint8_t *stored, uint16_t *to) {
  if (s->attend.format == QUIRE_KV_BF16) {
    memcpy(to, stored, QUIRE_KV_DIM * sizeof *to);
    return;
  }
  for (int32_t block = 0; block < QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK; block++) {
    float scale;
    memcpy(&scale, stored + QUIRE_LATENT_DIM + block * 4, sizeof scale);
    dequantise(stored + block * QUIRE_LATENT_BLOCK, scale, to + block * QUIRE_LATENT_BLOCK, QUIRE_LATENT_BLOCK);
  }
  memcpy(to + QUIRE_LATENT_DIM, stored + QUIRE_LATENT_DIM + QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK * 4,
         QUIRE_ROPE_DIM * sizeof *to);
}

static void composition_work(void *context) {
  struct attend_side *s = context;
  const struct quire_attend *op = &s->attend;
  for (int32_t row = 0; row < op->rows.m; row++) {
    const int32_t *list = op->indices + (int64_t)row * op->topk;
    for (int32_t i = 0; i < op->topk; i++) {
      if (i + AHEAD_ROWS < op->topk) { /* rows lie anywhere: no stream that the processor would see */
        const uint8_t *ahead = quire_kv_source_row(op->rows.sources, &op->part, 0, list[i + AHEAD_ROWS]);
        for (int32_t at = 0; at < op->part.row_bytes; at += 64) {
          __builtin_prefetch(ahead + at);
        }
      }
      decode_row(s, quire_kv_source_row(op->rows.sources, &op->part, 0, list[i]), s->rows + (int64_t)i * QUIRE_KV_DIM);
    }
    bench_dnnl_product_run(s->scores, s->q + (int64_t)row * op->heads * QUIRE_KV_DIM, s->rows, s->a);
    bench_dnnl_softmax_run(s->softmax, s->a);
    to_bf16(s->a, s->p, (int64_t)op->heads * op->topk);
    bench_dnnl_product_run(s->values, s->p, s->rows, s->out);
    to_bf16(s->out, s->result, (int64_t)op->heads * QUIRE_LATENT_DIM);
  }
}

static void lay_out(struct bench_block *block, struct attend_side *s, int32_t heads, int32_t topk) {
  size_t h = (size_t)heads, k = (size_t)topk;
  s->attend.q_latent = bench_block_take(block, ROWS * h * QUIRE_LATENT_DIM * 2);
  s->attend.q_rope = bench_block_take(block, ROWS * h * QUIRE_ROPE_DIM * 2);
  s->attend.indices = bench_block_take(block, ROWS * k * sizeof(int32_t));
  s->attend.out = bench_block_take(block, ROWS * h * QUIRE_LATENT_DIM * 2);
  s->attend.lse = bench_block_take(block, ROWS * h * sizeof(float));
  s->attend.scratch = bench_block_take(block, (size_t)quire_attend_scratch_bytes(heads, topk, BENCH_THREADS_MAX));
  s->rows = bench_block_take(block, k * QUIRE_KV_DIM * 2);
  s->q = bench_block_take(block, ROWS * h * QUIRE_KV_DIM * 2);
  s->a = bench_block_take(block, h * k * sizeof(float));
  s->p = bench_block_take(block, h * k * 2);
  s->out = bench_block_take(block, h * QUIRE_LATENT_DIM * sizeof(float));
  s->result = bench_block_take(block, h * QUIRE_LATENT_DIM * 2);
}

static bool open_side(struct bench_block *block, struct attend_side *s, const struct quire_model_config *m,
                      int32_t context) {
  lay_out(block, s, m->heads, m->index_topk);
  if (!bench_block_open(block)) {
    return false;
  }
  lay_out(block, s, m->heads, m->index_topk);
  size_t heads = (size_t)m->heads;
  bench_fill_bf16((uint16_t *)(uintptr_t)s->attend.q_latent, ROWS * heads * QUIRE_LATENT_DIM, 21);
  bench_fill_bf16((uint16_t *)(uintptr_t)s->attend.q_rope, ROWS * heads * QUIRE_ROPE_DIM, 22);
  bench_fill_bf16(s->q, ROWS * heads * QUIRE_KV_DIM, 21);
  for (int32_t i = 0; i < ROWS; i++) {
    bench_pick_positions((int32_t *)(uintptr_t)s->attend.indices + (int64_t)i * m->index_topk, m->index_topk, context,
                         (uint64_t)i + 31);
  }
  return true;
}

static void open_composition(struct attend_side *s, int threads) {
  const struct quire_attend *op = &s->attend;
  int64_t heads = op->heads, topk = op->topk;
  struct bench_dnnl_shape scores = {heads, topk, QUIRE_KV_DIM, QUIRE_KV_DIM, 1, QUIRE_KV_DIM, topk, false};
  struct bench_dnnl_shape values = {heads, QUIRE_LATENT_DIM, topk, topk, QUIRE_KV_DIM, 1, QUIRE_LATENT_DIM, false};
  bench_dnnl_threads(threads);
  s->scores = bench_dnnl_product_create(&scores, NULL, 0, 1);
  s->values = bench_dnnl_product_create(&values, NULL, 0, 1);
  s->softmax = bench_dnnl_softmax_create(heads, topk);
}

static void close_composition(struct attend_side *s) {
  bench_dnnl_product_destroy(s->scores);
  bench_dnnl_product_destroy(s->values);
  bench_dnnl_softmax_destroy(s->softmax);
  s->scores = s->values = NULL;
  s->softmax = NULL;
}

static enum quire_status measure(struct bench *bench, struct attend_side *side, const char *name, int threads,
                                 struct quire_error *error_out) {
  const struct quire_attend *op = &side->attend;
  struct bench_peak peak = bench_peak_of(bench_isa_of(bench->kernels->name), bench->team[threads]);
  bool fp8 = op->format == QUIRE_KV_FP8;
  double operations = 2.0 * op->heads * op->topk * (QUIRE_KV_DIM + QUIRE_LATENT_DIM) * op->rows.m;
  struct bench_case c = {
      .name = name,
      .unit = "Gop/s",
      .scale = 1e9,
      .threads = threads,
      .sides = 2,
      .bars = 1,
      .side = {{"quire", attend_work, NULL, side, operations},
               {"dot peak", bench_peak_work, NULL, &peak, bench_peak_operations(&peak)}},
      .bar = {{1, fp8 ? 0.5 : 0.6, false, 0}},
  };
  if (bench_dnnl_available(NULL)) {
    open_composition(side, threads);
  }
  if (side->scores != NULL && side->values != NULL && side->softmax != NULL) {
    c.side[c.sides++] = (struct bench_side){"composition", composition_work, NULL, side, operations};
    c.bar[c.bars++] = (struct bench_bar){2, 2, false, 0};
  }
  enum quire_status status = bench_measure(bench, &c, NULL, error_out);
  close_composition(side);
  return status;
}

static enum quire_status measure_model(struct bench *bench, enum bench_model model, enum quire_kv_format format,
                                       struct quire_error *error_out) {
  struct quire_model_config m;
  struct bench_cache cache = {0};
  struct bench_block block = {0};
  struct attend_side side = {.kernels = bench->kernels};
  enum quire_status status = QUIRE_OK;
  bench_model_config(model, &m);
  if (bench->options.tiny) {
    m.heads = 16;
    m.index_topk = 128;
  }
  int32_t context = bench->options.tiny ? 1024 : (int32_t)bench->options.context_tokens;
  if (!bench_cache_open(&cache, QUIRE_PART_LATENT, format, context) || !open_side(&block, &side, &m, context)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "attention", "no memory for %d rows", context);
  }
  static const int32_t sources[ROWS] = {0};
  int32_t limits[ROWS], counts[ROWS];
  for (int i = 0; i < ROWS; i++) {
    limits[i] = context;
    counts[i] = m.index_topk;
  }
  side.attend.rows = (struct quire_rows){&cache.source, sources, limits, ROWS, 0};
  side.attend.counts = counts;
  side.attend.part = cache.part;
  side.attend.format = format;
  side.attend.q_dtype = side.attend.out_dtype = QUIRE_DTYPE_BF16;
  side.attend.heads = m.heads;
  side.attend.topk = m.index_topk;
  side.attend.scale = m.softmax_scale / 64; /* random queries are longer than a model's */
  for (int threads = 1; status == QUIRE_OK && threads <= bench->threads_max; threads++) {
    char name[BENCH_NAME_BYTES];
    snprintf(name, sizeof name, "attention %s %s t=%d", bench_model_name(model), quire_kv_format_name(format), threads);
    side.stream = bench->stream[threads];
    status = measure(bench, &side, name, threads, error_out);
  }
  bench_block_close(&block);
  bench_cache_close(&cache);
  return status;
}

enum quire_status bench_attention(struct bench *bench, struct quire_error *error_out) {
  const char *why = NULL;
  if (!bench_dnnl_available(&why)) {
    printf("no composition: %s\n", why);
  }
  enum quire_status status = QUIRE_OK;
  for (int model = BENCH_MODEL_DEEPSEEK_V32; model <= BENCH_MODEL_GLM_52; model++) {
    for (int format = QUIRE_KV_BF16; status == QUIRE_OK && format <= QUIRE_KV_FP8; format++) {
      status = measure_model(bench, (enum bench_model)model, (enum quire_kv_format)format, error_out);
    }
  }
  return status;
}
