/* The inside of a worker.
 *
 *   worker.c         creation, the controller thread
 *   worker_ticket.c  what other threads call
 *
 * A ticket is in use until three things have come together: its reader closed it, its request ended, and it is not in
 * the list of tickets with news. Whoever brings the last one gives it back. */
#ifndef QUIRE_ENGINE_WORKER_PRIVATE_H
#define QUIRE_ENGINE_WORKER_PRIVATE_H

#include <pthread.h>

#include "base/queue.h"
#include "engine/engine_private.h"
#include "engine/worker.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ticket_bits {
  TICKET_OPEN = 1,
  TICKET_CLOSED = 2,
  TICKET_ENDED = 4,
  TICKET_LISTED = 8,
  TICKET_CANCELLED = 16, /* asked for: a message is on its way, or was */
};

struct ticket {
  uint64_t state; /* atomic: generation in the upper half, enum ticket_bits in the lower; no bits: free */
  /* between the threads, atomic */
  bool waits;      /* the controller has paused it: the reader says when there is room */
  uint32_t pushed; /* events ever put into the ring; the controller's */
  uint32_t freed;  /* events whose places are free again; the reader's */
  uint32_t taken;  /* the reader's: events ever taken */
  /* the submitter's, then the controller's */
  struct quire_engine_request request; /* pointing into block */
  void *block;
  size_t block_bytes;
  struct quire_top *tops; /* [ring_events * top_logprobs] */
  /* the controller's */
  uint64_t id; /* of the engine; 0: not there (yet, or any more) */
  uint64_t stalled_ns;
  struct quire_error error;
};

enum message_kind { MESSAGE_WAKE, MESSAGE_SUBMIT, MESSAGE_CANCEL, MESSAGE_RESUME };

struct message {
  int32_t kind;
  int32_t ticket;
  uint32_t generation;
};

struct quire_worker {
  const struct quire_env *env;
  struct quire_worker_config config;
  struct quire_engine *engine;
  pthread_t thread;
  bool started;
  int fd;
  struct quire_queue *messages; /* to the controller */
  void *block;
  size_t block_bytes;
  struct ticket *tickets;            /* [tickets_max] */
  struct quire_engine_event *events; /* [tickets_max][ring_events] */
  uint64_t *news; /* [news_size] tickets with news, a ring: written by the controller, read by the reader */
  uint32_t news_size;
  uint32_t news_pushed, news_taken; /* atomic */
  bool armed;                       /* atomic: the reader sleeps on the fd */

  int32_t *pending; /* [tickets_max] submitted and not yet in the engine; the controller's ring */
  int32_t pending_first, pending_count;
  int32_t *stalled; /* [tickets_max] paused; the controller's */
  int32_t stalled_count;
  uint64_t tick_ns; /* of the last tick that ran a plan; the controller's */

  pthread_mutex_t mutex; /* of what follows */
  pthread_cond_t checked;
  int32_t *free_tickets; /* [tickets_max] */
  int32_t free_count;
  struct quire_worker_stats stats;
  bool stats_wanted, check_wanted, flush_wanted;
  bool check_answer;
  struct quire_error check_why;

  uint64_t beat_ns;                /* atomic: when the controller last came by */
  int32_t inside;                  /* atomic: submitted and not ended */
  bool stopping, draining, failed; /* atomic */
};

struct ticket *quire_worker_ticket(const struct quire_worker *worker, quire_ticket ticket);
/* Sets or clears bits of a ticket's state; gives it back when that was the last of the three. */
void quire_worker_ticket_bits(struct quire_worker *worker, struct ticket *ticket, uint32_t set, uint32_t clear);
static inline uint64_t quire_ticket_state(const struct ticket *ticket) {
  return __atomic_load_n(&ticket->state, __ATOMIC_ACQUIRE);
}
static inline uint32_t quire_ticket_generation(uint64_t state) { return (uint32_t)(state >> 32); }
void quire_worker_tell(struct quire_worker *worker, enum message_kind kind, const struct ticket *ticket);

#ifdef __cplusplus
}
#endif
#endif
