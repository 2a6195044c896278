#include "engine/engine.h"

#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"
#include "engine/engine_private.h"
#include "layout/fingerprint.h"
#include "layout/split.h"

/* Request slots: the running request, and one for the controls that compare two prompts' pages. */
#define ENGINE_REQUESTS 2
#define ENGINE_LOGITS_ROWS 64
/* Pages whose fate is unknown before the worker says it is unhealthy. */
#define ENGINE_LOST_PAGES_MAX 8
/* Rows of the local segment: the row of this step and the one of the step before, which is being committed. */
#define ENGINE_LOCAL_ROWS 2

static struct quire_geometry make_geometry(const struct quire_engine_config *config) {
  struct quire_geometry geometry = {
      .page_tokens = QUIRE_PAGE_TOKENS,
      .ranks = config->ranks,
      .storage_ranks = config->sharing == QUIRE_SHARING_SHARED ? config->ranks : 1,
      .pages = config->cache_tokens / QUIRE_PAGE_TOKENS + (config->cache_tokens % QUIRE_PAGE_TOKENS != 0),
  };
  return geometry;
}

bool quire_engine_parts(const struct quire_engine_config *config, struct quire_parts *parts_out) {
  return quire_parts_build(parts_out, config->kv_format, QUIRE_PAGE_TOKENS, config->model->layers,
                           config->model->owns_indexer, config->weights->has_mtp ? 1 : 0);
}

struct quire_hash128 quire_engine_fingerprint(const struct quire_engine_config *config) {
  struct quire_parts parts;
  char numerics[QUIRE_NUMERICS_BYTES];
  bool fits = quire_engine_parts(config, &parts);
  QUIRE_ASSERT(fits);
  struct quire_hash128 identity = {config->weights->identity[0], config->weights->identity[1]};
  return quire_fingerprint(&parts, quire_model_numerics(&config->options, "cpu", numerics), identity);
}

enum quire_status quire_engine_check(const struct quire_engine_config *config, struct quire_error *error_out) {
  struct quire_support_query query = {
      .config = config->model,
      .options = config->options,
      .geometry = make_geometry(config),
      .view = config->view,
      .ctx_tokens = config->ctx_tokens,
      .cache_tokens = config->cache_tokens,
      .chunk_tokens = config->chunk_tokens,
      .threads_per_rank = config->threads_per_rank,
  };
  enum quire_status status = quire_support_check(&query, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const char *refusal = NULL;
  if (!quire_kernels_can(config->kernels, &refusal)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "isa", "this machine cannot run the kernels \"%s\": %s",
                           config->kernels->name, refusal);
  }
  return QUIRE_OK;
}

/* Fills in what ranks need from what a user said. parts must outlive step_out. */
static void make_step_config(const struct quire_engine_config *config, const struct quire_parts *parts,
                             struct quire_step_config *step_out) {
  struct quire_geometry geometry = make_geometry(config);
  int32_t pages = quire_geometry_pages_of(&geometry, config->ctx_tokens);
  int32_t chunk = config->chunk_tokens < config->ctx_tokens ? config->chunk_tokens : config->ctx_tokens;
  struct quire_split_chunk longest = {config->split, config->ranks, 0, chunk};
  *step_out = (struct quire_step_config){
      .geometry = geometry,
      .parts = parts,
      .fingerprint = quire_engine_fingerprint(config),
      .view = config->view,
      .kernels = config->kernels,
      .model = config->model,
      .weights = config->weights,
      .options = config->options,
      .limits = {.entries_max = 1,
                 .tokens_max = chunk + 1,
                 .pages_max = pages,
                 .lists_max = config->ctx_tokens,
                 .biases_max = QUIRE_BIAS_MAX,
                 .tops_max = (chunk + 1) * QUIRE_TOP_LOGPROBS_MAX},
      .requests_max = ENGINE_REQUESTS,
      .request_pages_max = pages,
      .rows_max = quire_split_count_max(&longest) + 1,
      .fresh_max = chunk,
      .local_rows = ENGINE_LOCAL_ROWS,
      .gather_pages_max = config->view == QUIRE_VIEW_GATHER ? pages : 0,
      .logits_max = ENGINE_LOGITS_ROWS,
      .threads_per_rank = config->threads_per_rank,
      .copy_mode = config->copy_mode,
      .copy_seed = config->copy_seed,
      .debug = config->debug_shared_kv,
      .fault = config->fault,
      .fault_epoch = config->fault_epoch,
      .trace = config->trace,
  };
}

static struct quire_cache_config make_cache_config(const struct quire_step_config *step, bool poison) {
  struct quire_cache_config cache = {
      .geometry = step->geometry,
      .parts = step->parts,
      .fingerprint = step->fingerprint,
      .requests_max = ENGINE_REQUESTS,
      .request_pages_max = step->request_pages_max,
      .lost_pages_max = ENGINE_LOST_PAGES_MAX,
      .poison = poison,
  };
  return cache;
}

