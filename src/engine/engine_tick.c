/* The tick: what the scheduler decided becomes one step plan; what the ranks answered becomes cache calls and
 * events. */
#include <string.h>

#include "base/assert.h"
#include "engine/engine_private.h"

/* Requests lie apart in memory: those of the next entries are fetched while one is worked on, and where they point to
 * when they are there. */
#define AHEAD 16
#define AHEAD_TOKENS 8
#define FETCH_TOKENS 16 /* in a cache line */

static void fetch(const struct quire_engine *engine, int32_t slot) { __builtin_prefetch(&engine->requests[slot], 1); }

/* The second line, when the first is there and says that it will be wanted. */
static void fetch_rest(const struct quire_engine *engine, int32_t slot) {
  const struct engine_request *r = &engine->requests[slot];
  __builtin_prefetch(r->tokens + r->computed, 1);
  if (r->computed >= r->quiet_end) {
    __builtin_prefetch(&r->cold, 1);
    for (int32_t i = 0; i < engine->geometry.page_tokens && i < r->computed; i += FETCH_TOKENS) { /* a page to seal */
      __builtin_prefetch(r->tokens + r->computed - 1 - i);
    }
  }
}

/* --- decision to plan --- */

/* What prefill and decode entries have in common. Only pages that the entry's rows need are announced to the ranks. */
static struct quire_step_entry base_entry(const struct quire_engine *engine, const struct engine_request *r,
                                          int32_t end) {
  bool appends = end > r->announced * engine->geometry.page_tokens;
  struct quire_step_entry entry = {
      .request = r->handle.slot,
      .begin = r->computed,
      .end = end,
      .prefix_end = r->paged,
      .home = -1,
      .carry_rank = -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .next_token = QUIRE_TOKEN_ABSENT,
      .append_begin = r->announced,
      .append_count = appends ? quire_geometry_pages_of(&engine->geometry, end) - r->announced : 0,
      .sampling = -1,
  };
  return entry;
}

static struct quire_step_entry prefill_entry(const struct quire_engine *engine, const struct engine_request *r,
                                             int32_t rows) {
  struct quire_step_entry entry = base_entry(engine, r, r->computed + rows);
  entry.kind = QUIRE_ENTRY_PREFILL;
  entry.flags = r->flags;
  if (entry.end < r->count) {
    entry.next_token = r->tokens[entry.end];
  } else if (r->count < r->end_max) {
    entry.flags |= QUIRE_ENTRY_SAMPLE;
  }
  if (engine->parts.draft_layers > 0 && entry.begin > 0) {
    entry.carry_rank = r->carry_rank;
    /* The last rank has the fewest rows where shares are uneven. */
    entry.recompute_rank = r->carry_rank >= 0 ? -1 : engine->geometry.ranks - 1;
  }
  return entry;
}

/* The rank that decodes a request: the one with fewest, preferably that which has its hidden state. */
static int32_t choose_home(const struct quire_engine *engine, const struct engine_request *r) {
  int32_t home = r->carry_rank >= 0 ? r->carry_rank : 0;
  for (int32_t rank = 0; rank < engine->geometry.ranks; rank++) {
    home = engine->homes[rank] < engine->homes[home] ? rank : home;
  }
  return home;
}

static void find_home(struct quire_engine *engine, struct engine_request *r, int32_t recomputed) {
  bool moves = engine->parts.draft_layers == 0 || recomputed < engine->limits.prefills_max;
  r->home = (int8_t)(moves ? choose_home(engine, r) : r->carry_rank);
  engine->homes[r->home]++;
}

static struct quire_step_entry decode_entry(const struct quire_engine *engine, const struct engine_request *r,
                                            int32_t rows) {
  struct quire_step_entry entry = base_entry(engine, r, r->computed + rows);
  entry.kind = QUIRE_ENTRY_DECODE;
  entry.flags = rows > 0 ? QUIRE_ENTRY_SAMPLE : 0;
  entry.home = r->home;
  if (r->computed > r->paged) {
    entry.commit_rank = r->home;
    entry.commit_begin = r->paged;
    entry.commit_end = r->computed;
  }
  if (engine->parts.draft_layers > 0 && rows > 0) {
    bool here = r->carry_rank == r->home;
    entry.carry_rank = here ? r->carry_rank : -1;
    entry.recompute_rank = here ? -1 : r->home;
  }
  return entry;
}

