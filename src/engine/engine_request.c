/* A request's record from submit to its end. Records are slots of one array; an id is the slot with a serial number, so
 * that the id of a request that has ended names nobody. */
#include <string.h>

#include "base/assert.h"
#include "engine/engine_private.h"
#include "layout/carve.h"

/* --- arrays --- */

size_t quire_engine_carve(struct quire_engine *engine) {
  struct quire_carve carve = {engine->block, 0};
  int64_t tokens_each = ((int64_t)engine->config.ctx_tokens + 1 + 15) & ~(int64_t)15;
  engine->events_max = 2 * (engine->running_max + engine->slots);
  engine->requests = quire_carve(&carve, engine->slots, sizeof *engine->requests);
  engine->colds = quire_carve(&carve, engine->slots, sizeof *engine->colds);
  engine->biases = quire_carve(&carve, engine->slots * (int64_t)QUIRE_BIAS_MAX, sizeof *engine->biases);
  engine->marked = quire_carve(&carve, engine->slots, sizeof *engine->marked);
  engine->running = quire_carve(&carve, engine->running_max, sizeof *engine->running);
  engine->shown = quire_carve(&carve, engine->running_max, sizeof *engine->shown);
  engine->waiting = quire_carve(&carve, 2 * QUIRE_SCHED_CANDIDATES, sizeof *engine->waiting);
  engine->candidates = quire_carve(&carve, 2 * QUIRE_SCHED_CANDIDATES, sizeof *engine->candidates);
  engine->decision.victims = quire_carve(&carve, engine->running_max, sizeof(int32_t));
  engine->decision.admits = quire_carve(&carve, 2 * QUIRE_SCHED_CANDIDATES, sizeof(int32_t));
  engine->decision.runs = quire_carve(&carve, engine->running_max, sizeof(struct quire_sched_run));
  engine->planned = quire_carve(&carve, engine->running_max, sizeof *engine->planned);
  engine->homes = quire_carve(&carve, engine->geometry.ranks, sizeof *engine->homes);
  engine->events = quire_carve(&carve, engine->events_max, sizeof *engine->events);
  int32_t *tokens = quire_carve(&carve, engine->slots * tokens_each, sizeof *tokens);
  for (int32_t i = 0; tokens != NULL && i < engine->slots; i++) {
    engine->requests[i].tokens = tokens + i * tokens_each;
    engine->requests[i].cold = &engine->colds[i];
  }
  return carve.used;
}

void quire_engine_reset_slots(struct quire_engine *engine) {
  engine->free_slot = ENGINE_NONE;
  engine->ended_first = ENGINE_NONE;
  for (int32_t i = engine->slots - 1; i >= 0; i--) {
    engine->requests[i].next = engine->free_slot;
    engine->requests[i].run = ENGINE_NONE;
    engine->requests[i].home = -1;
    engine->free_slot = i;
  }
  engine->short_queue = (struct engine_queue){ENGINE_NONE, ENGINE_NONE, 0};
  engine->long_queue = engine->short_queue;
  engine->deadline_next = UINT64_MAX;
  for (int32_t i = 0; i < engine->running_max; i++) {
    engine->planned[i] = (struct engine_planned){ENGINE_NONE, ENGINE_NONE};
  }
  engine->states[QUIRE_SCHED_FREE] = engine->slots;
}

static int32_t slot_of(const struct quire_engine *engine, const struct engine_request *r) {
  return (int32_t)(r - engine->requests);
}

struct engine_request *quire_engine_find(const struct quire_engine *engine, uint64_t id) {
  int32_t slot = (int32_t)(id & (ENGINE_SLOTS_MAX - 1));
  if (id == 0 || slot >= engine->slots) {
    return NULL;
  }
  struct engine_request *r = &engine->requests[slot];
  return r->id == id && r->state != QUIRE_SCHED_FREE ? r : NULL;
}

