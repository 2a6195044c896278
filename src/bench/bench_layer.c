/* One layer of DeepSeek-V3.2 and one of GLM-5.2 in their real sizes, but with 8 experts, all of which every token uses:
 * as many operations a token as the model's layer. Weights are random fp8 (kv_b as bf16), the cache holds random rows
 * in bf16.
 *
 *   prefill   a chunk of 256 rows behind a long context
 *   decode    one row behind it
 *
 * The ceiling is the sum of its parts' ceilings, run as one: for a chunk all operations (products, attention over 2,048
 * rows, index scores over the context) at the rate of the dot product from registers; for one row a read of all its
 * weights, then attention and index scores at that rate. Norms, RoPE, quantisation, exchange and router count as
 * free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_cache.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "bench/bench_shapes.h"
#include "step/rank.h"

#define CHUNK 256
#define EXPERTS 8
#define VOCAB 1024
#define READ_PIECE ((size_t)4 << 20)

struct layer {
  const char *name; /* of the model */
  struct quire_model_config model;
  struct quire_model_weights weights;
  struct quire_layer_weights layer;
  struct quire_expert experts[EXPERTS];
  struct bench_block block;  /* matrices */
  struct bench_block others; /* scales and vectors */
  struct quire_parts parts;
  struct quire_step_config step;
  struct quire_bank *bank;
  struct quire_peer_map peers;
  struct quire_collective *collective;
  struct quire_view *view;
  struct quire_rank *rank;
  struct quire_step_plan *plan;
  float *rope;
  double operations; /* of the products, for one row */
  enum quire_status failed;
};

static struct quire_weight matrix(struct layer *l, int32_t n, int32_t k, enum quire_dtype dtype) {
  size_t element = dtype == QUIRE_DTYPE_FP8 ? 1 : dtype == QUIRE_DTYPE_BF16 ? 2 : 4;
  struct quire_weight w = {.dtype = dtype, .n = n, .k = k, .ld = k};
  w.data = bench_block_take(&l->block, (size_t)n * (size_t)k * element);
  if (dtype == QUIRE_DTYPE_FP8) {
    w.scale_ld = (k + QUIRE_FP8_BLOCK - 1) / QUIRE_FP8_BLOCK;
    size_t scales = (size_t)((n + QUIRE_FP8_BLOCK - 1) / QUIRE_FP8_BLOCK) * (size_t)w.scale_ld;
    float *scale = bench_block_take(&l->others, scales * sizeof(float));
    for (size_t i = 0; scale != NULL && i < scales; i++) {
      scale[i] = 0x1p-6f;
    }
    w.scale = scale;
  }
  l->operations += 2.0 * n * k;
  return w;
}

/* A matrix of products, packed as the engine's are where the kernels have that layout: of random weights any is one. */
static struct quire_weight product(struct layer *l, int32_t n, int32_t k, enum quire_dtype dtype) {
  struct quire_weight w = matrix(l, n, k, dtype);
  size_t bytes = (size_t)n * (size_t)k * (dtype == QUIRE_DTYPE_FP8 ? 1 : 2);
  if (l->weights.packed_for != NULL && quire_weight_can_pack(&w) && (size_t)quire_weight_packed_bytes(&w) == bytes) {
    w.layout = QUIRE_WEIGHT_PACKED;
  }
  return w;
}

static const float *vector(struct layer *l, int32_t n, float value) {
  float *v = bench_block_take(&l->others, (size_t)n * sizeof(float));
  for (int32_t i = 0; v != NULL && i < n; i++) {
    v[i] = value;
  }
  return v;
}

static struct quire_head_weights heads_matrix(struct layer *l, int32_t heads, int32_t n, int32_t k) {
  struct quire_head_weights w = {product(l, heads * n, k, QUIRE_DTYPE_BF16), (int64_t)n * k};
  w.first.n = n;
  return w;
}

static struct quire_expert expert(struct layer *l, int32_t width) {
  struct quire_expert e;
  e.gate = product(l, width, l->model.hidden, QUIRE_DTYPE_FP8);
  e.up = product(l, width, l->model.hidden, QUIRE_DTYPE_FP8);
  e.down = product(l, l->model.hidden, width, QUIRE_DTYPE_FP8);
  return e;
}