static int32_t bans_of(const struct engine_request *r) { return r->count - r->prompt < r->new_min ? r->stop_count : 0; }

/* False: it does not fit beside the others, and has its turn in a later step. */
static bool add_entry(struct quire_engine *engine, struct engine_request *r, const struct quire_step_entry *entry) {
  const quire_page *appended = NULL;
  if (entry->append_count > 0) {
    appended = quire_cache_request_pages(engine->cache, r->handle, NULL) + r->announced;
  }
  if (entry->end == entry->begin) {
    return quire_step_plan_add(engine->plan, &engine->step.limits, entry, NULL, appended);
  }
  struct quire_step_draw draw = {
      .sampling = &r->cold->sampling,
      .tokens = r->tokens,
      .prompt_end = r->prompt,
      .bans = r->cold->stops,
      .ban_count = bans_of(r),
      .listed = r->listed,
  };
  bool fits = quire_step_plan_add_drawn(engine->plan, &engine->step.limits, entry, appended, &draw);
  r->listed = fits ? draw.listed : r->listed;
  r->told = fits && r->plain && draw.ban_count == 0 && (entry->flags & QUIRE_ENTRY_SAMPLE) != 0;
  return fits;
}

/* What almost every row of a step is: the next token of a request whose way of drawing the ranks know. Its entry is
 * written where it stays. */
static bool add_next(struct quire_engine *engine, const struct engine_request *r) {
  bool appends = r->computed >= r->announced * engine->geometry.page_tokens;
  struct quire_step_room room;
  if (!quire_step_plan_extend(engine->plan, &engine->step.limits, 2, appends, &room)) {
    return false;
  }
  room.tokens[0] = r->tokens[r->computed - 1];
  room.tokens[1] = r->tokens[r->computed];
  if (appends) {
    room.pages[0] = quire_cache_request_pages(engine->cache, r->handle, NULL)[r->announced];
  }
  bool commits = r->computed > r->paged, drafts = engine->parts.draft_layers > 0, here = r->carry_rank == r->home;
  *room.entry = (struct quire_step_entry){
      .request = r->handle.slot,
      .kind = QUIRE_ENTRY_DECODE,
      .flags = QUIRE_ENTRY_SAMPLE,
      .begin = r->computed,
      .end = r->computed + 1,
      .prefix_end = r->paged,
      .home = r->home,
      .carry_rank = drafts && here ? r->home : -1,
      .recompute_rank = drafts && !here ? r->home : -1,
      .commit_rank = commits ? r->home : -1,
      .commit_begin = commits ? r->paged : 0,
      .commit_end = commits ? r->computed : 0,
      .token_first = room.token_first,
      .append_begin = r->announced,
      .append_count = appends,
      .append_first = appends ? room.append_first : 0, /* it may stay in later plans, which have fewer pages */
      .next_token = QUIRE_TOKEN_ABSENT,
      .sampling = -1,
  };
  return true;
}

static bool add_run(struct quire_engine *engine, struct engine_request *r, int32_t rows, int32_t *recomputed) {
  if (r->state == QUIRE_SCHED_PREFILL) {
    struct quire_step_entry entry = prefill_entry(engine, r, rows);
    return add_entry(engine, r, &entry);
  }
  if (r->home < 0) {
    find_home(engine, r, *recomputed);
  }
  *recomputed += engine->parts.draft_layers > 0 && rows > 0 && r->carry_rank != r->home;
  if (rows == 1 && r->told && bans_of(r) == 0) {
    return add_next(engine, r);
  }
  struct quire_step_entry entry = decode_entry(engine, r, rows);
  return add_entry(engine, r, &entry);
}

