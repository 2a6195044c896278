#include "support/sim_life.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_private.h"
#include "support/sim_engine.h"

#define CLIENTS 96
#define STOPS 3
#define WINDOW 1000

/* Somebody who asked for an answer. */
struct client {
  bool live, ended, cancelled, stopped, paused, hold, held;
  uint64_t id;
  int32_t *tokens; /* [ctx] the prompt */
  int32_t count, new_max, new_min, got;
  int32_t stops[STOPS], stop_count;
  int32_t tops;   /* likeliest tokens it wants to hear of */
  bool biased;    /* by a list that changes nothing here, but goes along with every step */
  int32_t cached; /* as its first event said */
  uint64_t seed, deadline_ns;
  uint64_t state; /* over the prompt and what came */
  bool hit_stop;
};

struct life {
  const struct sim_life_options *options;
  struct sim_life_result *result;
  struct sim_engine s;
  struct client clients[CLIENTS];
  int32_t *memory;
  uint64_t random;
  uint64_t now_ns;
  int32_t ctx;
  int64_t window_tokens;
  int32_t window_ticks;
  struct quire_hash128_stream digest;
};

static uint64_t below(struct life *l, uint64_t bound) { return quire_splitmix64_below(&l->random, bound); }

static bool chance(struct life *l, int32_t percent) { return below(l, 100) < (uint64_t)percent; }

#define EXPECT(l, condition, ...)                                                                                      \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      printf("life with QUIRE_TEST_SEED=%llu: ", (unsigned long long)(l)->options->seed);                              \
      printf(__VA_ARGS__);                                                                                             \
      printf("\n");                                                                                                    \
      fail_msg("%s", #condition);                                                                                      \
    }                                                                                                                  \
  } while (0)

/* --- an engine of the seed's kind --- */

static void open_engine(struct life *l) {
  static const int32_t ranks[] = {1, 2, 3, 4, 8}, chunks[] = {32, 64, 100, 128, 256};
  struct sim_engine *s = &l->s;
  sim_engine_defaults(s);
  l->ctx = 200 + (int32_t)below(l, 600);
  s->config.ctx_tokens = l->ctx;
  s->config.ranks = ranks[below(l, 5)];
  s->config.sharing = chance(l, 70) || s->config.ranks == 1 ? QUIRE_SHARING_SHARED : QUIRE_SHARING_REPLICATED;
  s->config.view = s->config.sharing == QUIRE_SHARING_SHARED && s->config.ranks > 1
                       ? (chance(l, 50) ? QUIRE_VIEW_PEER : QUIRE_VIEW_GATHER)
                       : QUIRE_VIEW_LOCAL;
  s->config.split = chance(l, 50) ? QUIRE_SPLIT_ZIGZAG : QUIRE_SPLIT_INTERLEAVE;
  s->config.chunk_tokens = chunks[below(l, 5)];
  s->config.running_max = 1 + (int32_t)below(l, 24);
  s->config.queue_max = 1 + (int32_t)below(l, 60);
  s->config.headroom_tokens = 1 + (int32_t)below(l, 200);
  s->config.poison = chance(l, 50);
  s->config.yield_margin = (int32_t)below(l, 3);
  int32_t most = l->ctx + l->ctx / 10 + QUIRE_PAGE_TOKENS;
  s->config.cache_tokens = l->options->tight ? most : most + (int32_t)below(l, 4 * (uint64_t)l->ctx);
  s->sim = (struct quire_sim_config){
      .seed = quire_splitmix64(&l->random), .verify = true, .step_ns = 1000, .row_ns = 10, .clock_ns = &l->now_ns};
  if (l->options->faults) {
    s->sim.nonfinite_per_million = chance(l, 50) ? 1000 : 0;
    s->sim.command_steps_max = (int32_t)below(l, 6);
    s->sim.command_failures_per_million = chance(l, 30) ? 200 : 0;
  }
  sim_engine_open(s);
}

/* --- what clients do --- */

static struct client *free_client(struct life *l) {
  for (int32_t i = 0; i < CLIENTS; i++) {
    if (!l->clients[i].live) {
      return &l->clients[i];
    }
  }
  return NULL;
}

static struct client *any_client(struct life *l) {
  struct client *c = &l->clients[below(l, CLIENTS)];
  return c->live && !c->ended ? c : NULL;
}

