/* Who gives way and who enters. The scheduler decides from the numbers of the snapshot; whether there are pages only
 * the cache can say, so a request the cache refuses waits on, and is not asked for again until something has
 * changed. */
#include <string.h>

#include "base/assert.h"
#include "engine/engine_private.h"

/* Ticks after which a refused request asks again although nothing seems to have changed, and after which its share of
 * cached pages is looked up again. */
#define RETRY_TICKS 16

/* --- commands of the cache --- */

static enum quire_status take_acks(struct quire_engine *engine, int32_t rank, struct quire_error *error_out) {
  struct quire_ack ack;
  enum quire_status status = QUIRE_OK;
  while (status == QUIRE_OK && quire_step_poll(engine->executor, rank, &ack, 1) == 1) {
    status = quire_cache_ack(engine->cache, &ack, error_out);
  }
  return status;
}

static enum quire_status submit(struct quire_engine *engine, int32_t rank, const struct quire_command *command,
                                struct quire_error *error_out) {
  enum quire_status status = quire_step_submit(engine->executor, rank, command, error_out);
  while (status == QUIRE_ERR_AGAIN) {
    quire_step_drain(engine->executor, rank);
    status = take_acks(engine, rank, error_out);
    status = status != QUIRE_OK ? status : quire_step_submit(engine->executor, rank, command, error_out);
  }
  return status;
}