static void lay_out(struct layer *l) {
  const struct quire_model_config *m = &l->model;
  struct quire_layer_weights *w = &l->layer;
  l->operations = 0;
  w->q_a = product(l, m->q_rank, m->hidden, QUIRE_DTYPE_FP8);
  w->q_b = product(l, m->heads * m->qk_dim, m->q_rank, QUIRE_DTYPE_FP8);
  w->kv_a = product(l, QUIRE_KV_DIM, m->hidden, QUIRE_DTYPE_FP8);
  w->w_uk = heads_matrix(l, m->heads, QUIRE_LATENT_DIM, m->nope_dim);
  w->w_uv = heads_matrix(l, m->heads, m->value_dim, QUIRE_LATENT_DIM);
  w->o = product(l, m->hidden, m->heads * m->value_dim, QUIRE_DTYPE_FP8);
  w->owns_indexer = true;
  w->index.wq_b = product(l, m->index_heads * QUIRE_INDEX_DIM, m->q_rank, QUIRE_DTYPE_FP8);
  w->index.wk = product(l, QUIRE_INDEX_DIM, m->hidden, QUIRE_DTYPE_FP8);
  w->index.weights = matrix(l, m->index_heads, m->hidden, QUIRE_DTYPE_BF16);
  w->moe = true;
  w->router = matrix(l, EXPERTS, m->hidden, QUIRE_DTYPE_BF16);
  for (int i = 0; i < EXPERTS; i++) {
    l->experts[i] = expert(l, m->expert_width);
  }
  w->experts = l->experts;
  w->shared = expert(l, m->shared_width);
  w->input_norm = vector(l, m->hidden, 1);
  w->post_norm = vector(l, m->hidden, 1);
  w->q_a_norm = vector(l, m->q_rank, 1);
  w->kv_a_norm = vector(l, QUIRE_LATENT_DIM, 1);
  w->index.k_norm_gain = vector(l, QUIRE_INDEX_DIM, 1);
  w->index.k_norm_bias = vector(l, QUIRE_INDEX_DIM, 0);
  w->router_bias = vector(l, EXPERTS, 0);
  l->weights.final_norm = vector(l, m->hidden, 1);
  double layer_operations = l->operations;
  size_t layer_bytes = l->block.used;
  l->weights.embed = matrix(l, VOCAB, m->hidden, QUIRE_DTYPE_BF16);
  l->weights.head = l->weights.embed;
  l->operations = layer_operations;
  l->weights.mapped_bytes = layer_bytes;
  l->weights.layers = 1;
  l->weights.layer = w;
}

static bool open_weights(const struct bench *bench, struct layer *l, enum bench_model model) {
  *l = (struct layer){.name = bench_model_name(model)};
  l->weights.packed_for = bench->kernels->pack_weight != NULL ? bench->kernels : NULL;
  bench_model_config(model, &l->model);
  struct quire_model_config *m = &l->model;
  m->layers = 1;
  m->moe[0] = true;
  m->mtp_layers = 0;
  m->vocab = VOCAB;
  m->experts = m->experts_per_token = EXPERTS;
  m->groups = m->groups_kept = 1;
  m->dense_width = 0;
  if (bench->options.tiny) {
    m->hidden = m->q_rank = 256;
    m->heads = 16;
    m->index_topk = 256;
    m->expert_width = m->shared_width = 128;
  }
  lay_out(l);
  if (!bench_block_open(&l->block) || !bench_block_open(&l->others)) {
    return false;
  }
  bench_fill_e4m3(l->block.base, l->block.bytes, 61);
  lay_out(l);
  return true;
}

static void fill_cache(struct layer *l) {
  for (int32_t local = 0; local < quire_bank_local_pages(l->bank); local++) {
    for (int32_t part = 0; part < l->parts.count; part++) {
      bench_cache_fill_page(&l->parts.part[part], l->parts.format,
                            quire_bank_page(l->bank, part, (quire_local_page){local}), QUIRE_PAGE_TOKENS,
                            (uint64_t)local << 8);
    }
    quire_bank_mark_written(l->bank, (quire_local_page){local}, 0, 0);
  }
}