enum quire_status quire_engine_plan(const struct quire_engine_config *config, struct quire_engine_memory *memory_out,
                                    struct quire_error *error_out) {
  enum quire_status status = quire_engine_check(config, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_parts parts;
  if (!quire_engine_parts(config, &parts)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "model", "%d layers have more parts than a page can list",
                           config->model->layers);
  }
  struct quire_step_config step;
  make_step_config(config, &parts, &step);
  struct quire_cache_config cache = make_cache_config(&step, config->poison);
  *memory_out = (struct quire_engine_memory){
      .rank = quire_step_bytes(&step),
      .rope = (int64_t)step.request_pages_max * QUIRE_PAGE_TOKENS * QUIRE_ROPE_DIM * (int64_t)sizeof(float),
      .brain = quire_cache_bytes(&cache),
      .bundle_bytes = quire_parts_bundle_bytes(&parts),
      .pages = step.geometry.pages,
      .local_pages = quire_geometry_local_pages(&step.geometry, (quire_stripe_id){0}),
  };
  return QUIRE_OK;
}

int64_t quire_engine_memory_total(const struct quire_engine_config *config, const struct quire_engine_memory *memory) {
  const struct quire_step_memory *rank = &memory->rank;
  return config->ranks * (rank->pages + rank->view.exchange + rank->view.local + rank->view.gather +
                          rank->view.scratch + rank->forward) +
         memory->rope + memory->brain;
}

/* Memory is touched as it is reserved: what is not there would end the process in the middle of it. */
static enum quire_status check_memory(const struct quire_engine_config *config,
                                      const struct quire_engine_memory *memory, struct quire_error *error_out) {
  struct quire_device_info info;
  quire_device_describe(&info);
  int64_t total = quire_engine_memory_total(config, memory);
  if (info.available_bytes > 0 && total > info.available_bytes) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "cache-tokens",
                           "the memory plan of %d ranks needs %.1f GiB, %.1f GiB are available; lower cache-tokens, "
                           "ctx-tokens or ranks",
                           config->ranks, (double)total / (1 << 30), (double)info.available_bytes / (1 << 30));
  }
  return QUIRE_OK;
}

static enum quire_status create_parts(struct quire_engine *engine, struct quire_error *error_out) {
  struct quire_cache_config cache = make_cache_config(&engine->step, engine->config.poison);
  enum quire_status status = quire_cache_create(engine->env, &cache, &engine->cache, error_out);
  const char *executor = engine->config.executor != NULL ? engine->config.executor : quire_step_ops_at(0)->name;
  if (status == QUIRE_OK) {
    status = quire_step_create(engine->env, executor, &engine->step, &engine->executor, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  engine->plan = quire_env_zalloc(engine->env, 1, (size_t)quire_step_plan_bytes(&engine->step.limits));
  engine->active.tokens = quire_env_zalloc(engine->env, (size_t)engine->config.ctx_tokens + 1, sizeof(int32_t));
  if (engine->plan == NULL || engine->active.tokens == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "engine", "no memory for the step plan");
  }
  return QUIRE_OK;
}

enum quire_status quire_engine_create(const struct quire_env *env, const struct quire_engine_config *config,
                                      struct quire_engine **engine_out, struct quire_error *error_out) {
  struct quire_engine_memory memory;
  enum quire_status status = quire_engine_plan(config, &memory, error_out);
  if (status == QUIRE_OK) {
    status = check_memory(config, &memory, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_engine *engine = quire_env_zalloc(env, 1, sizeof *engine);
  if (engine == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "engine", "no memory for the engine");
  }
  engine->env = env;
  engine->config = *config;
  engine->geometry = make_geometry(config);
  bool fits = quire_engine_parts(config, &engine->parts);
  QUIRE_ASSERT(fits);
  make_step_config(config, &engine->parts, &engine->step);
  status = create_parts(engine, error_out);
  if (status != QUIRE_OK) {
    quire_engine_destroy(engine);
    return status;
  }
  *engine_out = engine;
  return QUIRE_OK;
}

void quire_engine_destroy(struct quire_engine *engine) {
  if (engine == NULL) {
    return;
  }
  quire_step_destroy(engine->executor);
  quire_cache_destroy(engine->cache);
  quire_env_free(engine->env, engine->plan, 1, (size_t)quire_step_plan_bytes(&engine->step.limits));
  quire_env_free(engine->env, engine->active.tokens, (size_t)engine->config.ctx_tokens + 1, sizeof(int32_t));
  quire_env_free(engine->env, engine, 1, sizeof *engine);
}

const struct quire_parts *quire_engine_parts_of(const struct quire_engine *engine) { return &engine->parts; }

struct quire_cache *quire_engine_cache(struct quire_engine *engine) {
  return engine->cache;
}

bool quire_engine_tap(struct quire_engine *engine, int32_t rank, const struct quire_tap *tap) {
  return quire_step_tap(engine->executor, rank, tap);
}