static void make_client(struct life *l, struct client *c) {
  int32_t *tokens = c->tokens;
  *c = (struct client){.tokens = tokens, .state = QUIRE_SIM_START};
  bool is_short = chance(l, 50);
  c->count = 1 + (int32_t)below(l, (uint64_t)(is_short ? 60 : l->ctx - 1));
  int32_t room = l->ctx - c->count;
  c->new_max = (int32_t)below(l, (uint64_t)(room < 150 ? room : 150) + 1);
  c->new_min = chance(l, 20) ? (int32_t)below(l, 40) : 0;
  c->stop_count = (int32_t)below(l, STOPS + 1);
  for (int32_t i = 0; i < c->stop_count; i++) {
    c->stops[i] = (int32_t)below(l, SIM_VOCAB);
  }
  c->seed = quire_splitmix64(&l->random);
  c->deadline_ns = chance(l, 10) ? l->now_ns + 1 + below(l, 400000) : 0;
  c->hold = !l->options->tight && chance(l, 4);
  c->tops = chance(l, 5) ? 1 + (int32_t)below(l, 3) : 0;
  c->biased = chance(l, 5);
  sim_prompt(below(l, 3), (int32_t)below(l, (uint64_t)l->ctx), l->random >> 44, c->count, c->tokens);
  for (int32_t i = 0; i < c->count; i++) {
    c->state = quire_sim_state(c->state, c->tokens[i]);
  }
}

static void submit(struct life *l) {
  struct client *c = free_client(l);
  if (c == NULL) {
    return;
  }
  make_client(l, c);
  struct quire_bias bias = {0, 1.0f};
  struct quire_engine_request request = {
      .tokens = c->tokens,
      .count = c->count,
      .new_max = c->new_max,
      .new_min = c->new_min,
      .sampling = {.temperature = 1,
                   .top_p = 1,
                   .seed = c->seed,
                   .top_logprobs = c->tops,
                   .bias = &bias,
                   .bias_count = c->biased},
      .stops = c->stops,
      .stop_count = c->stop_count,
      .priority = chance(l, 10) ? (int32_t)below(l, 3) - 1 : 0,
      .deadline_ns = c->deadline_ns,
      .salt = "tenant",
      .salt_bytes = chance(l, 10) ? 6 : 0,
      .no_match = chance(l, 5),
      .hold = c->hold,
      .tag = (uint64_t)(c - l->clients),
  };
  if (chance(l, 5)) { /* frequency penalties send the list along, which a plan may have no room for */
    request.sampling.frequency_penalty = 0.5f;
  }
  struct quire_error error = {0};
  enum quire_status status = quire_engine_submit(l->s.engine, &request, &c->id, &error);
  bool unwell = l->options->faults && status == QUIRE_ERR_RANK;
  EXPECT(l, status == QUIRE_OK || status == QUIRE_ERR_AGAIN || unwell, "%s: %s", error.where, error.text);
  c->live = status == QUIRE_OK;
  l->result->requests += c->live;
}

static void disturb(struct life *l) {
  struct client *c = any_client(l);
  if (c == NULL) {
    return;
  }
  switch (below(l, 8)) {
  case 0:
    c->cancelled = quire_engine_cancel(l->s.engine, c->id) || c->cancelled;
    break;
  case 1:
  case 2:
    c->stopped = quire_engine_stop_request(l->s.engine, c->id) || c->stopped;
    break;
  case 3:
    c->paused = quire_engine_pause(l->s.engine, c->id, true);
    break;
  default:
    quire_engine_pause(l->s.engine, c->id, false);
    c->paused = false;
    break;
  }
}

/* Those that look at their rows let them go after a while. */
static void release_held(struct life *l, int32_t percent) {
  for (int32_t i = 0; i < CLIENTS; i++) {
    struct client *c = &l->clients[i];
    if (c->live && c->held && chance(l, percent)) {
      EXPECT(l, quire_engine_cancel(l->s.engine, c->id), "client %d is held no more", i);
      c->live = false;
    }
  }
}

/* --- what they hear --- */

static bool forbidden(const struct client *c, int32_t token) {
  for (int32_t i = 0; i < c->stop_count && c->got < c->new_min; i++) {
    if (c->stops[i] == token) {
      return true;
    }
  }
  return false;
}

/* What an event says besides its token. */
static void hear_counts(struct life *l, const struct client *c, const struct quire_engine_event *event) {
  EXPECT(l, event->prefilled == c->count && event->cached < c->count && (c->got == 0 || event->cached == c->cached),
         "client %d hears of %d rows and %d cached of a prompt of %d", (int)event->tag, event->prefilled, event->cached,
         c->count);
  EXPECT(l, (event->admitted_ns != 0) == (c->got == 0), "client %d hears when it was admitted with token %d",
         (int)event->tag, c->got);
  EXPECT(l, event->logprob == -1.0f && event->top_count == c->tops && (event->tops != NULL) == (c->tops > 0),
         "client %d hears of %d likely tokens, not of %d", (int)event->tag, event->top_count, c->tops);
}

