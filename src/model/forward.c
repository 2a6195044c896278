#include "model/forward.h"

#include <string.h>

#include "base/assert.h"

#define BUFFERS 35

struct quire_forward {
  const struct quire_env *env;
  struct quire_forward_config config;
  struct quire_forward_links links;
  struct quire_stream *stream;
  struct quire_memory *memory;
  struct quire_tap tap;
  enum quire_dtype compute;

  /* f32 [rows, .] */
  float *x;                 /* residual [hidden] */
  float *normed;            /* [hidden] */
  float *q_rank, *q;        /* [q_rank], [heads * qk] */
  float *kv, *latent;       /* [576], [512] */
  float *index_q, *index_w; /* [index_heads * 128], [index_heads] */
  float *index_k, *index_k_normed;
  float *out;            /* [hidden] */
  float *gate, *up;      /* [dense width] */
  float *route_logits;   /* [experts] */
  float *route_weights;  /* [k] */
  float *lse;            /* [heads] */
  float *logits;         /* [logits_max, vocab] */
  float *gathered;       /* [max(rows, logits_max), hidden] */
  int32_t *route_ids;    /* [k] */
  int32_t *hidden_index; /* [max(rows, logits_max)] */
  /* compute type [rows, .] */
  void *normed_c;        /* [hidden] */
  void *q_rank_c;        /* [q_rank] */
  void *q_nope, *q_rope; /* [heads * nope], [heads * 64] */
  void *q_latent;        /* [heads * 512] */
  void *attended;        /* [heads * 512] */
  void *values;          /* [heads * value] */
  void *active;          /* [dense width] */
  void *hidden;          /* [rows + requests, hidden]: of this step, then carried */
  void *draft_hidden;    /* [rows, hidden] after the draft head's norm */
  void *draft_pair;      /* [2 * hidden] */
  void *head_rows;       /* [logits_max, hidden] */
  uint8_t *gemm_scratch, *moe_scratch;
};

struct buffer {
  void **pointer;
  int64_t bytes;
};

static int64_t element(enum quire_dtype dtype) { return dtype == QUIRE_DTYPE_F32 ? 4 : 2; }

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Scratch of the widest product in front of `rows` rows. */
static int64_t gemm_scratch_bytes(const struct quire_forward_config *c, int64_t rows) {
  QUIRE_ASSERT(rows > 0 && rows <= INT32_MAX);
  const struct quire_model_config *m = c->model;
  int64_t k = max64(max64(2 * m->hidden, m->q_rank), max64((int64_t)m->heads * m->value_dim, m->dense_width));
  k = max64(k, max64(m->nope_dim, QUIRE_LATENT_DIM));
  bool bf16 = c->options.compute == QUIRE_DTYPE_BF16;
  return bf16 ? quire_gemm_scratch_bytes((int32_t)rows, (int32_t)k, c->threads) : 0;
}