/* Entries that stand ready at their place stay; the others are written. */
static void build_plan(struct quire_engine *engine) {
  const struct quire_sched_decision *decision = &engine->decision;
  struct quire_step_plan *plan = engine->plan;
  int32_t recomputed = 0;
  quire_step_plan_reset(plan, ++engine->epoch, engine->geometry.ranks, engine->config.split);
  for (int32_t i = 0; i < decision->run_count; i++) {
    struct quire_sched_run run = decision->runs[i];
    int32_t slot = engine->running[run.index];
    struct engine_planned *planned = &engine->planned[plan->entry_count];
    if (run.rows == 1 && planned->slot == slot && planned->token_first == plan->token_count) {
      quire_step_plan_keep(plan);
      continue;
    }
    if (i + AHEAD < decision->run_count) {
      fetch(engine, engine->running[decision->runs[i + AHEAD].index]);
    }
    if (i + AHEAD_TOKENS < decision->run_count) {
      fetch_rest(engine, engine->running[decision->runs[i + AHEAD_TOKENS].index]);
    }
    struct engine_request *r = &engine->requests[slot];
    int32_t index = plan->entry_count;
    if (add_run(engine, r, run.rows, &recomputed)) {
      *planned = (struct engine_planned){slot, ENGINE_NONE};
      r->entry = index;
    }
  }
  QUIRE_ASSERT(plan->entry_count > 0);
  for (int32_t i = plan->entry_count; i < engine->planned_count; i++) { /* their tokens may be overwritten */
    engine->planned[i].token_first = ENGINE_NONE;
  }
  engine->planned_count = plan->entry_count;
}

/* --- acknowledgements to cache calls and events --- */

static void keep_rows(const struct quire_engine *engine, const struct engine_request *r,
                      const struct quire_step_entry *entry, struct quire_step_ack *ack) {
  const struct quire_step_row *rows = quire_step_ack_rows(ack, &engine->step.limits) + entry->token_first;
  int32_t first = entry->begin > 0 ? entry->begin - 1 : 0;
  for (int32_t position = entry->begin; position < entry->end && position < r->prompt; position++) {
    r->cold->rows[position] = rows[position - first];
  }
  if (entry->end >=
      r->prompt) { /* what follows is no prompt: known only when it is computed again after a preemption */
    r->cold->rows[r->prompt - 1].logprob = 0.0f;
  }
  const struct quire_step_sampling *record = quire_step_entry_sampling(engine->plan, &engine->step.limits, entry);
  if (r->cold->row_tops == NULL || record == NULL || record->row_top_count == 0) {
    return;
  }
  const struct quire_top *tops = quire_step_ack_tops(ack, &engine->step.limits) + record->row_top_first;
  for (int32_t position = entry->begin; position < entry->end && position < r->prompt; position++) {
    memcpy(r->cold->row_tops + (int64_t)position * record->row_top_count,
           tops + (int64_t)(position - entry->begin) * record->row_top_count,
           (size_t)record->row_top_count * sizeof *tops);
  }
}

static bool is_stop(const struct engine_request *r, int32_t token) {
  for (int32_t i = 0; i < r->stop_count; i++) {
    if (r->cold->stops[i] == token) {
      return true;
    }
  }
  return false;
}

static void say_done(struct quire_engine *engine, struct engine_request *r) {
  r->ended = true;
  engine->stats.done++;
  quire_engine_emit(engine, r, QUIRE_EVENT_DONE);
}

/* All rows that will be are in pages. */
static void settle_done(struct quire_engine *engine, struct engine_request *r) {
  if (!r->ended) {
    say_done(engine, r);
  }
  if (r->hold && r->state != QUIRE_SCHED_WAITING) {
    quire_engine_set_state(engine, r, QUIRE_SCHED_HELD);
    quire_engine_show(engine, r);
  } else {
    quire_engine_retire(engine, r);
  }
}

void quire_engine_complete(struct quire_engine *engine, struct engine_request *r, enum quire_finish finish) {
  r->finish = (uint8_t)finish;
  bool row_away = r->computed > r->paged;
  bool seals = r->computed / engine->geometry.page_tokens > r->sealed;
  if (!row_away || !(r->hold || seals)) {
    settle_done(engine, r);
    return;
  }
  if (!r->hold) {
    say_done(engine, r);
  }
  quire_engine_set_state(engine, r, QUIRE_SCHED_DRAIN);
  quire_engine_show(engine, r);
}