static void hear_token(struct life *l, struct client *c, const struct quire_engine_event *event) {
  int32_t expected = quire_sim_token(c->state, c->seed, c->count + c->got, SIM_VOCAB);
  while (forbidden(c, expected)) {
    expected = (expected + 1) % SIM_VOCAB;
  }
  EXPECT(l, event->token == expected && event->position == c->count + c->got,
         "client %d hears token %d at %d, alone it would be %d at %d", (int)event->tag, event->token, event->position,
         expected, c->count + c->got);
  EXPECT(l, !c->hit_stop && c->got < c->new_max, "client %d hears more than its answer", (int)event->tag);
  hear_counts(l, c, event);
  c->cached = event->cached;
  c->state = quire_sim_state(c->state, event->token);
  c->got++;
  for (int32_t i = 0; i < c->stop_count; i++) {
    c->hit_stop = c->hit_stop || c->stops[i] == event->token;
  }
  if (c->hold && c->got == 1 && chance(l, 30)) { /* before its first decode step */
    c->stopped = quire_engine_stop_request(l->s.engine, c->id);
  }
  l->result->tokens++;
  l->window_tokens++;
}

static void hear_end(struct life *l, struct client *c, const struct quire_engine_event *event) {
  c->ended = true;
  if (event->kind == QUIRE_EVENT_DONE) {
    bool complete = event->finish == QUIRE_FINISH_LENGTH ? c->got == c->new_max : c->hit_stop || c->stopped;
    EXPECT(l, complete, "client %d is done after %d of %d tokens", (int)event->tag, c->got, c->new_max);
    c->held = c->hold && quire_engine_watch(l->s.engine, c->id);
    if (c->held) {
      int32_t rows = c->new_max == 0 ? c->count : c->count + c->got - 1;
      int32_t held = quire_engine_tokens(l->s.engine);
      EXPECT(l, held == rows || (c->stopped && held < rows), "client %d holds %d rows of %d", (int)event->tag, held,
             rows);
    }
  } else {
    bool late = event->status == QUIRE_ERR_REQUEST && c->deadline_ns > 0 && c->deadline_ns <= l->now_ns;
    bool faulty = event->status == QUIRE_ERR_NONFINITE && l->s.sim.nonfinite_per_million > 0;
    bool starved = event->status == QUIRE_ERR_AGAIN && l->s.sim.command_failures_per_million > 0;
    bool cancelled = event->status == QUIRE_ERR_CANCELLED && c->cancelled;
    EXPECT(l, late || faulty || starved || cancelled, "client %d failed with %s", (int)event->tag,
           quire_status_name(event->status));
    const struct quire_error *error = quire_engine_error(l->s.engine, event->id);
    EXPECT(l, error != NULL && error->status == event->status, "client %d failed without a reason", (int)event->tag);
    l->result->cancelled += cancelled;
    l->result->failed += !cancelled;
  }
  c->live = c->held;
}

static void hear(struct life *l) {
  struct quire_engine_event events[8];
  int32_t count;
  while ((count = quire_engine_poll(l->s.engine, events, 8)) > 0) {
    for (int32_t i = 0; i < count; i++) {
      const struct quire_engine_event *event = &events[i];
      struct client *c = &l->clients[event->tag];
      EXPECT(l, c->live && !c->ended && c->id == event->id, "client %d hears after its end", (int)event->tag);
      int64_t record[] = {(int64_t)event->tag, event->kind,   event->position,
                          event->token,        event->status, event->cached};
      quire_hash128_add(&l->digest, record, sizeof record);
      if (event->kind == QUIRE_EVENT_TOKEN) {
        hear_token(l, c, event);
      } else {
        hear_end(l, c, event);
      }
    }
  }
}

/* --- time --- */

/* Somebody could draw in each tick of the window: somebody must have. */
static bool could_draw(const struct life *l) {
  for (int32_t i = 0; i < CLIENTS; i++) {
    const struct client *c = &l->clients[i];
    if (c->live && (c->held || c->paused)) {
      return false;
    }
  }
  return quire_engine_active(l->s.engine) > 0;
}

static void watch_progress(struct life *l) {
  l->window_ticks = could_draw(l) ? l->window_ticks + 1 : 0;
  l->window_tokens = l->window_ticks == 0 ? 0 : l->window_tokens;
  if (l->window_ticks == WINDOW) {
    EXPECT(l, l->window_tokens > 0, "no token in %d ticks", WINDOW);
    l->window_ticks = 0;
    l->window_tokens = 0;
  }
}