void quire_engine_set_state(struct quire_engine *engine, struct engine_request *r, enum quire_sched_state state) {
  enum quire_sched_state from = (enum quire_sched_state)r->state;
  QUIRE_ASSERT(quire_sched_can(from, state));
  engine->ways_taken[from] |= 1u << state;
  engine->states[from]--;
  engine->states[state]++;
  r->state = (uint8_t)state;
  r->quiet_end = 0;
}

/* --- queues --- */

static struct engine_queue *queue_of(struct quire_engine *engine, const struct engine_request *r) {
  return r->count > quire_sched_short_max(&engine->limits) ? &engine->long_queue : &engine->short_queue;
}

/* From the end: almost always the newcomer is the last. */
void quire_engine_enqueue(struct quire_engine *engine, struct engine_request *r) {
  struct engine_queue *queue = queue_of(engine, r);
  int32_t slot = slot_of(engine, r), after = queue->last;
  while (after != ENGINE_NONE) {
    const struct engine_request *other = &engine->requests[after];
    if (quire_sched_before(other->priority, other->order, r->priority, r->order)) {
      break;
    }
    after = other->previous;
  }
  r->previous = after;
  r->next = after == ENGINE_NONE ? queue->first : engine->requests[after].next;
  *(r->previous == ENGINE_NONE ? &queue->first : &engine->requests[r->previous].next) = slot;
  *(r->next == ENGINE_NONE ? &queue->last : &engine->requests[r->next].previous) = slot;
  queue->count++;
  engine->stats.waiting_tokens += r->count;
}

void quire_engine_dequeue(struct quire_engine *engine, struct engine_request *r) {
  struct engine_queue *queue = queue_of(engine, r);
  *(r->previous == ENGINE_NONE ? &queue->first : &engine->requests[r->previous].next) = r->next;
  *(r->next == ENGINE_NONE ? &queue->last : &engine->requests[r->next].previous) = r->previous;
  queue->count--;
  engine->stats.waiting_tokens -= r->count;
}

/* --- the running --- */

void quire_engine_run_add(struct quire_engine *engine, struct engine_request *r) {
  QUIRE_ASSERT(engine->running_count < engine->running_max && r->run == ENGINE_NONE);
  r->run = engine->running_count++;
  engine->running[r->run] = slot_of(engine, r);
  r->entry = 0; /* of nobody's plan: an entry found there that is its own is not ready */
  engine->shown[r->run] = (struct quire_sched_running){.order = r->order, .priority = r->priority};
  quire_engine_show(engine, r);
}

/* The last takes the place of the one that leaves. */
void quire_engine_run_remove(struct quire_engine *engine, struct engine_request *r) {
  int32_t last = --engine->running_count;
  QUIRE_ASSERT(r->run >= 0 && r->run <= last);
  engine->running[r->run] = engine->running[last];
  engine->shown[r->run] = engine->shown[last];
  engine->requests[engine->running[r->run]].run = r->run;
  r->run = ENGINE_NONE;
  struct engine_planned *planned = &engine->planned[r->entry];
  if (planned->slot == slot_of(engine, r)) {
    planned->token_first = ENGINE_NONE;
  }
}

/* --- events and ends --- */

struct quire_engine_event *quire_engine_emit(struct quire_engine *engine, const struct engine_request *r,
                                             enum quire_event_kind kind) {
  struct quire_engine_event *event = quire_engine_next_event(engine);
  *event = (struct quire_engine_event){
      .id = r->id,
      .tag = r->tag,
      /* of tokens in the middle it would cost a cache line */
      .admitted_ns = kind != QUIRE_EVENT_TOKEN || r->count == r->prompt ? r->cold->admitted_ns : 0,
      .position = r->count,
      .token = QUIRE_TOKEN_ABSENT,
      .prefilled = r->computed < r->prompt ? r->computed : r->prompt,
      .cached = r->cached,
      .kind = (uint8_t)kind,
      .finish = r->finish,
      .status = (uint8_t)(kind == QUIRE_EVENT_FAILED ? r->cold->error.status : QUIRE_OK),
  };
  return event;
}

