/* The controller without a model: ticks of an engine over the executor "sim", which draws tokens in no time, while
 * requests come and go. A tick here is everything the controller does for a step: taking in as many new requests as
 * ended, match, admission, allocation, decision, step plan with page-table changes, cache calls, events and their poll.
 * What the simulated ranks take to draw tokens and fill their ack is the ranks' and not counted; it is printed beside
 * it.
 *
 *   tick, N running   at most 10 us with 256 and 30 us with 1,024 that decode
 *   page              alloc and free of a page by the pool, eight at a time as a prompt takes them: at most 20 ns
 *
 * The yardstick of a tick is a copy of what it must at least write and read: entry, sampling record, token, result and
 * event of each request. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench/bench_list.h"
#include "engine/engine.h"
#include "pool/pool.h"
#include "step/sim/sim.h"

#define VOCAB 32768
#define CONTEXT 1024
#define FAMILIES 8
#define FAMILY_TOKENS 128
#define PROMPT_MIN 150
#define PROMPT_SPREAD 100
#define ANSWER_MIN 300
#define ANSWER_SPREAD 200
#define POOL_PAGES 65536
#define POOL_TABLE 512
#define POOL_TAKE 8
#define COPY_BYTES 320

struct controller {
  const struct bench *bench;
  struct quire_model_config model;
  struct quire_model_weights weights;
  struct quire_engine *engine;
  int32_t running;
  int32_t *tokens; /* [CONTEXT] */
  uint64_t random;
  struct quire_sim_config sim;
  uint64_t step_ns; /* of simulated ranks, all ticks */
  uint64_t ticks;
  int64_t ended;
  uint8_t *copy_from, *copy_to; /* [running * COPY_BYTES] */
};

static enum quire_status submit_one(struct controller *c, struct quire_error *error_out) {
  int32_t count = PROMPT_MIN + (int32_t)quire_splitmix64_below(&c->random, PROMPT_SPREAD);
  uint64_t family = quire_splitmix64_below(&c->random, FAMILIES), own = quire_splitmix64(&c->random);
  for (int32_t i = 0; i < count; i++) {
    c->tokens[i] = (int32_t)(quire_mix64((i < FAMILY_TOKENS ? family : own) + (uint64_t)i * 977) % VOCAB);
  }
  struct quire_engine_request request = {
      .tokens = c->tokens,
      .count = count,
      .new_max = ANSWER_MIN + (int32_t)quire_splitmix64_below(&c->random, ANSWER_SPREAD),
      .sampling = {.temperature = 1, .top_p = 1, .seed = own},
  };
  uint64_t id;
  return quire_engine_submit(c->engine, &request, &id, error_out);
}

/* One tick, its events, and a new request for each that ended. */
static enum quire_status tick(struct controller *c, struct quire_error *error_out) {
  struct quire_engine_event events[64];
  int32_t count;
  enum quire_status status = quire_engine_tick(c->engine, 0, error_out);
  do {
    count = quire_engine_poll(c->engine, events, 64);
    for (int32_t i = 0; i < count && status == QUIRE_OK; i++) {
      if (events[i].kind != QUIRE_EVENT_TOKEN) {
        c->ended++;
        status = submit_one(c, error_out);
      }
    }
  } while (count == 64);
  return status;
}

static uint64_t thread_ns(const void *bench) { return bench_thread_ns(bench); }

static enum quire_status open_controller(struct controller *c, struct quire_error *error_out) {
  quire_sim_model(VOCAB, CONTEXT, &c->model, &c->weights);
  struct quire_engine_config config = {
      .model = &c->model,
      .weights = &c->weights,
      .options = quire_model_options_default(),
      .kernels = c->bench->kernels,
      .executor = "sim",
      .sim = &c->sim,
      .ranks = 4,
      .sharing = QUIRE_SHARING_SHARED,
      .view = QUIRE_VIEW_PEER,
      .kv_format = QUIRE_KV_BF16,
      .chunk_tokens = 2048,
      .ctx_tokens = CONTEXT,
      .cache_tokens = 2 * CONTEXT * c->running,
      .running_max = c->running,
      .queue_max = c->running,
      .headroom_tokens = 128,
      .threads_per_rank = 1,
  };
  c->sim = (struct quire_sim_config){.spent_ns = &c->step_ns, .spent_clock = thread_ns, .spent_context = c->bench};
  enum quire_status status = quire_engine_create(quire_env_default(), &config, &c->engine, error_out);
  size_t bytes = (size_t)c->running * COPY_BYTES;
  c->tokens = malloc(CONTEXT * sizeof *c->tokens);
  c->copy_from = malloc(bytes);
  c->copy_to = malloc(bytes);
  if (status == QUIRE_OK && (c->tokens == NULL || c->copy_from == NULL || c->copy_to == NULL)) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench", "no memory for the controller's requests");
  }
  memset(c->copy_from, 1, bytes);
  memset(c->copy_to, 1, bytes);
  for (int32_t i = 0; status == QUIRE_OK && i < c->running; i++) {
    status = submit_one(c, error_out);
  }
  /* until ends and beginnings are spread over the answers' lengths */
  for (int32_t i = 0; status == QUIRE_OK && i < 2 * (ANSWER_MIN + ANSWER_SPREAD); i++) {
    status = tick(c, error_out);
  }
  return status;
}