static struct quire_step_config step_config(const struct bench *bench, struct layer *l, int32_t context, int threads) {
  int32_t pages = (context + CHUNK) / QUIRE_PAGE_TOKENS;
  struct quire_step_config config = {
      .geometry = {QUIRE_PAGE_TOKENS, 1, 1, pages},
      .parts = &l->parts,
      .view = QUIRE_VIEW_LOCAL,
      .kernels = bench->kernels,
      .model = &l->model,
      .weights = &l->weights,
      .options = quire_model_options_default(),
      .limits = {.entries_max = 1, .tokens_max = CHUNK + 1, .pages_max = pages},
      .requests_max = 1,
      .request_pages_max = pages,
      .rows_max = CHUNK + 1,
      .fresh_max = CHUNK,
      .local_rows = 2,
      .logits_max = 1,
      .threads_per_rank = threads,
      .copy_mode = QUIRE_STREAM_INLINE,
  };
  return config;
}

static enum quire_status open_rank(const struct bench *bench, struct layer *l, int32_t context, int threads,
                                   struct quire_error *error_out) {
  const struct quire_env *env = quire_env_default();
  struct quire_collective_config collective = {.ranks = 1};
  if (!quire_parts_build(&l->parts, QUIRE_KV_BF16, QUIRE_PAGE_TOKENS, 1, NULL, 0)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "layer", "the parts table refuses one layer");
  }
  l->step = step_config(bench, l, context, threads);
  size_t positions = (size_t)l->step.geometry.pages * QUIRE_PAGE_TOKENS;
  l->rope = malloc(positions * QUIRE_ROPE_DIM * sizeof *l->rope);
  l->plan = calloc(1, (size_t)quire_step_plan_bytes(&l->step.limits));
  if (l->rope == NULL || l->plan == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "layer", "no memory for the plan");
  }
  uint32_t control = quire_kernels_enter();
  quire_rope_table(&l->model.rope, (int32_t)positions, l->rope);
  quire_kernels_leave(control);
  enum quire_status status = quire_collective_create(env, "local", &collective, &l->collective, error_out);
  if (status == QUIRE_OK) {
    status = quire_rank_bank_create(env, &l->step, 0, &l->bank, error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_bank_connect(&l->bank, 1, &l->peers, error_out);
  }
  if (status == QUIRE_OK) {
    fill_cache(l);
    struct quire_rank_shared shared = {l->collective, &l->peers, &l->view, l->rope};
    status = quire_rank_create(env, &l->step, 0, &shared, &l->rank, error_out);
  }
  if (status == QUIRE_OK) {
    l->view = l->rank->view;
    status = quire_rank_start(l->rank, error_out);
  }
  return status;
}

static void close_rank(struct layer *l) {
  if (l->rank != NULL) {
    quire_rank_stop(l->rank);
  }
  quire_rank_destroy(l->rank);
  quire_bank_destroy(l->bank);
  quire_collective_destroy(l->collective);
  free(l->plan);
  free(l->rope);
  l->rank = NULL;
  l->bank = NULL;
  l->collective = NULL;
  l->plan = NULL;
  l->rope = NULL;
}

/* A step of `rows` rows behind the context. */
static bool make_plan(struct layer *l, int32_t context, int32_t rows) {
  int32_t tokens[CHUNK + 1], pages = l->step.geometry.pages;
  quire_page *table = calloc((size_t)pages, sizeof *table);
  struct quire_step_entry entry = {
      .kind = rows > 1 ? QUIRE_ENTRY_PREFILL : QUIRE_ENTRY_DECODE,
      .begin = context,
      .end = context + rows,
      .prefix_end = context,
      .home = rows > 1 ? -1 : 0,
      .carry_rank = -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .next_token = -1,
      .append_count = pages,
  };
  bool made = table != NULL;
  for (int32_t p = 0; made && p < pages; p++) {
    table[p].v = p;
  }
  for (int32_t i = 0; i <= rows; i++) {
    tokens[i] = i * 37 % VOCAB;
  }
  if (made) {
    quire_step_plan_reset(l->plan, l->plan->epoch + 1, 1, QUIRE_SPLIT_ZIGZAG);
    made = quire_step_plan_add(l->plan, &l->step.limits, &entry, tokens, table);
  }
  free(table);
  return made;
}