int32_t quire_engine_poll(struct quire_engine *engine, struct quire_engine_event *events_out, int32_t max) {
  int32_t taken = 0;
  while (taken < max && engine->events_count > 0) { /* twice where the ring ends in between */
    int32_t most = max - taken < engine->events_count ? max - taken : engine->events_count;
    int32_t behind = engine->events_max - engine->events_first;
    int32_t count = most < behind ? most : behind;
    memcpy(events_out + taken, engine->events + engine->events_first, (size_t)count * sizeof *events_out);
    engine->events_first = count == behind ? 0 : engine->events_first + count;
    engine->events_count -= count;
    taken += count;
  }
  if (engine->events_count == 0) { /* the same lines of memory again, not the next ones of the ring */
    engine->events_first = 0;
  }
  return taken;
}

int32_t quire_engine_pending(const struct quire_engine *engine) { return engine->events_count; }

void quire_engine_retire(struct quire_engine *engine, struct engine_request *r) {
  if (r->state == QUIRE_SCHED_WAITING) {
    quire_engine_dequeue(engine, r);
  } else {
    quire_cache_request_release(engine->cache, r->handle);
    quire_engine_run_remove(engine, r);
  }
  if (r->home >= 0) {
    engine->homes[r->home]--;
    r->home = -1;
  }
  quire_engine_set_state(engine, r, QUIRE_SCHED_FREE);
  r->next = engine->ended_first;
  engine->ended_first = slot_of(engine, r);
}

void quire_engine_fail(struct quire_engine *engine, struct engine_request *r) {
  if (!r->ended) {
    bool cancelled = r->cold->error.status == QUIRE_ERR_CANCELLED;
    engine->stats.cancelled += cancelled;
    engine->stats.failed += !cancelled;
    r->ended = true;
    quire_engine_emit(engine, r, QUIRE_EVENT_FAILED);
  }
  quire_engine_retire(engine, r);
}

const struct quire_error *quire_engine_error(const struct quire_engine *engine, uint64_t id) {
  int32_t slot = (int32_t)(id & (ENGINE_SLOTS_MAX - 1));
  if (id == 0 || slot >= engine->slots || engine->requests[slot].id != id) {
    return NULL;
  }
  const struct engine_request *r = &engine->requests[slot];
  return r->cold->error.status != QUIRE_OK ? &r->cold->error : NULL;
}

/* --- what is asked --- */

enum quire_status quire_engine_check_request(const struct quire_engine *engine,
                                             const struct quire_engine_request *request,
                                             struct quire_error *error_out) {
  if (request->count < 1 || request->tokens == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "is empty; give at least one token");
  }
  int32_t longest = engine->config.ctx_tokens;
  if (request->new_max < 0 || (int64_t)request->count + request->new_max > longest) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt",
                           "%d tokens and %d new ones do not fit --ctx-tokens %d; raise it (and --cache-tokens) or "
                           "shorten the prompt",
                           request->count, request->new_max, longest);
  }
  if (request->stop_count < 0 || request->stop_count > QUIRE_ENGINE_STOPS_MAX || request->new_min < 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "stop",
                           "%d stop tokens (at most %d), at least %d to be drawn", request->stop_count,
                           QUIRE_ENGINE_STOPS_MAX, request->new_min);
  }
  for (int32_t i = 0; i < request->count; i++) {
    if (request->tokens[i] < 0 || request->tokens[i] >= engine->config.model->vocab) {
      return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "token %d is %d, outside the vocabulary of %d", i,
                             request->tokens[i], engine->config.model->vocab);
    }
  }
  if ((request->flags & QUIRE_ENTRY_DRAFT_FULL) != 0 && engine->parts.draft_layers == 0) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "draft layer", "this model has none (or --mtp off)");
  }
  return quire_sampling_check(&request->sampling, engine->config.model->vocab, error_out);
}