enum quire_status quire_engine_pump(struct quire_engine *engine, bool wait, struct quire_error *error_out) {
  struct quire_command command;
  int32_t open;
  do {
    enum quire_status status = QUIRE_OK;
    while (status == QUIRE_OK && quire_cache_commands(engine->cache, &command, 1) == 1) {
      command.epoch = engine->epoch;
      for (int32_t r = 0; status == QUIRE_OK && r < engine->geometry.ranks; r++) {
        status = (command.ranks & (1u << r)) != 0 ? submit(engine, r, &command, error_out) : QUIRE_OK;
      }
    }
    open = 0;
    for (int32_t r = 0; status == QUIRE_OK && r < engine->geometry.ranks; r++) {
      if (wait) {
        quire_step_drain(engine->executor, r);
      }
      status = take_acks(engine, r, error_out);
      open += quire_step_open_commands(engine->executor, r);
    }
    if (status != QUIRE_OK) {
      return status;
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

/* --- who waits for whom --- */

/* Whole pages in front that two prompts have in common, as far as the first may take them from the second. */
static int32_t common_pages(const struct quire_engine *engine, const struct engine_request *r,
                            const struct engine_request *other) {
  int32_t page = engine->geometry.page_tokens;
  int32_t most = (r->count - 1) / page < other->count / page ? (r->count - 1) / page : other->count / page;
  int32_t pages = 0;
  while (pages < most && memcmp(r->tokens + (int64_t)pages * page, other->tokens + (int64_t)pages * page,
                                (size_t)page * sizeof(int32_t)) == 0) {
    pages++;
  }
  return pages;
}

static bool leads(const struct engine_request *leader, int32_t pages) {
  return leader != NULL && leader->state == QUIRE_SCHED_PREFILL && !leader->paused && leader->sealed < pages;
}

/* Does a running prefill compute pages this request could take? Remembers which. Prefills are among those that came
 * last. */
static bool has_leader(struct quire_engine *engine, struct engine_request *r) {
  if (r->no_match || r->cold->match_max > 0 || r->count <= engine->geometry.page_tokens) {
    return false;
  }
  if (leads(quire_engine_find(engine, r->cold->leader), r->cold->leader_pages)) {
    return true;
  }
  r->cold->leader = 0;
  int32_t prefills = engine->states[QUIRE_SCHED_PREFILL];
  for (int32_t i = engine->running_count - 1; i >= 0 && prefills > 0; i--) {
    const struct engine_request *other = &engine->requests[engine->running[i]];
    if (engine->shown[i].state != QUIRE_SCHED_PREFILL) {
      continue;
    }
    prefills--;
    if (!quire_hash128_equal(other->cold->root, r->cold->root)) {
      continue;
    }
    int32_t pages = common_pages(engine, r, other);
    if (leads(other, pages)) {
      r->cold->leader = other->id;
      r->cold->leader_pages = pages;
      return true;
    }
  }
  return false;
}

static int32_t follow_ticks(struct quire_engine *engine, struct engine_request *r) {
  if (!has_leader(engine, r)) {
    return -1;
  }
  if (r->cold->follow_tick == 0) {
    r->cold->follow_tick = (uint64_t)engine->stats.ticks;
  }
  uint64_t ticks = (uint64_t)engine->stats.ticks - r->cold->follow_tick;
  return ticks < INT32_MAX ? (int32_t)ticks : INT32_MAX;
}

/* --- the snapshot --- */

static int32_t reserve_of(const struct quire_engine *engine, const struct engine_request *r) {
  int32_t left = r->end_max - r->count;
  return r->hold || left < engine->config.headroom_tokens ? left : engine->config.headroom_tokens;
}

static int32_t pages_needed(struct quire_engine *engine, struct engine_request *r, int32_t available) {
  int32_t pages = quire_geometry_pages_of(&engine->geometry, r->count + reserve_of(engine, r));
  if (pages <= available || r->no_match) {
    return pages;
  }
  uint64_t now = (uint64_t)engine->stats.ticks;
  if (r->cold->shared_tick == 0 || now - r->cold->shared_tick >= RETRY_TICKS) {
    r->cold->shared_tick = now;
    r->cold->shared = quire_cache_match_below(engine->cache, r->cold->root, r->tokens, r->count);
  }
  return pages - r->cold->shared;
}

static bool is_refused(const struct quire_engine *engine, const struct engine_request *r, int32_t available) {
  return r->cold->refused_available >= 0 && available <= r->cold->refused_available &&
         (uint64_t)engine->stats.ticks - r->cold->refused_tick < RETRY_TICKS;
}

/* The first in order of both queues, merged. Returns their number. */
static int32_t collect(struct quire_engine *engine, int32_t available) {
  int32_t at[2] = {engine->short_queue.first, engine->long_queue.first};
  int32_t taken[2] = {0, 0}, count = 0;
  for (;;) {
    for (int q = 0; q < 2; q++) {
      at[q] = taken[q] == QUIRE_SCHED_CANDIDATES ? ENGINE_NONE : at[q];
    }
    if (at[0] == ENGINE_NONE && at[1] == ENGINE_NONE) {
      return count;
    }
    const struct engine_request *both[2] = {&engine->requests[at[0] == ENGINE_NONE ? at[1] : at[0]],
                                            &engine->requests[at[1] == ENGINE_NONE ? at[0] : at[1]]};
    int q = at[0] == ENGINE_NONE                                                                       ? 1
            : at[1] == ENGINE_NONE                                                                     ? 0
            : quire_sched_before(both[1]->priority, both[1]->order, both[0]->priority, both[0]->order) ? 1
                                                                                                       : 0;
    struct engine_request *r = &engine->requests[at[q]];
    engine->candidates[count] = at[q];
    at[q] = r->next;
    taken[q]++;
    if (r->paused) {
      continue;
    }
    int32_t pages = pages_needed(engine, r, available);
    engine->waiting[count++] = (struct quire_sched_waiting){
        .order = r->order,
        .priority = r->priority,
        .left = r->count - r->cold->shared * engine->geometry.page_tokens,
        .pages = pages,
        .follow_ticks = follow_ticks(engine, r),
        .bypassed = r->cold->bypassed,
        .refused = is_refused(engine, r, available),
    };
  }
}

/* --- carrying out --- */

/* Sealed pages stay cached; tail, carry and what was not yet brought home are gone and are computed again. */
static void preempt(struct quire_engine *engine, struct engine_request *r) {
  quire_cache_request_release(engine->cache, r->handle);
  quire_engine_run_remove(engine, r);
  if (r->home >= 0) {
    engine->homes[r->home]--;
  }
  r->home = -1;
  r->carry_rank = -1;
  r->listed = -1;
  r->told = false;
  r->computed = 0;
  r->paged = 0;
  r->sealed = 0;
  r->pages = 0;
  r->announced = 0;
  r->cold->refused_available = ENGINE_NONE;
  r->cold->shared_tick = 0;
  r->cold->shared = 0;
  engine->stats.preempted++;
  quire_engine_set_state(engine, r, QUIRE_SCHED_WAITING);
  quire_engine_enqueue(engine, r);
}

/* The indices of victims name the running as they were, so all are looked up before the first is moved. */
static void preempt_victims(struct quire_engine *engine) {
  struct quire_sched_decision *decision = &engine->decision;
  for (int32_t i = 0; i < decision->victim_count; i++) {
    decision->victims[i] = engine->running[decision->victims[i]];
  }
  for (int32_t i = 0; i < decision->victim_count; i++) {
    preempt(engine, &engine->requests[decision->victims[i]]);
  }
}

static void enter(struct quire_engine *engine, struct engine_request *r, quire_cache_request handle) {
  quire_engine_dequeue(engine, r);
  r->handle = handle;
  r->computed = quire_cache_request_tokens(engine->cache, handle);
  r->paged = r->computed;
  r->sealed = r->computed / engine->geometry.page_tokens;
  quire_cache_request_pages(engine->cache, handle, &r->pages);
  r->cold->bypassed = 0;
  r->cold->follow_tick = 0;
  r->cold->leader = 0;
  if (!r->cold->admitted) {
    r->cold->admitted = true;
    r->cold->admitted_ns = engine->now_ns;
    r->cached = r->computed;
    engine->stats.prompt_tokens += r->prompt;
    engine->stats.cached_tokens += r->cached;
  }
  quire_engine_set_state(engine, r, QUIRE_SCHED_PREFILL);
  quire_engine_run_add(engine, r);
}

/* False: no pages for it, and so none for those behind it. */
static bool admit_one(struct quire_engine *engine, struct engine_request *r) {
  int32_t ticks = follow_ticks(engine, r);
  if (ticks >= 0 && ticks < engine->limits.follow_ticks_max) {
    return true; /* its leader entered just now */
  }
  struct quire_cache_fill fill = {
      .tokens = r->tokens,
      .tokens_count = r->count,
      .reserve_tokens = reserve_of(engine, r),
      .no_match = r->no_match,
      .match_max = r->cold->match_max,
      .root = &r->cold->root,
  };
  quire_cache_request handle;
  enum quire_status status = quire_cache_request_begin(engine->cache, &fill, &handle, NULL);
  if (status == QUIRE_OK) {
    enter(engine, r, handle);
    return true;
  }
  if (status == QUIRE_ERR_AGAIN) {
    r->cold->refused_available = quire_cache_available(engine->cache);
    r->cold->refused_tick = (uint64_t)engine->stats.ticks;
    return false;
  }
  status = quire_cache_request_begin(engine->cache, &fill, &handle, &r->cold->error);
  QUIRE_ASSERT(status != QUIRE_OK);
  quire_engine_fail(engine, r);
  return true;
}

/* Those in front of the last that entered have been passed. */
static void count_bypassed(struct quire_engine *engine, int32_t last) {
  for (int32_t i = 0; i < last; i++) {
    struct engine_request *r = &engine->requests[engine->candidates[i]];
    r->cold->bypassed += r->state == QUIRE_SCHED_WAITING && r->cold->leader == 0;
  }
}

static void admit_all(struct quire_engine *engine) {
  const struct quire_sched_decision *decision = &engine->decision;
  int32_t last = 0;
  for (int32_t i = 0; i < decision->admit_count; i++) {
    struct engine_request *r = &engine->requests[engine->candidates[decision->admits[i]]];
    if (!admit_one(engine, r)) {
      break;
    }
    last = r->state == QUIRE_SCHED_PREFILL ? decision->admits[i] : last;
  }
  count_bypassed(engine, last);
}

/* A page for every decode row that begins one. */
static void grow(struct quire_engine *engine) {
  engine->squeezed = false;
  for (int32_t i = 0; i < engine->running_count; i++) {
    if (engine->shown[i].flags != QUIRE_SCHED_NEEDS_PAGE) {
      continue;
    }
    struct engine_request *r = &engine->requests[engine->running[i]];
    enum quire_status status = quire_cache_request_grow(engine->cache, r->handle, r->computed + 1, NULL);
    if (status != QUIRE_OK && quire_cache_request_let_go(engine->cache, r->handle) > 0) {
      status = quire_cache_request_grow(engine->cache, r->handle, r->computed + 1, NULL);
    }
    if (status != QUIRE_OK) {
      engine->squeezed = true;
      continue;
    }
    quire_cache_request_pages(engine->cache, r->handle, &r->pages);
    quire_engine_show(engine, r);
  }
}

static bool anybody_paused(const struct quire_engine *engine) {
  for (int32_t i = 0; i < engine->running_count; i++) {
    if ((engine->shown[i].flags & QUIRE_SCHED_PAUSED) != 0) {
      return true;
    }
  }
  return false;
}

void quire_engine_admit(struct quire_engine *engine) {
  bool waits = engine->states[QUIRE_SCHED_WAITING] > 0;
  bool room = waits && (engine->running_count < engine->running_max || engine->limits.yield_margin > 0 ||
                        anybody_paused(engine));
  int32_t available = quire_cache_available(engine->cache);
  struct quire_sched_snapshot snapshot = {
      .running = engine->shown,
      .waiting = engine->waiting,
      .running_count = engine->running_count,
      .waiting_count = room ? collect(engine, available) : 0,
      .pages_available = available,
      .pages_coming = quire_cache_coming(engine->cache),
      .squeezed = engine->squeezed,
  };
  quire_sched_admit(&engine->limits, &snapshot, &engine->decision);
  preempt_victims(engine);
  grow(engine);
  admit_all(engine);
}
