#include "engine/engine.h"

#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"
#include "engine/engine_private.h"
#include "layout/fingerprint.h"
#include "layout/split.h"

/* Page tables beside those of the running: one for the controls that compare two prompts' pages. */
#define ENGINE_SPARE_TABLES 1
#define ENGINE_RUNNING_MAX 16384
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
  if (config->running_max < 0 || config->running_max > ENGINE_RUNNING_MAX || config->queue_max < 0 ||
      config->queue_max > ENGINE_SLOTS_MAX / 2 || config->headroom_tokens < 0 || config->yield_margin < 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "max-running",
                           "%d running, %d waiting, %d tokens of headroom: at most %d and %d, none negative",
                           config->running_max, config->queue_max, config->headroom_tokens, ENGINE_RUNNING_MAX,
                           ENGINE_SLOTS_MAX / 2);
  }
  const char *refusal = NULL;
  if (!quire_kernels_can(config->kernels, &refusal)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "isa", "this machine cannot run the kernels \"%s\": %s",
                           config->kernels->name, refusal);
  }
  const struct quire_kernels *packed_for = config->weights != NULL ? config->weights->packed_for : NULL;
  if (packed_for != NULL && packed_for != config->kernels) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "weights",
                           "the weights were packed for the kernels \"%s\", \"%s\" cannot read them; load them mapped",
                           packed_for->name, config->kernels->name);
  }
  return QUIRE_OK;
}

static int32_t running_max(const struct quire_engine_config *config) {
  return config->running_max > 0 ? config->running_max : 1;
}

static int32_t prefills_max(const struct quire_engine_config *config) {
  return running_max(config) < QUIRE_SCHED_PREFILLS_MAX ? running_max(config) : QUIRE_SCHED_PREFILLS_MAX;
}

/* Rows of one rank in a step: its share of the chunk, which several entries cut less evenly (two rows each); for each
 * prefill entry and for each that begins to decode a row that is run again; a decode row for each request at home. */
static int32_t rank_rows_max(const struct quire_engine_config *config, int32_t chunk) {
  struct quire_split_chunk longest = {config->split, config->ranks, 0, chunk};
  int32_t prefills = prefills_max(config), share = quire_split_count_max(&longest) + prefills;
  return running_max(config) == 1 ? share : share + 2 * prefills + running_max(config) + prefills;
}

/* Fills in what ranks need from what a user said. parts must outlive step_out. */
static void make_step_config(const struct quire_engine_config *config, const struct quire_parts *parts,
                             struct quire_step_config *step_out) {
  struct quire_geometry geometry = make_geometry(config);
  int32_t pages = quire_geometry_pages_of(&geometry, config->ctx_tokens);
  int32_t chunk = config->chunk_tokens < config->ctx_tokens ? config->chunk_tokens : config->ctx_tokens;
  int32_t running = running_max(config), prefills = prefills_max(config);
  *step_out = (struct quire_step_config){
      .geometry = geometry,
      .parts = parts,
      .fingerprint = quire_engine_fingerprint(config),
      .view = config->view,
      .kernels = config->kernels,
      .model = config->model,
      .weights = config->weights,
      .options = config->options,
      .limits = {.entries_max = running,
                 .tokens_max = chunk + prefills + 2 * running,
                 .pages_max = prefills * pages + running,
                 .lists_max = config->ctx_tokens + 2 * running,
                 .biases_max = running * (QUIRE_BIAS_MAX + QUIRE_ENGINE_STOPS_MAX),
                 .tops_max = (chunk + prefills + running) * QUIRE_TOP_LOGPROBS_MAX},
      .requests_max = running + ENGINE_SPARE_TABLES,
      .request_pages_max = pages,
      .rows_max = rank_rows_max(config, chunk),
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
      .sim = config->sim,
  };
}

