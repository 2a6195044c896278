/* How many different tokens a worker holds when each rank may reserve B bytes:
 *
 *   tokens = 64 * R * floor((B - X - G) / P)
 *
 * P bytes of a bundle, G gather scratch, X everything else a rank reserves: exchange, local segment, selection lists,
 * activations and logits. All are the memory plan's (quire_engine_plan), which is what `quire info` prints and what a
 * worker reserves. The table needs no model; with --model the formula is met in runs that fill the cache until it has
 * to evict. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_shapes.h"

#define CHUNK 512
#define LARGE_BUDGET ((int64_t)40 << 30)
#define FILL_PROMPT 2048

struct plan {
  int64_t bundle, other, gather, budget;
  int64_t tokens; /* 0: not one page fits */
};

/* The largest cache that fits, by the memory plan of a cache that is just large enough. */
static enum quire_status make_plan(struct quire_engine_config *config, int64_t budget, struct plan *plan_out,
                                   struct quire_error *error_out) {
  struct quire_engine_memory memory;
  config->cache_tokens = config->ctx_tokens;
  enum quire_status status = quire_engine_plan(config, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const struct quire_step_memory *rank = &memory.rank;
  struct plan plan = {
      .bundle = memory.bundle_bytes,
      .other = rank->view.exchange + rank->view.local + rank->view.scratch + rank->view.tables + rank->forward +
               rank->sampling,
      .gather = rank->view.gather,
      .budget = budget,
  };
  int64_t left = budget - plan.other - plan.gather;
  int64_t ranks = config->sharing == QUIRE_SHARING_SHARED ? config->ranks : 1;
  plan.tokens = left < plan.bundle ? 0 : QUIRE_PAGE_TOKENS * ranks * (left / plan.bundle);
  *plan_out = plan;
  return QUIRE_OK;
}

static struct quire_engine_config base_config(const struct bench *bench, const struct quire_model_config *model,
                                              const struct quire_model_weights *weights) {
  struct quire_engine_config config = {
      .model = model,
      .weights = weights,
      .options = quire_model_options_default(),
      .kernels = bench->kernels,
      .ranks = 1,
      .chunk_tokens = CHUNK,
      .threads_per_rank = 1,
      .kv_format = QUIRE_KV_BF16,
      .copy_mode = QUIRE_STREAM_THREAD,
  };
  return config;
}

static enum quire_status table_row(struct bench *bench, struct quire_engine_config *config, const char *name,
                                   int64_t budget, int64_t single[2], struct quire_error *error_out) {
  static const enum quire_view_mode modes[] = {QUIRE_VIEW_PEER, QUIRE_VIEW_GATHER};
  for (int i = 0; i < 2; i++) {
    struct plan plan;
    config->view = config->ranks == 1 && i == 0 ? QUIRE_VIEW_LOCAL : modes[i];
    enum quire_status status = make_plan(config, budget, &plan, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    single[i] = config->ranks == 1 ? plan.tokens : single[i];
    double times = single[i] > 0 ? (double)plan.tokens / ((double)single[i] * config->ranks) : 0;
    printf("  %-14s %8d %-5s %-6s R=%d %12lld %12lld %12lld %12lld %6.3f%s\n", name, config->ctx_tokens,
           quire_kv_format_name(config->kv_format), i == 0 ? "peer" : "gather", config->ranks, (long long)plan.bundle,
           (long long)plan.other, (long long)plan.gather, (long long)plan.tokens, times,
           plan.tokens < config->ctx_tokens ? " (less than one such request)" : "");
    if (bench->csv != NULL) {
      fprintf(bench->csv, "capacity,\"%s ctx=%d %s %s R=%d\",tokens,0,%lld,tokens\n", name, config->ctx_tokens,
              quire_kv_format_name(config->kv_format), i == 0 ? "peer" : "gather", config->ranks,
              (long long)plan.tokens);
    }
  }
  return QUIRE_OK;
}

static enum quire_status table(struct bench *bench, enum bench_model model, struct quire_error *error_out) {
  static const int32_t contexts[] = {128 << 10, 1 << 20};
  static const enum quire_kv_format formats[] = {QUIRE_KV_BF16, QUIRE_KV_FP8};
  struct quire_model_weights weights = {.has_mtp = true};
  struct quire_model_config m;
  bench_model_config(model, &m);
  m.positions = 1 << 20; /* the table says what memory would hold, whatever the model was trained for */
  int64_t budget = model == BENCH_MODEL_MINI ? bench->options.budget_bytes : LARGE_BUDGET;
  struct quire_engine_config config = base_config(bench, &m, &weights);
  enum quire_status status = QUIRE_OK;
  printf("%s, B = %lld bytes a rank, chunk %d\n", bench_model_name(model), (long long)budget, CHUNK);
  printf("  %-14s %8s %-5s %-6s     %12s %12s %12s %12s %6s\n", "model", "context", "rows", "view", "P", "X", "G",
         "tokens", "/R");
  for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
    for (size_t c = 0; c < sizeof contexts / sizeof contexts[0]; c++) {
      int64_t single[2] = {0, 0};
      for (config.ranks = 1; status == QUIRE_OK && config.ranks <= 8; config.ranks *= 2) {
        config.ctx_tokens = contexts[c];
        config.kv_format = formats[f];
        status = table_row(bench, &config, bench_model_name(model), budget, single, error_out);
      }
    }
  }
  return status;
}

/* --- met in a run --- */

/* An environment that counts what is in use. */
struct meter {
  const struct quire_env *env;
  int64_t bytes;
};

static void *meter_alloc(void *context, size_t size, size_t align) {
  struct meter *meter = context;
  void *memory = meter->env->alloc(meter->env->context, size, align);
  __atomic_fetch_add(&meter->bytes, memory != NULL ? (int64_t)size : 0, __ATOMIC_RELAXED);
  return memory;
}

static void meter_free(void *context, void *memory, size_t size) {
  struct meter *meter = context;
  meter->env->dealloc(meter->env->context, memory, size);
  __atomic_fetch_sub(&meter->bytes, memory != NULL ? (int64_t)size : 0, __ATOMIC_RELAXED);
}

static uint64_t meter_now(void *context) {
  const struct meter *meter = context;
  return meter->env->now_ns(meter->env->context);
}

static uint64_t meter_random(void *context) {
  const struct meter *meter = context;
  return meter->env->random(meter->env->context);
}

static void meter_log(void *context, enum quire_log_level level, const char *line) {
  const struct meter *meter = context;
  meter->env->log(meter->env->context, level, line);
}

static enum quire_status fill_prompt(struct quire_engine *engine, int32_t *tokens, int32_t count, int32_t vocab,
                                     uint64_t seed, struct quire_error *error_out) {
  for (int32_t i = 0; i < count; i++) {
    tokens[i] = (int32_t)(quire_mix64(seed * 1000003u + (uint64_t)i) % (uint64_t)vocab);
  }
  struct quire_engine_request request = {.tokens = tokens, .count = count};
  struct quire_engine_event event = {0};
  enum quire_status status = quire_engine_start(engine, &request, NULL, error_out);
  while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
    status = quire_engine_step(engine, &event, error_out);
  }
  quire_engine_finish(engine);
  return status;
}

