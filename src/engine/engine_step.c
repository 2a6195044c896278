/* A request's way through the engine, one step plan at a time.
 *
 *   computed   rows computed so far; the next step computes from here
 *   paged      rows that lie in their pages behind a fence; prefill: = computed, decode: one step behind, since the
 *              row of a decode step stays at its home until the next plan commits it */
#include <string.h>

#include "base/assert.h"
#include "engine/engine_private.h"

static enum quire_status take_acks(struct quire_engine *engine, struct quire_bank *bank,
                                   struct quire_error *error_out) {
  struct quire_ack ack;
  enum quire_status status = QUIRE_OK;
  while (status == QUIRE_OK && quire_bank_poll(bank, &ack, 1) == 1) {
    status = quire_cache_ack(engine->cache, &ack, error_out);
  }
  return status;
}

enum quire_status quire_engine_pump(struct quire_engine *engine, bool wait, struct quire_error *error_out) {
  struct quire_command command;
  int32_t open;
  do {
    while (quire_cache_commands(engine->cache, &command, 1) == 1) {
      command.epoch = engine->epoch;
      for (int32_t r = 0; r < engine->geometry.ranks; r++) {
        if ((command.ranks & (1u << r)) == 0) {
          continue;
        }
        struct quire_bank *bank = quire_step_bank(engine->executor, r);
        enum quire_status status = quire_bank_submit(bank, &command, error_out);
        while (status == QUIRE_ERR_AGAIN) {
          quire_bank_drain(bank);
          status = take_acks(engine, bank, error_out);
          status = status != QUIRE_OK ? status : quire_bank_submit(bank, &command, error_out);
        }
        if (status != QUIRE_OK) {
          return status;
        }
      }
    }
    open = 0;
    for (int32_t r = 0; r < engine->geometry.ranks; r++) {
      struct quire_bank *bank = quire_step_bank(engine->executor, r);
      if (wait) {
        quire_bank_drain(bank);
      }
      enum quire_status status = take_acks(engine, bank, error_out);
      if (status != QUIRE_OK) {
        return status;
      }
      open += quire_bank_open_commands(bank);
    }
  } while (wait && open > 0);
  return QUIRE_OK;
}

enum quire_status quire_engine_begin(struct quire_engine *engine, const struct quire_cache_fill *fill,
                                     quire_cache_request *handle_out, struct quire_error *error_out) {
  enum quire_status status = quire_cache_request_begin(engine->cache, fill, handle_out, error_out);
  /* Each refusal may have evicted pages; when those are free, the choice of stripes can fall on others. */
  for (int32_t i = 0; status == QUIRE_ERR_AGAIN && i < engine->geometry.pages; i++) {
    status = quire_engine_pump(engine, true, error_out);
    if (status == QUIRE_OK) {
      status = quire_cache_request_begin(engine->cache, fill, handle_out, error_out);
    }
  }
  return status;
}

static enum quire_status check_request(const struct quire_engine *engine, const struct quire_engine_request *request,
                                       struct quire_error *error_out) {
  if (engine->failed) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "engine", "a rank failed; the worker has to be started anew");
  }
  struct quire_cache_stats stats;
  quire_cache_stats(engine->cache, &stats);
  if (!stats.healthy) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "engine",
                           "%d pages were lost to operations that never ended; start the worker anew", stats.lost);
  }
  if (engine->active.phase != PHASE_NONE) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "engine", "a request is running; finish it first");
  }
  if (request->count < 1) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "is empty; give at least one token");
  }
  if (request->new_max < 0 || (int64_t)request->count + request->new_max > engine->config.ctx_tokens) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt",
                           "%d tokens and %d new ones do not fit --ctx-tokens %d; raise it (and --cache-tokens) or "
                           "shorten the prompt",
                           request->count, request->new_max, engine->config.ctx_tokens);
  }
  for (int32_t i = 0; i < request->count; i++) {
    if (request->tokens[i] < 0 || request->tokens[i] >= engine->config.model->vocab) {
      return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "token %d is %d, outside the vocabulary of %d", i,
                             request->tokens[i], engine->config.model->vocab);
    }
  }
  enum quire_status status = quire_sampling_check(&request->sampling, engine->config.model->vocab, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if ((request->flags & QUIRE_ENTRY_DRAFT_FULL) != 0 && !engine->config.weights->has_mtp) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "draft layer", "this model has none (or --mtp off)");
  }
  return QUIRE_OK;
}