/* What the controller keeps: slots for what runs, what waits, and what ended and has not been polled. */
static void make_controller(struct quire_engine *engine, const struct quire_engine_config *config) {
  engine->config = *config;
  engine->geometry = make_geometry(config);
  engine->running_max = running_max(config);
  engine->config.queue_max = config->queue_max > 0 ? config->queue_max : engine->running_max;
  engine->config.headroom_tokens = config->headroom_tokens > 0 ? config->headroom_tokens : QUIRE_PAGE_TOKENS;
  engine->slots = 2 * engine->running_max + engine->config.queue_max;
}

static void make_limits(struct quire_engine *engine) {
  engine->limits = (struct quire_sched_limits){
      .running_max = engine->running_max,
      .prefills_max = prefills_max(&engine->config),
      .chunk_tokens = engine->step.fresh_max,
      .page_tokens = QUIRE_PAGE_TOKENS,
      .prefix_pages_max = engine->step.gather_pages_max,
      .follow_ticks_max = QUIRE_SCHED_FOLLOW_TICKS_MAX,
      .bypass_max = QUIRE_SCHED_BYPASS_MAX,
      .yield_margin = engine->config.yield_margin,
  };
}

static struct quire_cache_config make_cache_config(const struct quire_step_config *step, bool poison) {
  struct quire_cache_config cache = {
      .geometry = step->geometry,
      .parts = step->parts,
      .fingerprint = step->fingerprint,
      .requests_max = step->requests_max,
      .request_pages_max = step->request_pages_max,
      .lost_pages_max = ENGINE_LOST_PAGES_MAX,
      .poison = poison,
  };
  return cache;
}

static const char *executor_of(const struct quire_engine_config *config) {
  return config->executor != NULL ? config->executor : quire_step_ops_at(0)->name;
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
  struct quire_engine controller = {.block = NULL};
  make_controller(&controller, config);
  *memory_out = (struct quire_engine_memory){
      .rank = quire_step_bytes(executor_of(config), &step),
      .brain = quire_cache_bytes(&cache),
      .controller = (int64_t)quire_engine_carve(&controller),
      .bundle_bytes = quire_parts_bundle_bytes(&parts),
      .pages = step.geometry.pages,
      .local_pages = quire_geometry_local_pages(&step.geometry, (quire_stripe_id){0}),
  };
  memory_out->rope = memory_out->rank.shared;
  return QUIRE_OK;
}

int64_t quire_engine_memory_total(const struct quire_engine_config *config, const struct quire_engine_memory *memory) {
  const struct quire_step_memory *rank = &memory->rank;
  return config->ranks * (rank->pages + rank->view.exchange + rank->view.local + rank->view.gather +
                          rank->view.scratch + rank->view.tables + rank->forward + rank->sampling) +
         memory->rope + memory->brain + memory->controller;
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
  if (status == QUIRE_OK) {
    status = quire_step_create(engine->env, executor_of(&engine->config), &engine->step, &engine->executor, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  engine->plan = quire_env_zalloc(engine->env, 1, (size_t)quire_step_plan_bytes(&engine->step.limits));
  engine->block_bytes = quire_engine_carve(engine);
  engine->block = quire_env_zalloc(engine->env, 1, engine->block_bytes);
  if (engine->plan == NULL || engine->block == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "engine", "no memory for the requests' %zu bytes",
                           engine->block_bytes);
  }
  quire_engine_carve(engine);
  engine->kept = quire_step_plan_kept(engine->plan, &engine->step.limits);
  quire_engine_reset_slots(engine);
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
  make_controller(engine, config);
  bool fits = quire_engine_parts(config, &engine->parts);
  QUIRE_ASSERT(fits);
  make_step_config(config, &engine->parts, &engine->step);
  make_limits(engine);
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
  quire_env_free(engine->env, engine->block, 1, engine->block_bytes);
  quire_env_free(engine->env, engine, 1, sizeof *engine);
}

const struct quire_parts *quire_engine_parts_of(const struct quire_engine *engine) { return &engine->parts; }

struct quire_cache *quire_engine_cache(struct quire_engine *engine) {
  return engine->cache;
}

bool quire_engine_tap(struct quire_engine *engine, int32_t rank, const struct quire_tap *tap) {
  return quire_step_tap(engine->executor, rank, tap);
}