/* The likeliest tokens beside the one an entry drew. */
static const struct quire_top *tops_of(const struct quire_engine *engine, const struct quire_step_entry *entry,
                                       struct quire_step_ack *ack, uint8_t *count_out) {
  const struct quire_step_sampling *record =
      entry->sampling < 0 ? NULL : quire_step_entry_sampling(engine->plan, &engine->step.limits, entry);
  *count_out = record == NULL ? 0 : (uint8_t)record->top_count;
  return *count_out == 0 ? NULL : quire_step_ack_tops(ack, &engine->step.limits) + record->top_first;
}

/* The position from which on something besides a token may happen to a request that decodes: its answer ends, a page is
 * sealed, or announced, or wanted. 0: its entries are not plain. */
static int32_t quiet_end_of(const struct quire_engine *engine, const struct engine_request *r) {
  if (!r->told || bans_of(r) > 0 || r->carry_rank != r->home) {
    return 0;
  }
  int32_t page = engine->geometry.page_tokens;
  int32_t seals = (r->sealed + 1) * page, wants = r->announced * page - 1, ends = r->end_max - 2;
  int32_t first = seals < wants ? seals : wants;
  return first < ends ? first : ends;
}

/* Takes the drawn token, if there is one, and decides what comes next. */
static void advance(struct quire_engine *engine, struct engine_request *r, const struct quire_step_entry *entry,
                    const struct quire_step_result *result, struct quire_step_ack *ack) {
  if (r->state == QUIRE_SCHED_DRAIN) {
    settle_done(engine, r);
    return;
  }
  if (r->computed < r->count) {
    quire_engine_show(engine, r);
    return;
  }
  if (r->count == r->end_max) {
    quire_engine_complete(engine, r, QUIRE_FINISH_LENGTH);
    return;
  }
  QUIRE_ASSERT(result->token != QUIRE_TOKEN_ABSENT);
  struct quire_engine_event *event = quire_engine_emit(engine, r, QUIRE_EVENT_TOKEN);
  event->token = result->token;
  event->logprob = result->logprob;
  event->tops = tops_of(engine, entry, ack, &event->top_count);
  r->tokens[r->count++] = result->token;
  engine->stats.drawn_tokens++;
  bool stop = is_stop(r, result->token);
  if (stop || r->count == r->end_max) {
    quire_engine_complete(engine, r, stop ? QUIRE_FINISH_STOP : QUIRE_FINISH_LENGTH);
    return;
  }
  if (r->state == QUIRE_SCHED_PREFILL) {
    quire_engine_set_state(engine, r, QUIRE_SCHED_DECODE);
  }
  r->quiet_end = quiet_end_of(engine, r);
  quire_engine_show(engine, r);
}

/* What almost every answer is: one token more of a request to which nothing else happens. False: it is not. */
static inline bool settle_quiet(struct quire_engine *engine, struct engine_request *r, int32_t index,
                                const struct quire_step_result *result) {
  if (r->computed >= r->quiet_end || result->nonfinite != 0 || (r->stop_count > 0 && is_stop(r, result->token))) {
    return false;
  }
  const struct quire_step_entry *entry = &engine->kept.entries[index];
  QUIRE_ASSERT(result->token != QUIRE_TOKEN_ABSENT && entry->begin == r->computed && entry->commit_end == r->computed);
  *quire_engine_next_event(engine) = (struct quire_engine_event){
      .id = r->id,
      .tag = r->tag,
      .position = r->count,
      .token = result->token,
      .logprob = result->logprob,
      .prefilled = r->prompt,
      .cached = r->cached,
      .kind = QUIRE_EVENT_TOKEN,
  };
  r->tokens[r->count++] = result->token;
  r->paged = r->computed++;
  quire_step_kept_advance(&engine->kept, index, result->token);
  engine->planned[index].token_first = entry->token_first;
  return true;
}

/* The step's rows are where the plan said: tells the cache what lies in pages. A request whose rows are not finite
 * fails and seals nothing of this step. */