enum quire_status quire_engine_start(struct quire_engine *engine, const struct quire_engine_request *request,
                                     int32_t *hit_out, struct quire_error *error_out) {
  enum quire_status status = check_request(engine, request, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct active_request *active = &engine->active;
  struct quire_cache_fill fill = {request->tokens, request->count, request->new_max, request->no_match};
  status = quire_engine_begin(engine, &fill, &active->handle, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  memcpy(active->tokens, request->tokens, (size_t)request->count * sizeof *active->tokens);
  active->args = *request;
  active->count = request->count;
  active->computed = quire_cache_request_tokens(engine->cache, active->handle);
  active->paged = active->computed;
  active->carry_rank = -1;
  active->announced = 0;
  active->listed = -1;
  active->drawn = 0;
  active->phase = PHASE_PREFILL;
  if (hit_out != NULL) {
    *hit_out = active->computed;
  }
  return QUIRE_OK;
}

/* Fields that every entry of the request has: pages the ranks do not know yet, where the last hidden state is. */
static struct quire_step_entry base_entry(const struct quire_engine *engine, const quire_page **appended_out) {
  const struct active_request *active = &engine->active;
  int32_t pages = 0;
  const quire_page *table = quire_cache_request_pages(engine->cache, active->handle, &pages);
  struct quire_step_entry entry = {
      .request = active->handle.slot,
      .flags = active->args.flags,
      .begin = active->computed,
      .prefix_end = active->paged,
      .home = -1,
      .carry_rank = -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .next_token = QUIRE_TOKEN_ABSENT,
      .append_begin = active->announced,
      .append_count = pages - active->announced,
  };
  *appended_out = table + active->announced;
  return entry;
}

static void set_carry(const struct quire_engine *engine, struct quire_step_entry *entry, int32_t recompute_rank) {
  if (engine->parts.draft_layers > 0 && entry->begin > 0 && entry->end > entry->begin) {
    entry->carry_rank = engine->active.carry_rank;
    entry->recompute_rank = engine->active.carry_rank >= 0 ? -1 : recompute_rank;
  }
}

static struct quire_step_entry prefill_entry(const struct quire_engine *engine, const quire_page **appended_out) {
  const struct active_request *active = &engine->active;
  struct quire_step_entry entry = base_entry(engine, appended_out);
  int32_t left = active->args.count - active->computed;
  entry.kind = QUIRE_ENTRY_PREFILL;
  entry.end = entry.begin + (left < engine->step.fresh_max ? left : engine->step.fresh_max);
  if (entry.end < active->args.count) {
    entry.next_token = active->tokens[entry.end];
  } else if (active->args.new_max > 0) {
    entry.flags |= QUIRE_ENTRY_SAMPLE;
  }
  /* The last rank has the fewest rows where shares are uneven. */
  set_carry(engine, &entry, engine->geometry.ranks - 1);
  return entry;
}

static struct quire_step_entry decode_entry(const struct quire_engine *engine, const quire_page **appended_out) {
  const struct active_request *active = &engine->active;
  struct quire_step_entry entry = base_entry(engine, appended_out);
  entry.kind = QUIRE_ENTRY_DECODE;
  entry.home = active->carry_rank;
  entry.end = active->phase == PHASE_FLUSH ? entry.begin : entry.begin + 1;
  entry.flags |= active->phase == PHASE_FLUSH ? 0 : QUIRE_ENTRY_SAMPLE;
  if (active->computed > active->paged) {
    entry.commit_rank = entry.home;
    entry.commit_begin = active->paged;
    entry.commit_end = active->computed;
  }
  set_carry(engine, &entry, -1);
  return entry;
}

/* Posts one plan with one entry and waits for it. */
static enum quire_status run_plan(struct quire_engine *engine, const struct quire_step_entry *entry,
                                  const quire_page *appended, struct quire_step_ack **ack_out,
                                  struct quire_error *error_out) {
  struct active_request *active = &engine->active;
  struct quire_step_draw draw = {
      .sampling = &active->args.sampling,
      .tokens = active->tokens,
      .prompt_end = active->args.count,
      .listed = active->listed,
  };
  quire_step_plan_reset(engine->plan, ++engine->epoch, engine->geometry.ranks, engine->config.split);
  bool fits = entry->end > entry->begin
                  ? quire_step_plan_add_drawn(engine->plan, &engine->step.limits, entry, appended, &draw)
                  : quire_step_plan_add(engine->plan, &engine->step.limits, entry, NULL, appended);
  QUIRE_ASSERT(fits);
  active->listed = draw.listed;
  enum quire_status status = quire_step_post(engine->executor, engine->plan, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  *ack_out = quire_step_wait(engine->executor);
  if ((*ack_out)->status != QUIRE_OK) {
    engine->failed = true;
    if (error_out != NULL) {
      *error_out = (*ack_out)->error;
    }
    return (*ack_out)->status;
  }
  active->announced += entry->append_count;
  if (quire_step_ack_results(*ack_out)->nonfinite != 0) {
    return quire_error_set(
        error_out, QUIRE_ERR_NONFINITE, "request",
        "a key, latent or logit of positions %d to %d is not finite; the request is dropped and nothing "
        "of it is cached from there on",
        entry->begin, entry->end - 1);
  }
  return QUIRE_OK;
}

static void keep_rows(const struct quire_engine *engine, struct quire_step_ack *ack) {
  const struct quire_step_entry *entry = quire_step_plan_entries(engine->plan);
  struct quire_step_row *rows = quire_step_ack_rows(ack, &engine->step.limits);
  int32_t first = entry->begin > 0 ? entry->begin - 1 : 0;
  for (int32_t position = entry->begin; position < entry->end; position++) {
    if (position < engine->active.args.count) {
      engine->active.args.rows[position] = rows[position - first];
    }
  }
}

/* The step's rows are where the plan said: tell the cache what lies in pages. */
static enum quire_status settle(struct quire_engine *engine, const struct quire_step_entry *entry,
                                struct quire_error *error_out) {
  struct active_request *active = &engine->active;
  if (entry->end > entry->begin) {
    active->carry_rank = quire_step_entry_producer(engine->plan, entry, entry->end - 1);
  }
  active->computed = entry->end;
  active->paged = entry->kind == QUIRE_ENTRY_PREFILL ? entry->end : entry->begin;
  return quire_cache_request_commit(engine->cache, active->handle, active->paged, active->tokens, error_out);
}

static bool is_stop(const struct active_request *active, int32_t token) {
  for (int32_t i = 0; i < active->args.stop_count; i++) {
    if (active->args.stops[i] == token) {
      return true;
    }
  }
  return false;
}

/* Takes the drawn token, if there is one, and decides what comes next. */
static void advance(struct quire_engine *engine, const struct quire_step_result *result,
                    struct quire_engine_event *event_out) {
  struct active_request *active = &engine->active;
  int32_t prefilled = active->computed < active->args.count ? active->computed : active->args.count;
  *event_out =
      (struct quire_engine_event){.kind = QUIRE_EVENT_PREFILL, .prefilled = prefilled, .token = QUIRE_TOKEN_ABSENT};
  if (active->phase == PHASE_PREFILL && active->computed < active->args.count) {
    return;
  }
  if (active->phase == PHASE_FLUSH || active->args.new_max == 0) {
    active->phase = PHASE_DONE;
    active->finish = active->args.new_max == 0 ? QUIRE_FINISH_LENGTH : active->finish;
    event_out->kind = QUIRE_EVENT_DONE;
    event_out->finish = active->finish;
    return;
  }
  QUIRE_ASSERT(result->token != QUIRE_TOKEN_ABSENT);
  active->tokens[active->count++] = result->token;
  active->drawn++;
  event_out->kind = QUIRE_EVENT_TOKEN;
  event_out->token = result->token;
  event_out->logprob = result->logprob;
  bool stop = is_stop(active, result->token);
  active->phase = PHASE_DECODE;
  if (stop || active->drawn == active->args.new_max) {
    active->finish = stop ? QUIRE_FINISH_STOP : QUIRE_FINISH_LENGTH;
    active->phase = PHASE_FLUSH;
  }
}

enum quire_status quire_engine_step(struct quire_engine *engine, struct quire_engine_event *event_out,
                                    struct quire_error *error_out) {
  struct active_request *active = &engine->active;
  if (active->phase == PHASE_NONE || active->phase == PHASE_DONE) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "engine", "no request is running");
  }
  enum quire_status status = quire_engine_pump(engine, false, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const quire_page *appended = NULL;
  struct quire_step_entry entry =
      active->phase == PHASE_PREFILL ? prefill_entry(engine, &appended) : decode_entry(engine, &appended);
  struct quire_step_ack *ack = NULL;
  status = run_plan(engine, &entry, appended, &ack, error_out);
  if (status != QUIRE_OK) {
    active->phase = PHASE_DONE;
    return status;
  }
  if (active->args.rows != NULL && entry.end > entry.begin) {
    keep_rows(engine, ack);
  }
  status = settle(engine, &entry, error_out);
  if (status == QUIRE_OK) {
    advance(engine, quire_step_ack_results(ack), event_out);
  }
  return status;
}

void quire_engine_stop(struct quire_engine *engine) {
  struct active_request *active = &engine->active;
  if (active->phase == PHASE_DECODE) {
    active->phase = PHASE_FLUSH;
    active->finish = QUIRE_FINISH_STOP;
  }
}

void quire_engine_finish(struct quire_engine *engine) {
  struct active_request *active = &engine->active;
  if (active->phase == PHASE_NONE) {
    return;
  }
  quire_cache_request_release(engine->cache, active->handle);
  active->phase = PHASE_NONE;
}
