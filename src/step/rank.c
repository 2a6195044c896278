#include "step/rank.h"

#include "base/assert.h"

struct quire_view_config quire_rank_view_config(const struct quire_step_config *config, int32_t rank) {
  struct quire_view_config view = {
      .geometry = config->geometry,
      .parts = config->parts,
      .mode = config->view,
      .rank = rank,
      .limits = config->limits,
      .requests_max = config->requests_max,
      .request_pages_max = config->request_pages_max,
      .rows_max = config->rows_max,
      .fresh_max = config->fresh_max,
      .local_rows = config->local_rows,
      .gather_pages_max = config->gather_pages_max,
      .topk = config->model->index_topk,
      .heads = config->model->heads,
      .index_heads = config->model->index_heads,
      .any_scale = !config->options.scale_pow2,
      .threads = config->threads_per_rank,
      .debug = config->debug,
      .fault = config->fault,
      .fault_epoch = config->fault_epoch,
      .trace = config->trace,
  };
  return view;
}

struct quire_forward_config quire_rank_forward_config(const struct quire_step_config *config) {
  struct quire_forward_config forward = {
      .model = config->model,
      .weights = config->weights,
      .options = config->options,
      .rows_max = config->rows_max,
      .requests_max = config->requests_max,
      .logits_max = config->logits_max,
      .threads = config->threads_per_rank,
      .trace = config->trace,
  };
  return forward;
}

static struct quire_bank_config bank_config(const struct quire_step_config *config, int32_t rank) {
  struct quire_bank_config bank = {
      .geometry = config->geometry,
      .rank = {rank},
      .parts = config->parts,
      .fingerprint = config->fingerprint,
      .queue_commands = QUIRE_BANK_QUEUE_MAX,
      .stream_mode = config->copy_mode,
      .stream_seed = config->copy_seed + (uint64_t)rank,
  };
  return bank;
}

struct quire_step_memory quire_rank_bytes(const struct quire_step_config *config) {
  struct quire_view_config view = quire_rank_view_config(config, 0);
  struct quire_forward_config forward = quire_rank_forward_config(config);
  struct quire_bank_config bank = bank_config(config, 0);
  struct quire_step_memory memory = {
      .pages = quire_bank_bytes(&bank),
      .view = quire_view_bytes(&view),
      .forward = quire_forward_bytes(&forward),
      .shared =
          (int64_t)config->request_pages_max * config->geometry.page_tokens * QUIRE_ROPE_DIM * (int64_t)sizeof(float),
      .sampling = quire_sampler_bytes(config),
  };
  return memory;
}

enum quire_status quire_rank_bank_create(const struct quire_env *env, const struct quire_step_config *config,
                                         int32_t rank, struct quire_bank **bank_out, struct quire_error *error_out) {
  struct quire_bank_config bank = bank_config(config, rank);
  enum quire_status status = quire_bank_create(env, &bank, bank_out, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_bank_allocate(*bank_out, error_out);
  if (status != QUIRE_OK) {
    quire_bank_destroy(*bank_out);
    *bank_out = NULL;
  }
  return status;
}

static enum quire_status create_parts(struct quire_rank *r, const struct quire_rank_shared *shared,
                                      struct quire_error *error_out) {
  const struct quire_step_config *config = &r->config;
  struct quire_view_config view = quire_rank_view_config(config, r->rank);
  struct quire_view_links view_links = {
      .kernels = config->kernels,
      .collective = shared->collective,
      .peers = shared->peers,
      .views = shared->views,
  };
  enum quire_status status = quire_view_create(r->env, &view, &view_links, &r->view, error_out);
  if (status == QUIRE_OK) {
    struct quire_forward_config forward = quire_rank_forward_config(config);
    forward.rank = r->rank;
    struct quire_forward_links forward_links = {.kernels = config->kernels, .rope = shared->rope};
    status = quire_forward_create(r->env, &forward, &forward_links, &r->forward, error_out);
  }
  return status;
}

enum quire_status quire_rank_start(struct quire_rank *r, struct quire_error *error_out) {
  const struct quire_step_config *config = &r->config;
  enum quire_status status = quire_team_create(r->env, config->threads_per_rank, &r->team, error_out);
  if (status == QUIRE_OK) {
    status = quire_stream_create(r->env, QUIRE_STREAM_INLINE, r->team, 0, &r->stream, error_out);
  }
  if (status == QUIRE_OK && config->view == QUIRE_VIEW_GATHER) {
    status = quire_stream_create(r->env, config->copy_mode, NULL, config->copy_seed ^ (uint64_t)r->rank,
                                 &r->copy_stream, error_out);
  }
  if (status == QUIRE_OK) {
    quire_view_start(r->view, r->stream, r->copy_stream);
    quire_forward_start(r->forward, r->stream);
    quire_collective_attach(r->collective, r->rank, r->stream);
  }
  return status;
}

void quire_rank_stop(struct quire_rank *r) {
  if (r->copy_stream != NULL) {
    quire_stream_destroy(r->copy_stream);
  }
  if (r->stream != NULL) {
    quire_collective_attach(r->collective, r->rank, NULL);
    quire_stream_destroy(r->stream);
  }
  quire_team_destroy(r->team);
  r->copy_stream = NULL;
  r->stream = NULL;
  r->team = NULL;
}

enum quire_status quire_rank_create(const struct quire_env *env, const struct quire_step_config *config, int32_t rank,
                                    const struct quire_rank_shared *shared, struct quire_rank **rank_out,
                                    struct quire_error *error_out) {
  struct quire_rank *r = quire_env_zalloc(env, 1, sizeof *r);
  if (r == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "rank", "no memory for rank %d", rank);
  }
  r->env = env;
  r->config = *config;
  r->rank = rank;
  r->collective = shared->collective;
  enum quire_status status = create_parts(r, shared, error_out);
  if (status == QUIRE_OK) {
    status = quire_sampler_create(env, &r->config, &r->sampler, error_out);
  }
  if (status == QUIRE_OK) {
    r->ack = quire_env_zalloc(env, 1, (size_t)quire_step_ack_bytes(&config->limits));
    status = r->ack != NULL
                 ? QUIRE_OK
                 : quire_error_set(error_out, QUIRE_ERR_MEMORY, "rank", "no memory for the answers of rank %d", rank);
  }
  if (status != QUIRE_OK) {
    quire_rank_destroy(r);
    return status;
  }
  *rank_out = r;
  return QUIRE_OK;
}

