/* The inside of the engine, shared by the files of this folder.
 *
 *   engine.c          configuration, memory plan, creation
 *   engine_request.c  a request's record: submit, queue, cancel, end, events
 *   engine_admit.c    who gives way and who enters: pages taken and given
 *   engine_tick.c     the tick: decision, step plan, acknowledgements
 *   engine_solo.c     one request alone
 *   engine_inspect.c  stored rows, controls of the evaluation, self-checks
 *   worker.c          the thread around it */
#ifndef QUIRE_ENGINE_ENGINE_PRIVATE_H
#define QUIRE_ENGINE_ENGINE_PRIVATE_H

#include "base/assert.h"
#include "engine/engine.h"
#include "sched/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENGINE_SLOT_BITS 20
#define ENGINE_SLOTS_MAX (1 << ENGINE_SLOT_BITS)
#define ENGINE_NONE (-1)

/* What of a request a decode step does not touch. */
struct engine_cold {
  struct quire_sampling sampling; /* its bias list is the slot's own */
  struct quire_step_row *rows;
  struct quire_top *row_tops;
  int32_t stops[QUIRE_ENGINE_STOPS_MAX];
  uint64_t deadline_ns;
  struct quire_hash128 root;
  int32_t match_max;         /* tokens it may find in the cache; 0: as many as there are */
  bool admitted;             /* once at least */
  uint64_t admitted_ns;      /* in the tick that began then */
  int32_t refused_available; /* pages there were when it got none, or -1 */
  uint64_t refused_tick;
  int32_t shared;       /* whole pages it would find, when that was last looked up */
  uint64_t shared_tick; /* 0: never */
  uint64_t leader;      /* request that computes its prefix, 0: none */
  int32_t leader_pages;
  uint64_t follow_tick; /* since when it waits for others, 0: it does not */
  int32_t bypassed;
  struct quire_error error; /* what it failed with */
};

/* A request: two cache lines. Of almost every request a decode step touches the first only: as long as `computed` is
 * below `quiet_end`, its next row is like the one before (one token on, no page begun, sealed or announced, not the
 * answer's last) and its entry in the plan stays.
 *
 *   computed   rows computed so far; the next step computes from here
 *   paged      rows that lie in their pages behind a fence; prefill: = computed, decode: one step behind, since the row
 *              of a decode step stays at its home until the next plan commits it */
struct engine_request {
  _Alignas(64) int32_t *tokens; /* [ctx_tokens + 1] prompt, then what was drawn */
  uint64_t id, tag;
  int32_t count;  /* tokens known */
  int32_t prompt; /* of these, the prompt's */
  int32_t computed;
  int32_t paged;
  int32_t quiet_end; /* 0 in every state but DECODE */
  int32_t cached;    /* prompt tokens found at the first admission */
  int32_t run;       /* index in running, or -1 */
  int32_t entry;     /* of its last step in that plan */
  uint8_t state;     /* enum quire_sched_state */
  uint8_t finish;
  uint8_t stop_count;
  uint8_t flags;
  int8_t home;        /* rank of its decode rows, or -1 */
  int8_t carry_rank;  /* holds the hidden state of computed - 1, or -1 */
  bool cancelled : 1; /* or to be stopped: in the list of marked */
  bool stopping : 1;
  bool ended : 1; /* its last event is out */
  bool paused : 1, hold : 1, no_match : 1;
  bool plain : 1; /* it always draws in the same way (quire_step_draws_plainly) */
  bool told : 1;  /* and the ranks know how */

  _Alignas(64) struct engine_cold *cold;
  quire_cache_request handle;
  uint64_t order;
  int32_t priority;
  int32_t sealed;    /* whole pages the cache was told of */
  int32_t pages;     /* of the page table */
  int32_t announced; /* of these, known to the ranks */
  int32_t end_max;   /* count at which the answer is complete */
  int32_t new_min;
  int32_t listed;         /* position up to which the ranks have the list of the penalties; -1: nothing of it */
  int32_t next, previous; /* in its queue; next also in the free list */
};
static_assert(sizeof(struct engine_request) == 128, "a request of two lines");

/* Entry i of the last plan: whose it was, and where its tokens lie if it stands there ready for that request's next
 * step (quire_step_kept_advance); else -1. */
struct engine_planned {
  int32_t slot;
  int32_t token_first;
};

/* A queue of waiting requests in order (sched.h). */
struct engine_queue {
  int32_t first, last, count;
};

struct quire_engine {
  const struct quire_env *env;
  struct quire_engine_config config;
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_step_config step;
  struct quire_sched_limits limits;
  struct quire_cache *cache;
  struct quire_step_executor *executor;
  struct quire_step_plan *plan;
  struct quire_step_kept kept; /* of the plan */
  uint64_t epoch;
  bool failed;
  bool squeezed;