static void fill_slot(struct quire_engine *engine, struct engine_request *r,
                      const struct quire_engine_request *request) {
  int32_t *tokens = r->tokens;
  int32_t slot = slot_of(engine, r), start = request->sampling.prompt_logprobs_start;
  struct quire_bias *bias = engine->biases + (int64_t)slot * QUIRE_BIAS_MAX;
  struct engine_cold *cold = r->cold;
  memcpy(tokens, request->tokens, (size_t)request->count * sizeof *tokens);
  *r = (struct engine_request){
      .tokens = tokens,
      .count = request->count,
      .prompt = request->count,
      .end_max = request->count + request->new_max,
      .new_min = request->new_min,
      .hold = request->hold,
      .no_match = request->no_match || (request->sampling.prompt_logprobs && start <= 1),
      .home = -1,
      .carry_rank = -1,
      .stop_count = (uint8_t)request->stop_count,
      .run = ENGINE_NONE,
      .flags = (uint8_t)(request->flags | (request->sampling.prompt_logprobs ? QUIRE_ENTRY_SCORE : 0)),
      .listed = -1,
      .id = ++engine->serial << ENGINE_SLOT_BITS | (uint64_t)slot,
      .tag = request->tag,
      .cold = cold,
      .plain = quire_step_draws_plainly(&request->sampling),
      .priority = request->priority,
      .order = ++engine->order,
  };
  *cold = (struct engine_cold){
      .sampling = request->sampling,
      .rows = request->rows,
      .row_tops = request->row_tops,
      .match_max = request->sampling.prompt_logprobs && start > 1 ? start - 1 : 0,
      .deadline_ns = request->deadline_ns,
      .refused_available = ENGINE_NONE,
  };
  r->cold->sampling.bias = bias;
  if (request->sampling.bias_count > 0) {
    memcpy(bias, request->sampling.bias, (size_t)request->sampling.bias_count * sizeof *bias);
  }
  if (request->stop_count > 0) {
    memcpy(r->cold->stops, request->stops, (size_t)request->stop_count * sizeof *r->cold->stops);
  }
  if (r->cold->deadline_ns != 0 && r->cold->deadline_ns < engine->deadline_next) {
    engine->deadline_next = r->cold->deadline_ns;
  }
}

enum quire_status quire_engine_submit(struct quire_engine *engine, const struct quire_engine_request *request,
                                      uint64_t *id_out, struct quire_error *error_out) {
  if (engine->failed) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "engine", "a rank failed; the worker has to be started anew");
  }
  if (!quire_cache_healthy(engine->cache)) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "engine",
                           "more pages were lost to operations that never ended than a worker can do without; start it "
                           "anew");
  }
  struct quire_hash128 root = {0};
  enum quire_status status = quire_engine_check_request(engine, request, error_out);
  if (status == QUIRE_OK) {
    status = quire_cache_salted(engine->cache, request->salt, request->salt_bytes, &root, error_out);
  }
  if (status != QUIRE_OK) {
    engine->stats.refused++;
    return status;
  }
  if (engine->free_slot == ENGINE_NONE || engine->states[QUIRE_SCHED_WAITING] >= engine->config.queue_max) {
    engine->stats.refused++;
    return quire_error_set(error_out, QUIRE_ERR_AGAIN, "engine", "%d requests wait already; try again later",
                           engine->states[QUIRE_SCHED_WAITING]);
  }
  struct engine_request *r = &engine->requests[engine->free_slot];
  engine->free_slot = r->next;
  fill_slot(engine, r, request);
  r->cold->root = root;
  engine->stats.submitted++;
  quire_engine_set_state(engine, r, QUIRE_SCHED_WAITING);
  quire_engine_enqueue(engine, r);
  *id_out = r->id;
  return QUIRE_OK;
}

static void mark(struct quire_engine *engine, const struct engine_request *r) {
  QUIRE_ASSERT(engine->marked_count < engine->slots);
  engine->marked[engine->marked_count++] = slot_of(engine, r);
}