static void settle(struct quire_engine *engine, struct engine_request *r, const struct quire_step_entry *entry,
                   const struct quire_step_result *result, struct quire_step_ack *ack) {
  r->announced = entry->append_begin + entry->append_count;
  if (result->nonfinite != 0) {
    quire_error_set(&r->cold->error, QUIRE_ERR_NONFINITE, "request",
                    "a key, latent or logit of positions %d to %d is not finite; the request is dropped and nothing "
                    "of it is cached from there on; if other prompts fail too, restore the checkpoint",
                    entry->begin, entry->end - 1);
    quire_engine_fail(engine, r);
    return;
  }
  bool prefill = entry->kind == QUIRE_ENTRY_PREFILL;
  if (entry->end > entry->begin) {
    r->carry_rank = (int8_t)(prefill ? quire_step_entry_producer(engine->plan, entry, entry->end - 1) : entry->home);
  }
  r->computed = entry->end;
  r->paged = prefill ? entry->end : entry->begin;
  *(prefill ? &engine->stats.prefill_tokens : &engine->stats.decode_tokens) += entry->end - entry->begin;
  if (prefill || r->paged >= (r->sealed + 1) * engine->geometry.page_tokens) {
    enum quire_status status =
        quire_cache_request_commit(engine->cache, r->handle, r->paged, r->tokens, &r->cold->error);
    QUIRE_ASSERT(status == QUIRE_OK);
    r->sealed = r->paged / engine->geometry.page_tokens;
  }
  if (prefill && r->cold->rows != NULL) {
    keep_rows(engine, r, entry, ack);
  }
  advance(engine, r, entry, result, ack);
}

/* A rank failed: everything ends. */
static enum quire_status fail_all(struct quire_engine *engine, const struct quire_error *error,
                                  struct quire_error *error_out) {
  engine->failed = true;
  for (int32_t i = 0; i < engine->slots; i++) {
    struct engine_request *r = &engine->requests[i];
    if (r->state != QUIRE_SCHED_FREE && r->state != QUIRE_SCHED_HELD) {
      r->cold->error = *error;
      quire_engine_fail(engine, r);
    }
  }
  if (error_out != NULL) {
    *error_out = *error;
  }
  return error->status;
}

bool quire_engine_alive(struct quire_engine *engine) {
  struct quire_error error = {0};
  if (!engine->failed && !quire_step_alive(engine->executor, &error)) {
    quire_env_log(engine->env, QUIRE_LOG_ERROR, "rank lost: %s", error.text);
    fail_all(engine, &error, NULL);
  }
  return !engine->failed;
}

static enum quire_status run_plan(struct quire_engine *engine, struct quire_error *error_out) {
  struct quire_error error = {0};
  build_plan(engine);
  enum quire_status status = quire_step_post(engine->executor, engine->plan, &error);
  if (status != QUIRE_OK) {
    return fail_all(engine, &error, error_out);
  }
  struct quire_step_ack *ack = quire_step_wait(engine->executor);
  if (ack->status != QUIRE_OK) {
    return fail_all(engine, &ack->error, error_out);
  }
  engine->stats.steps++;
  engine->stats.fault |= ack->fault;
  const struct quire_step_entry *entries = quire_step_plan_entries(engine->plan);
  const struct quire_step_result *results = quire_step_ack_results(ack);
  int32_t count = engine->plan->entry_count, quiet = 0;
  for (int32_t i = 0; i < count; i++) {
    if (i + AHEAD < count) {
      fetch(engine, engine->planned[i + AHEAD].slot);
    }
    if (i + AHEAD_TOKENS < count) {
      fetch_rest(engine, engine->planned[i + AHEAD_TOKENS].slot);
    }
    struct engine_request *r = &engine->requests[engine->planned[i].slot];
    if (settle_quiet(engine, r, i, &results[i])) {
      quiet++;
      continue;
    }
    engine->planned[i].token_first = ENGINE_NONE;
    settle(engine, r, &entries[i], &results[i], ack);
  }
  engine->stats.decode_tokens += quiet;
  engine->stats.drawn_tokens += quiet;
  return QUIRE_OK;
}

/* --- the tick --- */