/* Prompts, all different, until the cache has had to evict; *held_out: most tokens that were cached at a time. */
static enum quire_status fill_cache(struct quire_engine *engine, int32_t prompt_tokens, int32_t vocab,
                                    int64_t *held_out, struct quire_error *error_out) {
  struct quire_cache_stats stats = {0};
  int32_t *tokens = calloc((size_t)prompt_tokens, sizeof *tokens);
  enum quire_status status =
      tokens != NULL ? QUIRE_OK : quire_error_set(error_out, QUIRE_ERR_MEMORY, "capacity", "no memory for a prompt");
  *held_out = 0;
  uint64_t started = bench_now_ns();
  for (uint64_t prompt = 1; status == QUIRE_OK && stats.evicted_pages == 0; prompt++) {
    status = fill_prompt(engine, tokens, prompt_tokens, vocab, prompt, error_out);
    quire_cache_stats(quire_engine_cache(engine), &stats);
    int64_t held = (int64_t)stats.cached * QUIRE_PAGE_TOKENS;
    *held_out = held > *held_out ? held : *held_out;
    cli_progress("fill", stats.cached, stats.evicted_pages > 0 ? stats.cached : stats.pages, "pages", started);
  }
  free(tokens);
  return status;
}

static enum quire_status run_ranks(struct bench *bench, int32_t ranks, int64_t *held_out,
                                   struct quire_error *error_out) {
  struct meter meter = {.env = quire_env_default()};
  struct quire_env env = {&meter, meter_alloc, meter_free, meter_now, meter_random, meter_log};
  struct quire_engine_config config = base_config(bench, &bench->model.config, bench->model.weights);
  int64_t budget = bench->options.budget_bytes;
  int32_t prompt = bench->options.tiny ? 256 : FILL_PROMPT;
  struct plan plan;
  struct quire_engine *engine = NULL;
  config.options = bench->model.options;
  config.ranks = ranks;
  config.view = ranks == 1 ? QUIRE_VIEW_LOCAL : QUIRE_VIEW_PEER;
  config.kv_format = (enum quire_kv_format)bench->worker.kv_format;
  config.ctx_tokens = prompt;
  enum quire_status status = make_plan(&config, budget, &plan, error_out);
  if (status == QUIRE_OK && plan.tokens < prompt) {
    status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--budget",
                             "%lld bytes hold %lld tokens, less than a prompt of %d; raise it", (long long)budget,
                             (long long)plan.tokens, prompt);
  }
  config.cache_tokens = (int32_t)plan.tokens;
  if (status == QUIRE_OK) {
    status = quire_engine_create(&env, &config, &engine, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  char name[BENCH_NAME_BYTES];
  snprintf(name, sizeof name, "memory reserved, R=%d", ranks);
  struct bench_figure reserved = {name, "of R * B, tables of the host included",
                                  (double)meter.bytes / ((double)budget * ranks), 1.01, true};
  bench_figure(bench, &reserved);
  status = fill_cache(engine, prompt, bench->model.config.vocab, held_out, error_out);
  if (status == QUIRE_OK) {
    printf("%lld tokens by the plan, %lld held at once\n", (long long)plan.tokens, (long long)*held_out);
    snprintf(name, sizeof name, "tokens held, R=%d", ranks);
    struct bench_figure held = {name, "of the plan", (double)*held_out / (double)plan.tokens, 0.99, false};
    bench_figure(bench, &held);
  }
  quire_engine_destroy(engine);
  return status;
}

static enum quire_status runs(struct bench *bench, struct quire_error *error_out) {
  int64_t held[3] = {0};
  enum quire_status status = bench_model_open(bench, error_out);
  for (int32_t ranks = 1; status == QUIRE_OK && ranks <= 2; ranks++) {
    status = run_ranks(bench, ranks, &held[ranks], error_out);
  }
  if (status == QUIRE_OK) {
    struct bench_figure unique = {"unique tokens on 2 ranks, peer", "of twice one rank's",
                                  (double)held[2] / (2.0 * (double)held[1]), 0.98, false};
    bench_figure(bench, &unique);
  }
  return status;
}

enum quire_status bench_capacity(struct bench *bench, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  for (int model = 0; status == QUIRE_OK && model < BENCH_MODELS; model++) {
    status = table(bench, (enum bench_model)model, error_out);
  }
  if (status == QUIRE_OK && bench->worker.model == NULL) {
    printf("no run: give --model\n");
    return QUIRE_OK;
  }
  return status != QUIRE_OK ? status : runs(bench, error_out);
}
