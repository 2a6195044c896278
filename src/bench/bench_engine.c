#include "bench/bench_engine.h"

#include <stdlib.h>

#include "base/rng.h"
#include "bench/bench_machine.h"

enum quire_status bench_model_open(struct bench *bench, struct quire_error *error_out) {
  return bench->model.weights != NULL ? QUIRE_OK : cli_model_open(&bench->worker, &bench->model, error_out);
}

static enum quire_status make_prompt(struct bench_worker *w, int32_t tokens, struct quire_error *error_out) {
  w->prompt = (struct cli_tokens){malloc((size_t)tokens * sizeof(int32_t)), 0, 0};
  if (w->prompt.id == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench", "no memory for the prompt");
  }
  uint64_t vocab = (uint64_t)w->bench->model.config.vocab;
  for (int32_t i = 0; i < tokens; i++) {
    w->prompt.id[w->prompt.count++] = (int32_t)(quire_mix64((uint64_t)i + 9) % vocab);
  }
  return QUIRE_OK;
}

enum quire_status bench_worker_open(struct bench *bench, const struct bench_worker_config *config,
                                    struct bench_worker *worker_out, struct quire_error *error_out) {
  struct bench_worker w = {.bench = bench, .new_max = config->new_max};
  struct quire_engine_config engine;
  struct cli_worker options = bench->worker;
  enum quire_status status = bench_model_open(bench, error_out);
  options.ranks = config->ranks;
  options.kv = config->sharing == QUIRE_SHARING_REPLICATED ? CLI_KV_REPLICATED : CLI_KV_SHARED;
  options.view = config->view == QUIRE_VIEW_GATHER ? CLI_VIEW_GATHER
                 : config->view == QUIRE_VIEW_PEER ? CLI_VIEW_PEER
                                                   : CLI_VIEW_LOCAL;
  if (status == QUIRE_OK) {
    status =
        cli_engine_config(&options, &bench->model, config->prompt_tokens + config->new_max + 1, &engine, error_out);
  }
  if (status == QUIRE_OK) {
    engine.trace = config->trace;
    status = make_prompt(&w, config->prompt_tokens, error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_engine_create(quire_env_default(), &engine, &w.engine, error_out);
  }
  if (status != QUIRE_OK) {
    bench_worker_close(&w);
    return status;
  }
  *worker_out = w;
  return QUIRE_OK;
}

void bench_worker_close(struct bench_worker *w) {
  quire_engine_destroy(w->engine);
  cli_tokens_free(&w->prompt);
  w->engine = NULL;
}

enum quire_status bench_worker_run(void *worker, uint64_t *ns_out, struct quire_error *error_out) {
  struct bench_worker *w = worker;
  bool decode = w->new_max > 1;
  struct cli_answer answer = {
      .prompt = &w->prompt,
      .new_max = w->new_max,
      .sampling = {.temperature = 0, .top_p = 1},
      .ignore_eos = true,
      .no_match = !decode, /* decode: the prompt is prefilled once */
  };
  enum quire_status status = cli_answer_run(&w->bench->model, w->engine, &answer, error_out);
  *ns_out = decode ? answer.decode_ns : answer.prefill_ns;
  quire_engine_finish(w->engine);
  cli_answer_free(&answer);
  return status;
}

double bench_worker_units(const struct bench_worker *w) { return w->new_max > 1 ? w->new_max - 1 : w->prompt.count; }

/* --- products --- */

struct bench_products {
  const struct quire_kernels *kernels;
  const struct quire_model_config *model;
  const struct quire_model_weights *weights;
  struct quire_team *team;
  int threads;
  int32_t rows;
  struct quire_stream *stream[QUIRE_TEAM_THREADS_MAX]; /* one a member, without a team of its own */
  void *x;
  float *y[QUIRE_TEAM_THREADS_MAX];
  uint8_t *scratch[QUIRE_TEAM_THREADS_MAX];
  size_t x_bytes, y_bytes, scratch_bytes;
  enum quire_dtype compute;
  double operations; /* of one member */
};

static void run_product(struct bench_products *p, int member, const struct quire_weight *w, int32_t rows) {
  struct quire_gemm gemm = {
      .x = p->x, .y = p->y[member], .w = *w, .x_dtype = p->compute, .y_dtype = QUIRE_DTYPE_F32, .m = rows};
  gemm.scratch = p->scratch[member];
  gemm.x_ld = w->k;
  gemm.y_ld = w->n;
  p->kernels->gemm(p->stream[member], gemm);
  p->operations += member == 0 ? 2.0 * rows * (double)w->n * (double)w->k : 0;
}

static void run_expert(struct bench_products *p, int member, const struct quire_expert *e, int32_t rows) {
  run_product(p, member, &e->gate, rows);
  run_product(p, member, &e->up, rows);
  run_product(p, member, &e->down, rows);
}

static void products_member(void *context, int member, int threads) {
  struct bench_products *p = context;
  const struct quire_model_config *m = p->model;
  (void)threads;
  for (int32_t i = 0; i < m->layers; i++) {
    const struct quire_layer_weights *w = &p->weights->layer[i];
    run_product(p, member, &w->q_a, p->rows);
    run_product(p, member, &w->q_b, p->rows);
    run_product(p, member, &w->kv_a, p->rows);
    run_product(p, member, &w->o, p->rows);
    if (w->owns_indexer) {
      run_product(p, member, &w->index.wq_b, p->rows);
      run_product(p, member, &w->index.wk, p->rows);
    }
    for (int32_t head = 0; head < m->heads; head++) {
      struct quire_weight uk = quire_head_weight(&w->w_uk, head), uv = quire_head_weight(&w->w_uv, head);
      run_product(p, member, &uk, p->rows);
      run_product(p, member, &uv, p->rows);
    }
    if (!w->moe) {
      run_expert(p, member, &w->mlp, p->rows);
      continue;
    }
    int32_t share = p->rows * m->experts_per_token / m->experts;
    for (int32_t e = 0; e < m->experts; e++) {
      run_expert(p, member, &w->experts[e], share > 0 ? share : 1);
    }
    if (w->shared.gate.n > 0) {
      run_expert(p, member, &w->shared, p->rows);
    }
  }
}

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static enum quire_status open_members(struct bench_products *p, struct quire_error *error_out) {
  const struct quire_model_config *m = p->model;
  int64_t widest = max64(max64((int64_t)m->heads * (m->qk_dim > m->value_dim ? m->qk_dim : m->value_dim), m->hidden),
                         max64(max64(m->dense_width, (int64_t)m->index_heads * QUIRE_INDEX_DIM), QUIRE_KV_DIM));
  p->x_bytes = (size_t)(widest * p->rows) * sizeof(float);
  p->y_bytes = p->x_bytes;
  p->scratch_bytes = (size_t)quire_gemm_scratch_bytes(p->rows, (int32_t)widest, 1);
  p->x = bench_alloc(p->x_bytes);
  enum quire_status status = p->x == NULL ? QUIRE_ERR_MEMORY : QUIRE_OK;
  for (int i = 0; status == QUIRE_OK && i < p->threads; i++) {
    p->y[i] = bench_alloc(p->y_bytes);
    p->scratch[i] = bench_alloc(p->scratch_bytes);
    status = quire_stream_create(quire_env_default(), QUIRE_STREAM_INLINE, NULL, 0, &p->stream[i], error_out);
    status = p->y[i] == NULL || p->scratch[i] == NULL ? QUIRE_ERR_MEMORY : status;
  }
  if (status != QUIRE_OK) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench", "no memory for the products of the ceiling");
  }
  if (p->compute == QUIRE_DTYPE_F32) {
    bench_fill_f32(p->x, p->x_bytes / sizeof(float), 41);
  } else {
    bench_fill_bf16(p->x, p->x_bytes / sizeof(uint16_t), 41);
  }
  return QUIRE_OK;
}

