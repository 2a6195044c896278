/* The engine behind a thread: any thread submits and cancels, one thread (the HTTP loop) reads.
 *
 *   submit --bounded queue (full: QUIRE_ERR_AGAIN)--> CONTROLLER thread --ticks--> engine
 *                                                        |
 *   eventfd <-- tickets with news <-- ring of each ticket+
 *
 * A ticket is one request on its way. Its events wait in a ring of its own, of `ring_events`; the controller never
 * waits for a reader: a request whose ring is full pauses (it computes nothing, and is the first to give its pages to
 * others) and goes on when there is room; one that stays full for `stall_ns` fails with QUIRE_ERR_CANCELLED.
 *
 * Whoever submits gets a ticket and gives it back with close, in any state: closing a ticket whose end has not been
 * read cancels it. What it held is free after the next plan border.
 *
 * The worker owns the engine's thread, not the engine: between create and destroy nobody else calls the engine.
 *
 * Memory: reserved at creation but for each ticket's copy of its request, which submit allocates on the caller's thread
 * and which goes when the ticket is closed and has ended. Errors: when a rank fails every ticket ends with
 * QUIRE_EVENT_FAILED (QUIRE_ERR_RANK) and health says so. */
#ifndef QUIRE_ENGINE_WORKER_H
#define QUIRE_ENGINE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "cache/cache.h"
#include "engine/engine.h"
#include "engine/request.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_worker;

/* Index of a ticket with its generation; 0 is none. */
typedef struct {
  uint64_t v;
} quire_ticket;

struct quire_worker_config {
  struct quire_engine *engine;
  int32_t tickets_max; /* requests submitted and not closed: running, waiting, being read */
  int32_t ring_events; /* a ticket's, at least 4; rounded up to a power of two */
  uint64_t stall_ns;   /* how long a reader may leave its ring full; 0: for ever */
};

/* One picture of the worker, for metrics and /v1/loads. Counters are since creation. */
struct quire_worker_stats {
  struct quire_engine_stats engine;
  struct quire_cache_stats cache;
  int32_t tickets;  /* open now */
  int64_t rejected; /* submits answered QUIRE_ERR_AGAIN */
  uint64_t tick_ns; /* of the controller's last tick, plan included */
  bool draining;
  bool failed; /* a rank failed: nothing runs any more */
};

int64_t quire_worker_bytes(const struct quire_worker_config *config);
/* Starts the controller thread. QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY. */
enum quire_status quire_worker_create(const struct quire_env *env, const struct quire_worker_config *config,
                                      struct quire_worker **worker_out, struct quire_error *error_out);
/* Ends all requests, then the thread. Tickets are void; NULL is allowed. No other thread may be inside. */
void quire_worker_destroy(struct quire_worker *worker);

/* --- any thread --- */

/* Copies the request with all it points to. QUIRE_ERR_AGAIN: tickets_max are open, or as many are inside as the engine
 * runs and queues (answer 429). QUIRE_ERR_STATE: draining (503). QUIRE_ERR_REQUEST and others of
 * quire_engine_check_request come at once. `hold`, `rows` and `row_tops` must not be set (QUIRE_ERR_ARGUMENT): a
 * prompt's log-probabilities are kept by the ticket. */
enum quire_status quire_worker_submit(struct quire_worker *worker, const struct quire_engine_request *request,
                                      quire_ticket *ticket_out, struct quire_error *error_out);
/* Acts at the next plan border; the ticket ends with FAILED (QUIRE_ERR_CANCELLED) unless it had ended. */
void quire_worker_cancel(struct quire_worker *worker, quire_ticket ticket);
/* Cancels every ticket; returns how many were open. */
int32_t quire_worker_cancel_all(struct quire_worker *worker);
/* Detaches everything cached at the next plan border. */
void quire_worker_flush(struct quire_worker *worker);
/* Takes no more requests; those inside go on to their ends. */
void quire_worker_drain(struct quire_worker *worker);
/* No request is inside (their events may still be unread). */
bool quire_worker_idle(const struct quire_worker *worker);
/* For health, without a lock and without the controller's help. Silence is the time since the controller last came by:
 * some 0.1 s at most while idle, a step while one runs; one that only grows means a rank, or the controller, hangs. */
uint64_t quire_worker_silence_ns(const struct quire_worker *worker);
/* A rank has failed or died, which is seen within 0.1 s also while nothing runs. */
bool quire_worker_failed(const struct quire_worker *worker);
void quire_worker_stats(struct quire_worker *worker, struct quire_worker_stats *stats_out);
/* The laws, checked by the controller between two plans; waits for it. False with the first fault. */
bool quire_worker_check(struct quire_worker *worker, struct quire_error *why_out);

/* --- one reading thread --- */

/* Readable when there are tickets with news. The worker's; do not read or close it. */
int quire_worker_fd(const struct quire_worker *worker);
/* Up to max tickets that have had events since they were last returned here; fewer than max: that were all, and the fd
 * is quiet until there are more. A ticket that is returned must be taken from until take answers 0, now or later: it is
 * not returned again for events it had before. */
int32_t quire_worker_ready(struct quire_worker *worker, quire_ticket *tickets_out, int32_t max);
/* Up to max events of a ticket, oldest first; 0: none now. What an event points to lives until the next take. To slow a
 * request down (a client that does not read) leave its events where they are and take later. */
int32_t quire_worker_take(struct quire_worker *worker, quire_ticket ticket, struct quire_engine_event *events_out,
                          int32_t max);
/* The full text of the failure of a ticket whose FAILED event was taken; until close. */
const struct quire_error *quire_worker_error(const struct quire_worker *worker, quire_ticket ticket);
/* Of a ticket with prompt_logprobs whose first token, or end, was taken: [count] rows and [count * prompt_top_logprobs]
 * likeliest tokens (NULL without), as request.h says; until close. */
const struct quire_step_row *quire_worker_rows(const struct quire_worker *worker, quire_ticket ticket,
                                               const struct quire_top **tops_out);
/* Gives the ticket back; cancels it if its end was not reached. */
void quire_worker_close(struct quire_worker *worker, quire_ticket ticket);

#ifdef __cplusplus
}
#endif
#endif