void quire_rank_destroy(struct quire_rank *r) {
  if (r == NULL) {
    return;
  }
  quire_sampler_destroy(r->sampler);
  quire_forward_destroy(r->forward);
  quire_view_destroy(r->view);
  quire_env_free(r->env, r->ack, 1, (size_t)quire_step_ack_bytes(&r->config.limits));
  quire_env_free(r->env, r, 1, sizeof *r);
}

/* Keeps the hidden state of the last row of every entry that this rank computed. */
static void keep_carries(struct quire_rank *r, const struct quire_step_plan *plan) {
  const struct quire_view_batch *batch = quire_view_target_batch(r->view);
  for (int32_t i = 0; i < batch->puts; i++) {
    const struct quire_step_entry *entry = quire_step_plan_entries(plan) + batch->entries[i];
    if (batch->positions[i] == entry->end - 1) {
      quire_forward_carry(r->forward, i, entry->request);
    }
  }
}

static void report_nonfinite(struct quire_rank *r) {
  for (int draft = 0; draft < 2; draft++) {
    const struct quire_view_batch *batch = draft ? quire_view_draft_batch(r->view) : quire_view_target_batch(r->view);
    const int32_t *flags = quire_view_nonfinite(r->view, draft ? QUIRE_PART_DRAFT : QUIRE_PART_TARGET);
    for (int32_t i = 0; i < batch->m; i++) {
      quire_step_ack_results(r->ack)[batch->entries[i]].nonfinite |= flags[i];
    }
  }
}

static bool plan_has(const struct quire_step_plan *plan, int32_t flag) {
  for (int32_t e = 0; e < plan->entry_count; e++) {
    if ((quire_step_plan_entries(plan)[e].flags & flag) != 0) {
      return true;
    }
  }
  return false;
}

void quire_rank_step(struct quire_rank *r, const struct quire_step_plan *plan) {
  quire_step_ack_reset(r->ack, plan, &r->config.limits, r->rank);
  bool draft_full = plan_has(plan, QUIRE_ENTRY_DRAFT_FULL);
  quire_team_rouse(r->team);
  enum quire_status status = quire_view_begin(r->view, plan, &r->ack->error);
  if (status == QUIRE_OK) {
    status = quire_forward_run(r->forward, r->view, draft_full, &r->ack->error);
  }
  if (status == QUIRE_OK) {
    keep_carries(r, plan);
    struct quire_sampler_step step = {plan, r->ack, r->stream, r->view, r->forward};
    quire_sampler_run(r->sampler, &step, draft_full);
    report_nonfinite(r);
    status = quire_view_fence(r->view, &r->ack->error);
    r->ack->fault = quire_view_fault(r->view);
  }
  if (status != QUIRE_OK) {
    quire_collective_abort(r->collective, r->rank);
    quire_view_quiesce(r->view);
  }
  r->ack->status = status;
}