/* Every buffer with its size: what quire_forward_bytes adds up and create hands out. */
static int64_t list_buffers(struct quire_forward *f, const struct quire_forward_config *c,
                            struct buffer list[BUFFERS]) {
  QUIRE_ASSERT(c->rows_max > 0);
  const struct quire_model_config *m = c->model;
  int64_t r = c->rows_max, h = m->hidden, e = element(c->options.compute);
  int64_t wide = max64(m->dense_width, 1), rows_or_logits = max64(r, c->logits_max);
  struct quire_moe shape = {
      .m = c->rows_max,
      .hidden = m->hidden,
      .expert_width = m->expert_width,
      .shared_width = m->shared_width,
      .expert_count = m->experts,
      .k = m->experts_per_token,
  };
  int64_t moe = m->experts > 0 ? quire_moe_scratch_bytes(&shape, c->threads) : 0;
  struct buffer all[BUFFERS] = {
      {(void **)&f->x, r * h * 4},
      {(void **)&f->normed, r * h * 4},
      {(void **)&f->q_rank, r * m->q_rank * 4},
      {(void **)&f->q, r * m->heads * m->qk_dim * 4},
      {(void **)&f->kv, r * QUIRE_KV_DIM * 4},
      {(void **)&f->latent, r * QUIRE_LATENT_DIM * 4},
      {(void **)&f->index_q, r * m->index_heads * QUIRE_INDEX_DIM * 4},
      {(void **)&f->index_w, r * m->index_heads * 4},
      {(void **)&f->index_k, r * QUIRE_INDEX_DIM * 4},
      {(void **)&f->index_k_normed, r * QUIRE_INDEX_DIM * 4},
      {(void **)&f->out, r * h * 4},
      {(void **)&f->gate, r * wide * 4},
      {(void **)&f->up, r * wide * 4},
      {(void **)&f->route_logits, r * max64(m->experts, 1) * 4},
      {(void **)&f->route_weights, r * max64(m->experts_per_token, 1) * 4},
      {(void **)&f->lse, r * m->heads * 4},
      {(void **)&f->logits, (int64_t)c->logits_max * m->vocab * 4},
      {(void **)&f->gathered, rows_or_logits * h * 4},
      {(void **)&f->route_ids, r * max64(m->experts_per_token, 1) * 4},
      {(void **)&f->hidden_index, rows_or_logits * 4},
      {&f->normed_c, r * h * e},
      {&f->q_rank_c, r * m->q_rank * e},
      {&f->q_nope, r * m->heads * m->nope_dim * e},
      {&f->q_rope, r * m->heads * QUIRE_ROPE_DIM * e},
      {&f->q_latent, r * m->heads * QUIRE_LATENT_DIM * e},
      {&f->attended, r * m->heads * QUIRE_LATENT_DIM * e},
      {&f->values, r * m->heads * m->value_dim * e},
      {&f->active, r * wide * e},
      {&f->hidden, (r + c->requests_max) * h * e},
      {&f->draft_hidden, r * h * e},
      {&f->draft_pair, r * 2 * h * e},
      {&f->head_rows, (int64_t)c->logits_max * h * e},
      {(void **)&f->gemm_scratch, gemm_scratch_bytes(c, rows_or_logits)},
      {(void **)&f->moe_scratch, moe},
      {NULL, 0},
  };
  memcpy(list, all, sizeof all);
  int64_t total = 0;
  for (int i = 0; i < BUFFERS; i++) {
    total += (list[i].bytes + 63) & ~(int64_t)63;
  }
  return total;
}

int64_t quire_forward_bytes(const struct quire_forward_config *config) {
  QUIRE_ASSERT(config != NULL && config->model != NULL);
  struct quire_forward probe;
  struct buffer list[BUFFERS];
  return list_buffers(&probe, config, list);
}

enum quire_status quire_forward_create(const struct quire_env *env, const struct quire_forward_config *config,
                                       const struct quire_forward_links *links, struct quire_forward **forward_out,
                                       struct quire_error *error_out) {
  QUIRE_ASSERT(config->rows_max > 0 && config->logits_max > 0 && config->requests_max > 0);
  struct quire_forward *forward = quire_env_zalloc(env, 1, sizeof *forward);
  if (forward == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "model", "no memory for the forward pass");
  }
  forward->env = env;
  forward->config = *config;
  forward->links = *links;
  forward->compute = config->options.compute;
  struct buffer list[BUFFERS];
  int64_t total = list_buffers(forward, config, list);
  enum quire_status status = quire_memory_create(env, (size_t)total, &forward->memory, error_out);
  if (status != QUIRE_OK) {
    quire_forward_destroy(forward);
    return status;
  }
  uint8_t *at = quire_memory_base(forward->memory);
  for (int i = 0; i < BUFFERS && list[i].pointer != NULL; i++) {
    *list[i].pointer = at;
    at += (list[i].bytes + 63) & ~(int64_t)63;
  }
  QUIRE_ASSERT(at == (uint8_t *)quire_memory_base(forward->memory) + total);
  *forward_out = forward;
  return QUIRE_OK;
}