enum quire_status bench_products_open(struct bench *bench, int threads, int32_t rows,
                                      struct bench_products **products_out, struct quire_error *error_out) {
  struct bench_products *p = calloc(1, sizeof *p);
  if (p == NULL || threads > QUIRE_TEAM_THREADS_MAX) {
    free(p);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench", "no memory for the products of the ceiling");
  }
  p->kernels = bench->kernels;
  p->model = &bench->model.config;
  p->weights = bench->model.weights;
  p->compute = bench->model.options.compute;
  p->threads = threads;
  p->rows = rows > 0 ? rows : 1;
  enum quire_status status = quire_team_create(quire_env_default(), threads, &p->team, error_out);
  if (status == QUIRE_OK) {
    status = open_members(p, error_out);
  }
  if (status != QUIRE_OK) {
    bench_products_close(p);
    return status;
  }
  products_member(p, 0, 1); /* counts the operations */
  *products_out = p;
  return QUIRE_OK;
}

void bench_products_close(struct bench_products *p) {
  if (p == NULL) {
    return;
  }
  quire_team_destroy(p->team);
  for (int i = 0; i < p->threads; i++) {
    if (p->stream[i] != NULL) {
      quire_stream_destroy(p->stream[i]);
    }
    bench_free(p->y[i], p->y_bytes);
    bench_free(p->scratch[i], p->scratch_bytes);
  }
  bench_free(p->x, p->x_bytes);
  free(p);
}