static void close_controller(struct controller *c) {
  quire_engine_destroy(c->engine);
  free(c->tokens);
  free(c->copy_from);
  free(c->copy_to);
}

static enum quire_status run_ticks(void *context, uint64_t *ns_out, struct quire_error *error_out) {
  struct controller *c = context;
  enum quire_status status = QUIRE_OK;
  uint64_t begin = bench_thread_ns(c->bench), slice = (uint64_t)c->bench->options.slice_us * 1000, ns = 0;
  uint64_t ticks = 0, step_ns = c->step_ns;
  while (status == QUIRE_OK && ns < slice) {
    for (int i = 0; i < 32 && status == QUIRE_OK; i++, ticks++) {
      status = tick(c, error_out);
    }
    ns = bench_thread_ns(c->bench) - begin;
  }
  c->ticks += ticks;
  step_ns = c->step_ns - step_ns;
  ns = ns > step_ns ? ns - step_ns : 1;
  *ns_out = ticks > 0 ? ns / ticks : ns;
  return status;
}

static void copy_requests(void *context) {
  struct controller *c = context;
  for (int32_t i = 0; i < c->running; i++) {
    memcpy(c->copy_to + (size_t)i * COPY_BYTES, c->copy_from + (size_t)i * COPY_BYTES, COPY_BYTES);
  }
  uint8_t *swap = c->copy_to;
  c->copy_to = c->copy_from;
  c->copy_from = swap;
}

static enum quire_status bench_ticks(struct bench *bench, int32_t running, double bar_us,
                                     struct quire_error *error_out) {
  struct controller c = {.bench = bench, .running = running, .random = 7};
  char name[BENCH_NAME_BYTES], what[BENCH_NAME_BYTES];
  snprintf(name, sizeof name, "tick, %d running", running);
  if (!bench_wanted(bench, name)) {
    return QUIRE_OK;
  }
  enum quire_status status = open_controller(&c, error_out);
  struct bench_case measured = {
      .name = name,
      .unit = "M rows/s",
      .scale = 1e6,
      .threads = 1,
      .sides = 2,
      .bars = 1,
      .side = {{"ticks", NULL, run_ticks, &c, running}, {"copy of records", copy_requests, NULL, &c, running}},
      .bar = {{.against = 1}},
  };
  struct bench_result result = {0};
  c.ended = 0;
  c.step_ns = 0;
  status = status != QUIRE_OK ? status : bench_measure(bench, &measured, &result, error_out);
  if (status == QUIRE_OK && result.rate[0] > 0) {
    double ticks = (double)(c.ticks > 0 ? c.ticks : 1);
    snprintf(what, sizeof what, "us a tick without the %.1f of simulated ranks (%.2f requests begin and end)",
             (double)c.step_ns / ticks * 1e-3, (double)c.ended / ticks);
    bench_figure(bench, &(struct bench_figure){name, what, running / result.rate[0] * 1e6, bar_us, true});
  }
  close_controller(&c);
  return status;
}

/* --- pages --- */

struct pages {
  const struct bench *bench;
  struct quire_pool *pool;
  quire_table_id table;
};

static void alloc_and_free(void *context) {
  struct pages *p = context;
  for (int i = 0; i < POOL_TABLE; i += POOL_TAKE) {
    (void)quire_pool_table_extend(p->pool, p->table, POOL_TAKE);
  }
  quire_pool_table_truncate(p->pool, p->table, 0);
}

static enum quire_status bench_pages(struct bench *bench, struct quire_error *error_out) {
  static const char name[] = "page, alloc and free";
  if (!bench_wanted(bench, name)) {
    return QUIRE_OK;
  }
  struct pages p = {.bench = bench};
  struct quire_pool_config config = {
      .geometry = {.page_tokens = QUIRE_PAGE_TOKENS, .ranks = 4, .storage_ranks = 4, .pages = POOL_PAGES},
      .tables = 1,
      .table_pages = POOL_TABLE,
      .chain_spread_max = QUIRE_CHAIN_SPREAD_MAX,
  };
  enum quire_status status = quire_pool_create(quire_env_default(), &config, NULL, &p.pool, error_out);
  if (status == QUIRE_OK) {
    status = quire_pool_table_open(p.pool, &p.table);
  }
  struct bench_case measured = {
      .name = name,
      .unit = "M pages/s",
      .scale = 1e6,
      .threads = 1,
      .sides = 1,
      .side = {{"pool", alloc_and_free, NULL, &p, POOL_TABLE}},
  };
  struct bench_result result = {0};
  status = status != QUIRE_OK ? status : bench_measure(bench, &measured, &result, error_out);
  if (status == QUIRE_OK && result.rate[0] > 0) {
    bench_figure(bench, &(struct bench_figure){name, "ns a page", 1e9 / result.rate[0], 20, true});
  }
  quire_pool_destroy(p.pool);
  return status;
}

enum quire_status bench_controller(struct bench *bench, struct quire_error *error_out) {
  enum quire_status status = bench_ticks(bench, 256, 10, error_out);
  if (status == QUIRE_OK && !bench->options.tiny) {
    status = bench_ticks(bench, 1024, 30, error_out);
  }
  return status == QUIRE_OK ? bench_pages(bench, error_out) : status;
}