void quire_forward_destroy(struct quire_forward *forward) {
  if (forward != NULL) {
    QUIRE_ASSERT(forward->env != NULL);
    quire_memory_destroy(forward->memory);
    quire_env_free(forward->env, forward, 1, sizeof *forward);
  }
}

void quire_forward_start(struct quire_forward *forward, struct quire_stream *stream) {
  QUIRE_ASSERT(quire_stream_is_inline(stream)); /* index tables are written by the host between launches */
  forward->stream = stream;
}

void quire_forward_tap(struct quire_forward *forward, const struct quire_tap *tap) {
  forward->tap = tap != NULL ? *tap : (struct quire_tap){0};
}

static void show(struct quire_forward *f, struct quire_tap_value value) {
  QUIRE_ASSERT(value.data != NULL && value.rows >= 0 && value.columns > 0);
  if (f->tap.call != NULL) {
    quire_event_sync(quire_stream_record(f->stream));
    f->tap.call(f->tap.context, &value);
  }
}

/* What the layer functions share: one layer over one batch. */
struct layer_run {
  struct quire_forward *f;
  struct quire_view *view;
  const struct quire_layer_weights *w;
  const struct quire_view_batch *batch;
  enum quire_part_model model;
  int32_t layer; /* in its model */
  int32_t flat;  /* for taps: target layers, then draft */
};

/* y[rows, w.n] = x W^T; x dense f32 or compute type, y dense. */
static void project(struct quire_forward *f, int32_t rows, const void *x, enum quire_dtype x_dtype,
                    const struct quire_weight *w, float *y) {
  QUIRE_ASSERT(rows >= 0 && x != NULL && w->data != NULL);
  struct quire_gemm gemm = {.x = x, .y = y, .w = *w, .x_dtype = x_dtype, .y_dtype = QUIRE_DTYPE_F32, .m = rows};
  gemm.scratch = f->gemm_scratch;
  gemm.x_ld = w->k;
  gemm.y_ld = w->n;
  f->links.kernels->gemm(f->stream, gemm);
}

static void norm(struct quire_forward *f, const float *x, const float *gain, void *y, struct quire_rmsnorm shape) {
  QUIRE_ASSERT(x != NULL && gain != NULL && y != NULL && shape.n > 0);
  shape.x = x;
  shape.gain = gain;
  shape.y = y;
  f->links.kernels->rmsnorm(f->stream, shape);
}

static void convert(struct quire_forward *f, const float *x, void *y, struct quire_convert shape) {
  QUIRE_ASSERT(x != NULL && y != NULL && shape.n > 0);
  shape.x = x;
  shape.y = y;
  shape.y_dtype = f->compute;
  f->links.kernels->convert(f->stream, shape);
}

/* The norm in front of a half of the layer: in f32, for the router and the index weights, and rounded once to the
 * compute type, for everything else. */
static void norm_both(struct quire_forward *f, int32_t rows, const float *gain) {
  QUIRE_ASSERT(rows >= 0 && rows <= f->config.rows_max);
  int32_t h = f->config.model->hidden;
  struct quire_rmsnorm shape = {.y_dtype = QUIRE_DTYPE_F32, .m = rows, .n = h, .x_ld = h, .y_ld = h};
  shape.eps = f->config.model->norm_eps;
  norm(f, f->x, gain, f->normed, shape);
  convert(f, f->normed, f->normed_c, (struct quire_convert){.m = rows, .n = h, .x_ld = h, .y_ld = h});
}

static void rotate(struct layer_run *run, float *x, enum quire_rope_layout layout, int32_t heads, int64_t head_ld) {
  QUIRE_ASSERT(x != NULL && heads > 0);
  struct quire_forward *f = run->f;
  struct quire_rope rope = {
      .x = x,
      .table = f->links.rope,
      .positions = run->batch->positions,
      .layout = layout,
      .m = run->batch->m,
      .heads = heads,
      .x_ld = heads * head_ld,
      .head_ld = head_ld,
  };
  f->links.kernels->rope(f->stream, rope);
}