/* The step's rows and draws are counted as its plan has them, but for entries that failed. */
static void check_counts(struct life *l, const struct quire_engine_stats *before) {
  const struct quire_engine_stats *after = &l->s.engine->stats;
  const struct quire_step_plan *plan = l->s.engine->plan;
  const struct quire_step_entry *entries = quire_step_plan_entries(plan);
  int64_t rows[2] = {0, 0}, draws = 0;
  for (int32_t i = 0; after->steps > before->steps && i < plan->entry_count; i++) {
    rows[entries[i].kind] += entries[i].end - entries[i].begin;
    draws += (entries[i].flags & QUIRE_ENTRY_SAMPLE) != 0;
  }
  int64_t prefilled = after->prefill_tokens - before->prefill_tokens;
  int64_t decoded = after->decode_tokens - before->decode_tokens, drawn = after->drawn_tokens - before->drawn_tokens;
  bool all = prefilled == rows[QUIRE_ENTRY_PREFILL] && decoded == rows[QUIRE_ENTRY_DECODE] && drawn == draws;
  bool some = prefilled <= rows[QUIRE_ENTRY_PREFILL] && decoded <= rows[QUIRE_ENTRY_DECODE] && drawn <= draws;
  EXPECT(l, all || (some && l->s.sim.nonfinite_per_million > 0),
         "%lld and %lld rows are counted, %lld draws, of %lld and %lld, %lld", (long long)prefilled, (long long)decoded,
         (long long)drawn, (long long)rows[QUIRE_ENTRY_PREFILL], (long long)rows[QUIRE_ENTRY_DECODE], (long long)draws);
}

static void tick(struct life *l) {
  struct quire_engine_stats before = l->s.engine->stats;
  struct quire_error error = {0};
  enum quire_status status = quire_engine_tick(l->s.engine, ++l->now_ns, &error);
  EXPECT(l, status == QUIRE_OK, "%s: %s", error.where, error.text);
  bool lawful = quire_engine_check_laws(l->s.engine, &error);
  EXPECT(l, lawful, "%s: %s", error.where, error.text);
  check_counts(l, &before);
  hear(l);
  watch_progress(l);
}

/* Nobody new; all that is inside comes to its end, and nothing is left. */
static void wind_down(struct life *l) {
  for (int32_t i = 0; i < CLIENTS; i++) {
    if (l->clients[i].live && !l->clients[i].ended) {
      quire_engine_pause(l->s.engine, l->clients[i].id, false);
    }
  }
  for (int32_t i = 0; i < 60000 && quire_engine_active(l->s.engine) > 0; i++) {
    release_held(l, 100);
    tick(l);
  }
  release_held(l, 100);
  EXPECT(l, quire_engine_active(l->s.engine) == 0, "%d requests never end", quire_engine_active(l->s.engine));
  for (int32_t i = 0; i < CLIENTS; i++) {
    EXPECT(l, !l->clients[i].live, "client %d never heard of its end", i);
  }
  quire_engine_flush(l->s.engine);
  EXPECT(l, quire_engine_pump(l->s.engine, true, NULL) == QUIRE_OK, "commands are left");
  struct quire_cache_stats stats;
  quire_cache_stats(quire_engine_cache(l->s.engine), &stats);
  EXPECT(l, stats.refs == 0 && stats.requests == 0 && stats.cached == 0 && stats.free + stats.lost == stats.pages,
         "%d of %d pages are free", stats.free, stats.pages);
}

void sim_life_run(const struct sim_life_options *options, struct sim_life_result *result_out) {
  struct life *l = quire_env_zalloc(quire_env_default(), 1, sizeof *l); /* aligned, for the hash */
  assert_non_null(l);
  memset(result_out, 0, sizeof *result_out);
  l->options = options;
  l->result = result_out;
  l->random = options->seed;
  l->now_ns = 1;
  quire_hash128_begin(&l->digest, 0);
  open_engine(l);
  l->memory = calloc((size_t)CLIENTS * (size_t)l->ctx, sizeof *l->memory);
  assert_non_null(l->memory);
  for (int32_t i = 0; i < CLIENTS; i++) {
    l->clients[i].tokens = l->memory + (int64_t)i * l->ctx;
  }
  int32_t rate = 5 + (int32_t)below(l, 40);
  for (int32_t t = 0; t < options->ticks; t++) {
    for (int32_t i = 0; i < 4 && chance(l, rate); i++) {
      submit(l);
    }
    if (chance(l, 10)) {
      disturb(l);
    }
    if (below(l, 500) == 0) {
      quire_engine_flush(l->s.engine);
    }
    release_held(l, 3);
    tick(l);
  }
  wind_down(l);
  struct quire_engine_stats stats;
  quire_engine_stats(l->s.engine, &stats);
  result_out->preempted = stats.preempted;
  result_out->cached = stats.cached_tokens;
  memcpy(result_out->ways, l->s.engine->ways_taken, sizeof result_out->ways);
  result_out->digest = quire_hash128_end(&l->digest);
  sim_engine_close(&l->s);
  free(l->memory);
  quire_env_free(quire_env_default(), l, 1, sizeof *l);
}