bool quire_engine_cancel(struct quire_engine *engine, uint64_t id) {
  struct engine_request *r = quire_engine_find(engine, id);
  if (r == NULL || (r->ended && r->state != QUIRE_SCHED_HELD)) {
    return false;
  }
  if (r->state == QUIRE_SCHED_HELD) {
    quire_engine_retire(engine, r);
    return true;
  }
  if (!r->cancelled && !r->stopping) {
    mark(engine, r);
  }
  r->cancelled = true;
  return true;
}

bool quire_engine_stop_request(struct quire_engine *engine, uint64_t id) {
  struct engine_request *r = quire_engine_find(engine, id);
  if (r == NULL || r->ended || r->count == r->prompt || r->state == QUIRE_SCHED_DRAIN) {
    return false;
  }
  if (!r->cancelled && !r->stopping) {
    mark(engine, r);
  }
  r->stopping = true;
  return true;
}

bool quire_engine_pause(struct quire_engine *engine, uint64_t id, bool paused) {
  struct engine_request *r = quire_engine_find(engine, id);
  if (r == NULL || r->ended) {
    return false;
  }
  r->paused = paused;
  if (r->run >= 0) {
    quire_engine_show(engine, r);
  }
  return true;
}

static void end_marked(struct quire_engine *engine) {
  for (int32_t i = 0; i < engine->marked_count; i++) {
    struct engine_request *r = &engine->requests[engine->marked[i]];
    if (r->state == QUIRE_SCHED_FREE || !(r->cancelled || r->stopping)) {
      continue; /* it ended by itself */
    }
    if (r->cancelled) {
      quire_error_set(&r->cold->error, QUIRE_ERR_CANCELLED, "request", "cancelled");
      quire_engine_fail(engine, r);
    } else if (!r->ended) {
      quire_engine_complete(engine, r, QUIRE_FINISH_STOP);
    }
    r->cancelled = false;
    r->stopping = false;
  }
  engine->marked_count = 0;
}

static void end_late(struct quire_engine *engine, uint64_t now_ns) {
  engine->deadline_next = UINT64_MAX;
  for (int32_t i = 0; i < engine->slots; i++) {
    struct engine_request *r = &engine->requests[i];
    if (r->state == QUIRE_SCHED_FREE || r->ended || r->cold->deadline_ns == 0) {
      continue;
    }
    if (r->cold->deadline_ns <= now_ns) {
      quire_error_set(&r->cold->error, QUIRE_ERR_REQUEST, "request",
                      "not done before its deadline: %d of %d tokens drawn", r->count - r->prompt,
                      r->end_max - r->prompt);
      quire_engine_fail(engine, r);
    } else if (r->cold->deadline_ns < engine->deadline_next) {
      engine->deadline_next = r->cold->deadline_ns;
    }
  }
}

void quire_engine_reap(struct quire_engine *engine, uint64_t now_ns) {
  while (engine->ended_first != ENGINE_NONE) {
    struct engine_request *r = &engine->requests[engine->ended_first];
    engine->ended_first = r->next;
    r->next = engine->free_slot;
    engine->free_slot = slot_of(engine, r);
  }
  end_marked(engine);
  if (now_ns >= engine->deadline_next) {
    end_late(engine, now_ns);
  }
}

int32_t quire_engine_active(const struct quire_engine *engine) {
  return engine->slots - engine->states[QUIRE_SCHED_FREE] - engine->states[QUIRE_SCHED_HELD];
}

int32_t quire_engine_flush(struct quire_engine *engine) { return quire_cache_flush(engine->cache); }

void quire_engine_stats(const struct quire_engine *engine, struct quire_engine_stats *stats_out) {
  *stats_out = engine->stats;
  stats_out->waiting = engine->states[QUIRE_SCHED_WAITING];
  stats_out->prefilling = engine->states[QUIRE_SCHED_PREFILL];
  stats_out->decoding = engine->states[QUIRE_SCHED_DECODE];
  stats_out->draining = engine->states[QUIRE_SCHED_DRAIN];
  stats_out->held = engine->states[QUIRE_SCHED_HELD];
  stats_out->failed_rank = engine->failed;
}