/* Index queries or keys to the basis they are quantised in, where the options ask for it. */
static void mix_index(struct layer_run *run, float *x, int32_t heads) {
  QUIRE_ASSERT(x != NULL && heads > 0);
  struct quire_forward *f = run->f;
  struct quire_hadamard hadamard = {x, run->batch->m, heads, (int64_t)heads * QUIRE_INDEX_DIM, QUIRE_INDEX_DIM};
  if (f->config.options.hadamard) {
    f->links.kernels->hadamard(f->stream, hadamard);
  }
}

/* Latent and rotated key of every row, and the index key: what the cache stores. */
static void project_kv(struct layer_run *run) {
  QUIRE_ASSERT(run->batch->m <= run->f->config.rows_max);
  struct quire_forward *f = run->f;
  const struct quire_model_config *m = f->config.model;
  int32_t rows = run->batch->m;
  project(f, rows, f->normed_c, f->compute, &run->w->kv_a, f->kv);
  struct quire_rmsnorm shape = {.y_dtype = QUIRE_DTYPE_F32, .m = rows, .n = QUIRE_LATENT_DIM, .x_ld = QUIRE_KV_DIM};
  shape.y_ld = QUIRE_LATENT_DIM;
  shape.eps = f->config.options.latent_norm_eps;
  norm(f, f->kv, run->w->kv_a_norm, f->latent, shape);
  rotate(run, f->kv + QUIRE_LATENT_DIM, m->rope_layout, 1, QUIRE_KV_DIM);
  show(f, (struct quire_tap_value){QUIRE_TAP_LATENT, run->flat, f->latent, QUIRE_DTYPE_F32, rows, QUIRE_LATENT_DIM,
                                   run->batch});
  show(f, (struct quire_tap_value){QUIRE_TAP_ROPE_KEY, run->flat, f->kv + QUIRE_LATENT_DIM, QUIRE_DTYPE_F32, rows,
                                   QUIRE_ROPE_DIM, run->batch});
  if (!run->w->owns_indexer) {
    return;
  }
  project(f, rows, f->normed_c, f->compute, &run->w->index.wk, f->index_k);
  struct quire_layernorm layernorm = {
      .x = f->index_k,
      .gain = run->w->index.k_norm_gain,
      .bias = run->w->index.k_norm_bias,
      .y = f->index_k_normed,
      .m = rows,
      .n = QUIRE_INDEX_DIM,
      .x_ld = QUIRE_INDEX_DIM,
      .y_ld = QUIRE_INDEX_DIM,
      .eps = m->index_norm_eps,
  };
  f->links.kernels->layernorm(f->stream, layernorm);
  rotate(run, f->index_k_normed, m->index_rope_layout, 1, QUIRE_INDEX_DIM);
  mix_index(run, f->index_k_normed, 1);
  show(f, (struct quire_tap_value){QUIRE_TAP_INDEX_K, run->flat, f->index_k_normed, QUIRE_DTYPE_F32, rows,
                                   QUIRE_INDEX_DIM, run->batch});
}

static enum quire_status put_rows(struct layer_run *run, struct quire_error *error_out) {
  QUIRE_ASSERT(run->batch->puts <= run->batch->m);
  struct quire_forward *f = run->f;
  struct quire_view_put put = {
      .model = run->model,
      .layer = run->layer,
      .latent = f->latent,
      .rope = f->kv + QUIRE_LATENT_DIM,
      .key = run->w->owns_indexer ? f->index_k_normed : NULL,
      .latent_ld = QUIRE_LATENT_DIM,
      .rope_ld = QUIRE_KV_DIM,
      .key_ld = QUIRE_INDEX_DIM,
  };
  return quire_view_put_rows(run->view, &put, error_out);
}