static void step_work(void *context) {
  struct layer *l = context;
  uint32_t control = quire_kernels_enter();
  l->plan->epoch++;
  quire_rank_step(l->rank, l->plan);
  quire_kernels_leave(control);
  l->failed = l->rank->ack->status != QUIRE_OK ? l->rank->ack->status : l->failed;
}

/* All parts at their best, one after another. */
struct ideal {
  struct bench_read read; /* pieces 0: nothing to read */
  struct bench_peak peak;
};

static void ideal_work(void *context) {
  struct ideal *ideal = context;
  for (int64_t i = 0; i < ideal->read.pieces; i++) {
    bench_read_work(&ideal->read);
  }
  bench_peak_work(&ideal->peak);
}

static enum quire_status measure(struct bench *bench, struct layer *l, int32_t context, int32_t rows, int threads,
                                 struct quire_error *error_out) {
  const struct quire_model_config *m = &l->model;
  char name[BENCH_NAME_BYTES];
  double attention = 2.0 * rows * m->heads * m->index_topk * (QUIRE_KV_DIM + QUIRE_LATENT_DIM);
  double indexer = 2.0 * rows * m->index_heads * QUIRE_INDEX_DIM * (context + rows / 2.0);
  double operations = attention + indexer + (rows > 1 ? rows * l->operations : 0);
  const struct bench_isa *isa = bench_isa_of(bench->kernels->name);
  struct ideal ideal = {
      .read = {isa, bench->team[threads], l->block.base, READ_PIECE,
               rows > 1 ? 0 : (int64_t)(l->weights.mapped_bytes / READ_PIECE), 0},
      .peak = {isa, bench->team[threads], (int64_t)(operations / (isa->dot_operations * threads))},
  };
  snprintf(name, sizeof name, "%s %s %d rows behind %dK, t=%d", l->name, rows > 1 ? "prefill" : "decode", rows,
           context >> 10, threads);
  struct bench_case c = {
      .name = name,
      .unit = "rows/s",
      .scale = 1,
      .threads = threads,
      .sides = 2,
      .bars = 1,
      .side = {{"layer", step_work, NULL, l, rows}, {"sum of ceilings", ideal_work, NULL, &ideal, rows}},
      .bar = {{1, 0.5, false, 0}},
  };
  if (!make_plan(l, context, rows)) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "layer", "no memory for the page table");
  }
  enum quire_status status = bench_measure(bench, &c, NULL, error_out);
  if (status == QUIRE_OK && l->failed != QUIRE_OK) {
    *error_out = l->rank->ack->error;
    return l->failed;
  }
  return status;
}

static enum quire_status measure_family(struct bench *bench, enum bench_model model, int32_t context,
                                        struct quire_error *error_out) {
  static struct layer l;
  enum quire_status status = QUIRE_OK;
  if (!open_weights(bench, &l, model)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "layer", "no memory for the weights of a layer");
  }
  for (int threads = 1; status == QUIRE_OK && threads <= bench->threads_max; threads++) {
    status = open_rank(bench, &l, context, threads, error_out);
    for (int32_t rows = CHUNK; status == QUIRE_OK && rows >= 1; rows -= CHUNK - 1) {
      status = measure(bench, &l, context, rows, threads, error_out);
    }
    close_rank(&l);
  }
  bench_block_close(&l.block);
  bench_block_close(&l.others);
  return status;
}

enum quire_status bench_layer(struct bench *bench, struct quire_error *error_out) {
  int32_t context = bench->options.tiny ? 1024 : (int32_t)bench->options.context_tokens;
  context = context / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
  enum quire_status status = measure_family(bench, BENCH_MODEL_DEEPSEEK_V32, context, error_out);
  return status != QUIRE_OK ? status : measure_family(bench, BENCH_MODEL_GLM_52, context, error_out);
}
