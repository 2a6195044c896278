/* One request alone: what `quire run`, the evaluation and most tests do with a worker. */
#include "base/assert.h"
#include "engine/engine_private.h"

static struct engine_request *solo_of(const struct quire_engine *engine) {
  return quire_engine_find(engine, engine->solo);
}

/* Admits until the request is in: pages that have to be poisoned first come back one round later. */
static bool enter(struct quire_engine *engine, uint64_t id, struct quire_error *error_out) {
  for (int32_t i = 0; i <= engine->geometry.pages; i++) {
    quire_engine_admit(engine);
    const struct engine_request *r = quire_engine_find(engine, id);
    if (r == NULL || r->state != QUIRE_SCHED_WAITING) {
      return true;
    }
    if (quire_engine_pump(engine, true, error_out) != QUIRE_OK) {
      return false;
    }
  }
  quire_error_set(error_out, QUIRE_ERR_AGAIN, "request", "there are no pages for it beside what runs");
  return false;
}

enum quire_status quire_engine_start(struct quire_engine *engine, const struct quire_engine_request *request,
                                     int32_t *hit_out, struct quire_error *error_out) {
  if (engine->solo != 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "engine", "a request is running");
  }
  struct quire_engine_request held = *request;
  held.hold = true;
  uint64_t id = 0;
  quire_engine_reap(engine, 0);
  enum quire_status status = quire_engine_submit(engine, &held, &id, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_error error = {.status = QUIRE_OK};
  bool entered = enter(engine, id, &error);
  struct engine_request *r = quire_engine_find(engine, id);
  if (!entered || r == NULL) {
    error = r == NULL ? *quire_engine_error(engine, id) : error;
    if (r != NULL) {
      quire_engine_retire(engine, r);
    }
    if (error_out != NULL) {
      *error_out = error;
    }
    return error.status;
  }
  engine->solo = id;
  engine->watched = id;
  if (hit_out != NULL) {
    *hit_out = r->cached;
  }
  return QUIRE_OK;
}

/* The request's event, if there is one. */
static bool take_event(struct quire_engine *engine, struct quire_engine_event *event_out) {
  struct quire_engine_event event;
  while (quire_engine_poll(engine, &event, 1) == 1) {
    if (event.id == engine->solo) {
      *event_out = event;
      return true;
    }
  }
  return false;
}

enum quire_status quire_engine_step(struct quire_engine *engine, struct quire_engine_event *event_out,
                                    struct quire_error *error_out) {
  const struct engine_request *r = solo_of(engine);
  if (r == NULL || (r->ended && quire_engine_pending(engine) == 0)) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "engine", "no request is running");
  }
  struct quire_engine_event event;
  bool found = take_event(engine, &event);
  if (!found) {
    enum quire_status status = quire_engine_tick(engine, 0, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    found = take_event(engine, &event);
  }
  if (!found) {
    r = solo_of(engine);
    QUIRE_ASSERT(r != NULL);
    event = (struct quire_engine_event){.id = r->id, .tag = r->tag, .kind = QUIRE_EVENT_PREFILL, .cached = r->cached};
    event.token = QUIRE_TOKEN_ABSENT;
    event.prefilled = r->computed < r->prompt ? r->computed : r->prompt;
  }
  if (event.kind == QUIRE_EVENT_FAILED) {
    const struct quire_error *error = quire_engine_error(engine, event.id);
    QUIRE_ASSERT(error != NULL);
    if (error_out != NULL) {
      *error_out = *error;
    }
    return event.status;
  }
  *event_out = event;
  return QUIRE_OK;
}

void quire_engine_stop(struct quire_engine *engine) { quire_engine_stop_request(engine, engine->solo); }

void quire_engine_finish(struct quire_engine *engine) {
  struct engine_request *r = solo_of(engine);
  if (r != NULL) {
    quire_engine_retire(engine, r);
  }
  struct quire_engine_event event;
  while (engine->solo != 0 && take_event(engine, &event)) {
  }
  engine->solo = 0;
}