/* Queries: nope half absorbed into the latent space head by head, rope half rotated. */
static void project_q(struct layer_run *run) {
  QUIRE_ASSERT(run->batch->m <= run->f->config.rows_max);
  struct quire_forward *f = run->f;
  const struct quire_model_config *m = f->config.model;
  int32_t rows = run->batch->m, heads = m->heads;
  project(f, rows, f->normed_c, f->compute, &run->w->q_a, f->q_rank);
  struct quire_rmsnorm shape = {.y_dtype = f->compute, .m = rows, .n = m->q_rank, .x_ld = m->q_rank, .y_ld = m->q_rank};
  shape.eps = f->config.options.latent_norm_eps;
  norm(f, f->q_rank, run->w->q_a_norm, f->q_rank_c, shape);
  project(f, rows, f->q_rank_c, f->compute, &run->w->q_b, f->q);
  rotate(run, f->q + m->nope_dim, m->rope_layout, heads, m->qk_dim);
  convert(f, f->q, f->q_nope,
          (struct quire_convert){.m = rows * heads, .n = m->nope_dim, .x_ld = m->qk_dim, .y_ld = m->nope_dim});
  convert(f, f->q + m->nope_dim, f->q_rope,
          (struct quire_convert){.m = rows * heads, .n = QUIRE_ROPE_DIM, .x_ld = m->qk_dim, .y_ld = QUIRE_ROPE_DIM});
  int64_t e = element(f->compute);
  for (int32_t head = 0; head < heads; head++) {
    struct quire_gemm gemm = {
        .x = (uint8_t *)f->q_nope + head * m->nope_dim * e,
        .y = (uint8_t *)f->q_latent + head * QUIRE_LATENT_DIM * e,
        .w = quire_head_weight(&run->w->w_uk, head),
        .x_dtype = f->compute,
        .y_dtype = f->compute,
        .m = rows,
        .scratch = f->gemm_scratch,
        .x_ld = (int64_t)heads * m->nope_dim,
        .y_ld = (int64_t)heads * QUIRE_LATENT_DIM,
    };
    f->links.kernels->gemm(f->stream, gemm);
  }
}

static void select_positions(struct layer_run *run) {
  QUIRE_ASSERT(run->w->owns_indexer || run->flat > 0);
  struct quire_forward *f = run->f;
  const struct quire_model_config *m = f->config.model;
  int32_t rows = run->batch->m;
  if (run->w->owns_indexer) {
    project(f, rows, f->q_rank_c, f->compute, &run->w->index.wq_b, f->index_q);
    rotate(run, f->index_q, m->index_rope_layout, m->index_heads, QUIRE_INDEX_DIM);
    mix_index(run, f->index_q, m->index_heads);
    project(f, rows, f->normed, QUIRE_DTYPE_F32, &run->w->index.weights, f->index_w);
    show(f, (struct quire_tap_value){QUIRE_TAP_INDEX_Q, run->flat, f->index_q, QUIRE_DTYPE_F32, rows,
                                     m->index_heads * QUIRE_INDEX_DIM, run->batch});
    show(f, (struct quire_tap_value){QUIRE_TAP_INDEX_W, run->flat, f->index_w, QUIRE_DTYPE_F32, rows, m->index_heads,
                                     run->batch});
    quire_view_check_finite(run->view, run->model, f->index_q, m->index_heads * QUIRE_INDEX_DIM);
    quire_view_check_finite(run->view, run->model, f->index_w, m->index_heads);
    quire_view_select(run->view, run->model, run->layer, f->index_q, f->index_w);
  }
  show(f, (struct quire_tap_value){QUIRE_TAP_COUNTS, run->flat, (void *)(uintptr_t)quire_view_counts(run->view),
                                   QUIRE_DTYPE_F32, rows, 1, run->batch});
  show(f, (struct quire_tap_value){QUIRE_TAP_SELECTED, run->flat, (void *)(uintptr_t)quire_view_indices(run->view),
                                   QUIRE_DTYPE_F32, rows, m->index_topk, run->batch});
}