/* At the border between two chunks another request may just have filled what this one would compute next. Prefills are
 * among those that came last. */
static void rematch(struct quire_engine *engine) {
  int32_t prefills = engine->states[QUIRE_SCHED_PREFILL];
  for (int32_t i = engine->running_count - 1; i >= 0 && prefills > 0; i--) {
    if (engine->shown[i].state != QUIRE_SCHED_PREFILL) {
      continue;
    }
    prefills--;
    struct engine_request *r = &engine->requests[engine->running[i]];
    if (r->computed != r->sealed * engine->geometry.page_tokens) {
      continue;
    }
    int32_t won = quire_cache_request_rematch(engine->cache, r->handle, r->tokens, r->count);
    if (won > 0) {
      r->announced = r->announced < r->sealed ? r->announced : r->sealed;
      r->computed += won;
      r->paged = r->computed;
      r->sealed = r->computed / engine->geometry.page_tokens;
      r->carry_rank = -1;
      quire_engine_show(engine, r);
    }
  }
}

static void decide(struct quire_engine *engine) {
  quire_engine_admit(engine);
  rematch(engine);
  struct quire_sched_snapshot snapshot = {.running = engine->shown, .running_count = engine->running_count};
  quire_sched_run(&engine->limits, &snapshot, &engine->decision);
}

/* Nothing can run and nothing is on its way: whoever is first and cannot get in, or on, never will. */
static void end_stuck(struct quire_engine *engine) {
  struct engine_request *first = NULL;
  for (int32_t i = 0; i < engine->slots; i++) {
    struct engine_request *r = &engine->requests[i];
    if (r->state == QUIRE_SCHED_HELD || (r->state != QUIRE_SCHED_FREE && r->paused)) {
      return; /* waits for somebody outside */
    }
    bool candidate = r->state == QUIRE_SCHED_DECODE || r->state == QUIRE_SCHED_WAITING;
    if (candidate && (first == NULL || quire_sched_before(r->priority, r->order, first->priority, first->order))) {
      first = r;
    }
  }
  if (first != NULL) {
    struct quire_cache_stats stats;
    quire_cache_stats(engine->cache, &stats);
    quire_error_set(&first->cold->error, QUIRE_ERR_AGAIN, "request",
                    "%d tokens need more pages than the %d that can be had; %d of %d are lost", first->count,
                    quire_cache_available(engine->cache), stats.lost, stats.pages);
    quire_engine_fail(engine, first);
  }
}

/* While nothing runs: waits for pages that are on their way and asks again, as long as that brings any. */
static enum quire_status decide_waiting(struct quire_engine *engine, struct quire_error *error_out) {
  for (int32_t i = 0; i < engine->geometry.pages && engine->decision.run_count == 0; i++) {
    int32_t before = quire_cache_available(engine->cache);
    enum quire_status status = quire_engine_pump(engine, true, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    int32_t victims = engine->decision.victim_count;
    if (quire_cache_available(engine->cache) == before && victims == 0) {
      break;
    }
    decide(engine);
  }
  return QUIRE_OK;
}

enum quire_status quire_engine_tick(struct quire_engine *engine, uint64_t now_ns, struct quire_error *error_out) {
  if (engine->failed) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "engine", "a rank failed; the worker has to be started anew");
  }
  if (engine->events_count > engine->events_max / 2) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "engine", "%d events have not been polled",
                           engine->events_count);
  }
  engine->stats.ticks++;
  engine->now_ns = now_ns;
  quire_engine_reap(engine, now_ns);
  if (quire_engine_active(engine) == 0) {
    return quire_engine_pump(engine, false, error_out);
  }
  enum quire_status status = quire_engine_pump(engine, false, error_out);
  if (status == QUIRE_OK) {
    decide(engine);
    if (engine->decision.run_count == 0) {
      status = decide_waiting(engine, error_out);
    }
  }
  if (status == QUIRE_OK && engine->decision.run_count > 0) {
    status = run_plan(engine, error_out);
  } else if (status == QUIRE_OK && quire_cache_coming(engine->cache) == 0) {
    end_stuck(engine);
  }
  return status;
}