void bench_products_work(void *products) {
  struct bench_products *p = products;
  p->operations = 0;
  quire_team_run(p->team, products_member, p);
}

double bench_products_operations(const struct bench_products *p) { return p->operations * p->threads; }

double bench_token_operations(const struct bench *bench, int32_t prompt_tokens) {
  const struct quire_model_config *m = &bench->model.config;
  double context = prompt_tokens / 2.0;
  double selected = context < m->index_topk ? context : m->index_topk;
  double attention = 2.0 * m->heads * selected * (QUIRE_KV_DIM + QUIRE_LATENT_DIM);
  double indexer = 2.0 * m->index_heads * QUIRE_INDEX_DIM * context;
  return 2.0 * (double)m->active_parameters + m->layers * (attention + indexer);
}

static double weight_bytes(const struct quire_weight *w) {
  int bytes = w->dtype == QUIRE_DTYPE_F32 ? 4 : w->dtype == QUIRE_DTYPE_BF16 ? 2 : 1;
  return (double)w->n * (double)w->k * bytes;
}

static double expert_bytes(const struct quire_expert *e) {
  return weight_bytes(&e->gate) + weight_bytes(&e->up) + weight_bytes(&e->down);
}

static double layer_bytes(const struct quire_model_config *m, const struct quire_layer_weights *w) {
  double bytes = weight_bytes(&w->q_a) + weight_bytes(&w->q_b) + weight_bytes(&w->kv_a) + weight_bytes(&w->o) +
                 m->heads * (weight_bytes(&w->w_uk.first) + weight_bytes(&w->w_uv.first));
  if (w->owns_indexer) {
    bytes += weight_bytes(&w->index.wq_b) + weight_bytes(&w->index.wk) + weight_bytes(&w->index.weights);
  }
  if (!w->moe) {
    return bytes + expert_bytes(&w->mlp);
  }
  bytes += weight_bytes(&w->router) + m->experts_per_token * expert_bytes(&w->experts[0]);
  return bytes + (w->shared.gate.n > 0 ? expert_bytes(&w->shared) : 0);
}

double bench_token_bytes(const struct bench *bench) {
  const struct quire_model_weights *w = bench->model.weights;
  double bytes = weight_bytes(&w->head);
  for (int32_t i = 0; i < w->layers; i++) {
    bytes += layer_bytes(&bench->model.config, &w->layer[i]);
  }
  if (w->has_mtp) { /* the row that every token puts into the draft part */
    bytes += weight_bytes(&w->mtp.proj) + weight_bytes(&w->mtp.layer.kv_a) + weight_bytes(&w->mtp.layer.index.wk);
  }
  return bytes;
}

double bench_token_kv_bytes(const struct bench_worker *worker, int32_t positions) {
  const struct quire_parts *parts = quire_engine_parts_of(worker->engine);
  int32_t topk = worker->bench->model.config.index_topk;
  double bytes = 0;
  for (int32_t i = 0; i < parts->count; i++) {
    const struct quire_part *part = &parts->part[i];
    if (part->model == QUIRE_PART_TARGET) {
      bool all = part->kind == QUIRE_PART_INDEX_KEY || positions < topk;
      bytes += (double)(all ? positions : topk) * part->row_bytes;
    }
  }
  return bytes;
}