static void add_out(struct quire_forward *f, int32_t rows) {
  QUIRE_ASSERT(rows >= 0);
  int32_t h = f->config.model->hidden;
  f->links.kernels->add(f->stream, (struct quire_add){f->x, f->out, rows, h, h, h});
}

static void attend(struct layer_run *run) {
  QUIRE_ASSERT(run->batch->m <= run->f->config.rows_max);
  struct quire_forward *f = run->f;
  const struct quire_model_config *m = f->config.model;
  int32_t rows = run->batch->m, heads = m->heads;
  struct quire_view_attend args = {
      .model = run->model,
      .layer = run->layer,
      .q_latent = f->q_latent,
      .q_rope = f->q_rope,
      .out = f->attended,
      .lse = f->lse,
      .dtype = f->compute,
      .scale = m->softmax_scale,
  };
  quire_view_attend(run->view, &args);
  int64_t e = element(f->compute);
  for (int32_t head = 0; head < heads; head++) {
    struct quire_gemm gemm = {
        .x = (uint8_t *)f->attended + head * QUIRE_LATENT_DIM * e,
        .y = (uint8_t *)f->values + head * m->value_dim * e,
        .w = quire_head_weight(&run->w->w_uv, head),
        .x_dtype = f->compute,
        .y_dtype = f->compute,
        .m = rows,
        .scratch = f->gemm_scratch,
        .x_ld = (int64_t)heads * QUIRE_LATENT_DIM,
        .y_ld = (int64_t)heads * m->value_dim,
    };
    f->links.kernels->gemm(f->stream, gemm);
  }
  show(f, (struct quire_tap_value){QUIRE_TAP_ATTENTION, run->flat, f->values, f->compute, rows, heads * m->value_dim,
                                   run->batch});
  project(f, rows, f->values, f->compute, &run->w->o, f->out);
  add_out(f, rows);
}

static void dense_mlp(struct quire_forward *f, int32_t rows, const struct quire_expert *mlp) {
  QUIRE_ASSERT(mlp->gate.n == mlp->up.n && mlp->gate.n == mlp->down.k);
  int32_t width = mlp->gate.n;
  project(f, rows, f->normed_c, f->compute, &mlp->gate, f->gate);
  project(f, rows, f->normed_c, f->compute, &mlp->up, f->up);
  struct quire_silu_mul silu = {
      .gate = f->gate,
      .up = f->up,
      .y = f->active,
      .y_dtype = f->compute,
      .m = rows,
      .n = width,
      .gate_ld = width,
      .up_ld = width,
      .y_ld = width,
  };
  f->links.kernels->silu_mul(f->stream, silu);
  project(f, rows, f->active, f->compute, &mlp->down, f->out);
  add_out(f, rows);
}

static void moe_mlp(const struct layer_run *run) {
  QUIRE_ASSERT(run->w->router.n == run->f->config.model->experts);
  struct quire_forward *f = run->f;
  const struct quire_layer_weights *w = run->w;
  int32_t rows = run->batch->m;
  const struct quire_model_config *m = f->config.model;
  project(f, rows, f->normed, QUIRE_DTYPE_F32, &w->router, f->route_logits);
  quire_view_check_finite(run->view, run->model, f->route_logits, m->experts);
  struct quire_route route = {
      .logits = f->route_logits,
      .bias = w->router_bias,
      .ids_out = f->route_ids,
      .weights_out = f->route_weights,
      .m = rows,
      .experts = m->experts,
      .groups = m->groups,
      .groups_kept = m->groups_kept,
      .k = m->experts_per_token,
      .normalise = m->normalise,
      .scaling = m->routed_scaling,
  };
  f->links.kernels->route(f->stream, route);
  struct quire_moe moe = {
      .x = f->normed_c,
      .x_dtype = f->compute,
      .experts = w->experts,
      .shared = w->shared,
      .ids = f->route_ids,
      .weights = f->route_weights,
      .residual = f->x,
      .scratch = f->moe_scratch,
      .m = rows,
      .hidden = m->hidden,
      .expert_width = m->expert_width,
      .shared_width = m->shared_width,
      .expert_count = m->experts,
      .k = m->experts_per_token,
      .x_ld = m->hidden,
      .residual_ld = m->hidden,
  };
  f->links.kernels->moe(f->stream, moe);
}