  int32_t slots, running_max;
  struct engine_request *requests; /* [slots] */
  struct engine_cold *colds;       /* [slots] */
  int32_t free_slot;               /* list */
  int32_t ended_first;             /* list of slots that are free at the next tick */
  struct quire_bias *biases;       /* [slots][QUIRE_BIAS_MAX] */
  int32_t *marked;                 /* [slots] requests to be cancelled or stopped */
  int32_t marked_count;
  int32_t states[QUIRE_SCHED_STATES];      /* requests in each */
  uint32_t ways_taken[QUIRE_SCHED_STATES]; /* bits of the states that were entered from each; for tests */
  uint64_t serial, order;
  uint64_t deadline_next; /* no deadline is earlier */
  uint64_t now_ns;        /* of the tick */
  struct engine_queue short_queue, long_queue;

  int32_t running_count;
  int32_t *running;                    /* [running_max] slots */
  struct quire_sched_running *shown;   /* [running_max] the same for the scheduler */
  struct quire_sched_waiting *waiting; /* [2 * QUIRE_SCHED_CANDIDATES] */
  int32_t *candidates;                 /* [2 * QUIRE_SCHED_CANDIDATES] their slots */
  struct quire_sched_decision decision;
  struct engine_planned *planned; /* [running_max] */
  int32_t planned_count;
  int32_t *homes; /* [ranks] requests that decode there */

  struct quire_engine_event *events; /* [events_max], ring */
  int32_t events_max, events_first, events_count;
  struct quire_engine_stats stats;
  uint64_t watched; /* id of the inspected request */
  uint64_t solo;    /* id of quire_engine_start's, 0: none */
  void *block;      /* all arrays above */
  size_t block_bytes;
};

/* --- engine_request.c --- */

/* The arrays of the controller; with engine->block NULL only adds up. Returns the bytes. */
size_t quire_engine_carve(struct quire_engine *engine);
/* All slots free. */
void quire_engine_reset_slots(struct quire_engine *engine);
struct engine_request *quire_engine_find(const struct quire_engine *engine, uint64_t id);
/* Changes the state by a way the scheduler's table has. */
void quire_engine_set_state(struct quire_engine *engine, struct engine_request *r, enum quire_sched_state state);
void quire_engine_enqueue(struct quire_engine *engine, struct engine_request *r);
void quire_engine_dequeue(struct quire_engine *engine, struct engine_request *r);
/* Brings the scheduler's record of a running request up to date: all of it that changes while it runs, which for rows
 * below quiet_end is nothing. */
static inline void quire_engine_show(struct quire_engine *engine, const struct engine_request *r) {
  bool needs_page = r->state == QUIRE_SCHED_DECODE && r->computed >= r->pages * engine->geometry.page_tokens;
  struct quire_sched_running *shown = &engine->shown[r->run];
  shown->state = r->state;
  shown->flags = (uint8_t)((r->paused ? QUIRE_SCHED_PAUSED : 0) | (needs_page ? QUIRE_SCHED_NEEDS_PAGE : 0));
  shown->left = r->state == QUIRE_SCHED_PREFILL ? r->count - r->computed : 0;
  shown->computed = r->state == QUIRE_SCHED_PREFILL ? r->computed : 0;
  shown->pages = r->pages;
}
void quire_engine_run_add(struct quire_engine *engine, struct engine_request *r);
void quire_engine_run_remove(struct quire_engine *engine, struct engine_request *r);
/* The place of the next event, all of which the caller fills in. */
static inline struct quire_engine_event *quire_engine_next_event(struct quire_engine *engine) {
  QUIRE_ASSERT(engine->events_count < engine->events_max);
  int32_t at = engine->events_first + engine->events_count++;
  return &engine->events[at < engine->events_max ? at : at - engine->events_max];
}
/* Appends an event with everything but its token, which the caller fills in where it is. */
struct quire_engine_event *quire_engine_emit(struct quire_engine *engine, const struct engine_request *r,
                                             enum quire_event_kind kind);
/* Takes what the request holds and frees its slot from the next tick on; says nothing. */
void quire_engine_retire(struct quire_engine *engine, struct engine_request *r);
/* The request ends with r->error: event FAILED, everything given back. */
void quire_engine_fail(struct quire_engine *engine, struct engine_request *r);
/* The answer is complete: event DONE, at once or, for one that is held, when its rows are home. */
void quire_engine_complete(struct quire_engine *engine, struct engine_request *r, enum quire_finish finish);
/* Ends what was cancelled or is late; slots of the last tick's ended are free. */
void quire_engine_reap(struct quire_engine *engine, uint64_t now_ns);

/* --- engine_admit.c --- */

/* Takes pages back from victims, gives pages to who enters. */
void quire_engine_admit(struct quire_engine *engine);
/* Opens a request in the cache. Where evicted pages have to pass through the banks first (poison), it sees them through
 * and asks again, as often as that brings pages. Errors as quire_cache_request_begin. */
enum quire_status quire_engine_begin(struct quire_engine *engine, const struct quire_cache_fill *fill,
                                     quire_cache_request *handle_out, struct quire_error *error_out);
/* Moves commands of the cache to the ranks and their acknowledgements back. wait: until none is open. */
enum quire_status quire_engine_pump(struct quire_engine *engine, bool wait, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