static enum quire_status run_layer(struct layer_run *run, struct quire_error *error_out) {
  QUIRE_ASSERT(run->w != NULL && run->w->input_norm != NULL);
  struct quire_forward *f = run->f;
  int32_t rows = run->batch->m, h = f->config.model->hidden;
  uint64_t begin = quire_trace_begin(f->config.trace);
  show(f, (struct quire_tap_value){QUIRE_TAP_LAYER_INPUT, run->flat, f->x, QUIRE_DTYPE_F32, rows, h, run->batch});
  norm_both(f, rows, run->w->input_norm);
  project_kv(run);
  enum quire_status status = put_rows(run, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  project_q(run);
  select_positions(run);
  attend(run);
  norm_both(f, rows, run->w->post_norm);
  if (run->w->moe) {
    moe_mlp(run);
  } else {
    dense_mlp(f, rows, &run->w->mlp);
  }
  show(f, (struct quire_tap_value){QUIRE_TAP_LAYER_OUTPUT, run->flat, f->x, QUIRE_DTYPE_F32, rows, h, run->batch});
  quire_trace_end(f->config.trace, begin, (struct quire_trace_span){QUIRE_TRACE_LAYER, f->config.rank, run->flat});
  return QUIRE_OK;
}

static void embed(struct quire_forward *f, const struct quire_weight *table, const int32_t *tokens, float *x,
                  int32_t rows) {
  f->links.kernels->embed(f->stream, (struct quire_embed){*table, tokens, x, rows, f->config.model->hidden});
}

/* f32 copies of rows of the hidden table: this step's rows, then the carried ones. */
static void gather_hidden(struct quire_forward *f, const void *table, const int32_t *index, float *out, int32_t rows) {
  QUIRE_ASSERT(table != NULL && index != NULL && rows >= 0);
  struct quire_weight source = {
      .data = table,
      .dtype = f->compute,
      .n = f->config.rows_max + f->config.requests_max,
      .k = f->config.model->hidden,
      .ld = f->config.model->hidden,
  };
  embed(f, &source, index, out, rows);
}

/* u of the draft rows, into the residual. */
static void draft_input(struct quire_forward *f, const struct quire_view_batch *batch) {
  QUIRE_ASSERT(batch->hidden != NULL && batch->m <= f->config.rows_max);
  const struct quire_mtp_weights *w = &f->config.weights->mtp;
  int32_t h = f->config.model->hidden, rows = batch->m;
  for (int32_t i = 0; i < rows; i++) {
    f->hidden_index[i] = batch->hidden[i] >= 0 ? batch->hidden[i] : f->config.rows_max - batch->hidden[i] - 1;
  }
  struct quire_rmsnorm shape = {.y_dtype = f->compute, .m = rows, .n = h, .x_ld = h, .y_ld = 2 * h};
  shape.eps = f->config.model->norm_eps;
  embed(f, &w->embed, batch->tokens, f->gathered, rows);
  norm(f, f->gathered, w->e_norm, f->draft_pair, shape);
  gather_hidden(f, f->hidden, f->hidden_index, f->out, rows);
  norm(f, f->out, w->h_norm, (uint8_t *)f->draft_pair + h * element(f->compute), shape);
  project(f, rows, f->draft_pair, f->compute, &w->proj, f->x);
  show(f,
       (struct quire_tap_value){QUIRE_TAP_DRAFT_INPUT, f->config.model->layers, f->x, QUIRE_DTYPE_F32, rows, h, batch});
}

/* Draft rows need no more than the projections that end in the cache, unless the whole layer is asked for. */
static enum quire_status run_draft(struct quire_forward *f, struct quire_view *view, bool full,
                                   struct quire_error *error_out) {
  QUIRE_ASSERT(f->config.model->mtp_layers == 1);
  struct layer_run run = {
      .f = f,
      .view = view,
      .w = &f->config.weights->mtp.layer,
      .batch = quire_view_draft_batch(view),
      .model = QUIRE_PART_DRAFT,
      .layer = 0,
      .flat = f->config.model->layers,
  };
  draft_input(f, run.batch);
  if (!full) {
    norm_both(f, run.batch->m, run.w->input_norm);
    project_kv(&run);
    return put_rows(&run, error_out);
  }
  enum quire_status status = run_layer(&run, error_out);
  if (status == QUIRE_OK) {
    int32_t h = f->config.model->hidden;
    struct quire_rmsnorm shape = {.y_dtype = f->compute, .m = run.batch->m, .n = h, .x_ld = h, .y_ld = h};
    shape.eps = f->config.model->norm_eps;
    norm(f, f->x, f->config.weights->mtp.head_norm, f->draft_hidden, shape);
    show(f, (struct quire_tap_value){QUIRE_TAP_DRAFT_HIDDEN, run.flat, f->draft_hidden, f->compute, run.batch->m, h,
                                     run.batch});
  }
  return status;
}

enum quire_status quire_forward_run(struct quire_forward *forward, struct quire_view *view, bool draft_full,
                                    struct quire_error *error_out) {
  struct quire_forward *f = forward;
  const struct quire_model_config *m = f->config.model;
  const struct quire_view_batch *batch = quire_view_target_batch(view);
  QUIRE_ASSERT(batch->m <= f->config.rows_max);
  embed(f, &f->config.weights->embed, batch->tokens, f->x, batch->m);
  for (int32_t layer = 0; layer < m->layers; layer++) {
    struct layer_run run = {
        .f = f,
        .view = view,
        .w = &f->config.weights->layer[layer],
        .batch = batch,
        .model = QUIRE_PART_TARGET,
        .layer = layer,
        .flat = layer,
    };
    enum quire_status status = run_layer(&run, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
  }
  struct quire_rmsnorm shape = {.y_dtype = f->compute, .m = batch->m, .n = m->hidden, .x_ld = m->hidden};
  shape.y_ld = m->hidden;
  shape.eps = m->norm_eps;
  norm(f, f->x, f->config.weights->final_norm, f->hidden, shape);
  show(f, (struct quire_tap_value){QUIRE_TAP_HIDDEN, m->layers, f->hidden, f->compute, batch->m, m->hidden, batch});
  return f->config.weights->has_mtp ? run_draft(f, view, draft_full, error_out) : QUIRE_OK;
}

void quire_forward_carry(struct quire_forward *forward, int32_t row, int32_t slot) {
  QUIRE_ASSERT(row >= 0 && row < forward->config.rows_max && slot >= 0 && slot < forward->config.requests_max);
  size_t bytes = (size_t)(forward->config.model->hidden * element(forward->compute));
  uint8_t *table = forward->hidden;
  quire_stream_copy(forward->stream, table + (size_t)(forward->config.rows_max + slot) * bytes,
                    table + (size_t)row * bytes, bytes);
}

const float *quire_forward_logits(struct quire_forward *forward, const int32_t *rows, int32_t count, bool draft) {
  struct quire_forward *f = forward;
  QUIRE_ASSERT(count >= 0 && count <= f->config.logits_max);
  int32_t h = f->config.model->hidden;
  gather_hidden(f, draft ? f->draft_hidden : f->hidden, rows, f->gathered, count);
  convert(f, f->gathered, f->head_rows, (struct quire_convert){.m = count, .n = h, .x_ld = h, .y_ld = h});
  const struct quire_weight *head = draft ? &f->config.weights->mtp.head : &f->config.weights->head;
  project(f, count, f->head_rows, f->compute, head, f->logits);
  show(f, (struct quire_tap_value){QUIRE_TAP_LOGITS, draft, f->logits, QUIRE_DTYPE_F32, count, f->config.model->vocab,
                                   NULL});
  return f->logits;
}
