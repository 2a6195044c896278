/* The scheduler: a function from a snapshot to a decision (design D13). It has no clock, no memory of its own and no
 * I/O; the engine carries a decision out and shows the next snapshot.
 *
 * States of a request and the ways out of each (quire_sched_can is this table):
 *
 *             submit              admit                 last chunk                last token
 *     FREE -----------> WAITING ---------> PREFILL ----------------> DECODE ----------------> DRAIN
 *      ^                 |  ^                | | \                    |  | \                    |  \
 *      |                 |  +----preempt-----+ |  \                   |  |  \                   |   \
 *      |                 |  +----preempt-------|---\------------------+  |   \ nothing left     |    \
 *      |                 |                     |    +--> HELD <----------|----+ to bring home   |     |
 *      |                 |                     |          |  ^           |                      |     |
 *      |                 |                     |          |  +-----------|----------------------|-----+
 *      +-----------------+---------------------+----------+--------------+----------------------+
 *                 the end: done, cancelled, late, failed, released
 *
 *   WAITING  has tokens and no pages            DRAIN  its last rows wait for their owners
 *   PREFILL  computes known tokens              HELD   done, its pages stay for whoever looks at them
 *   DECODE   computes the token drawn last
 *
 * A tick asks twice. quire_sched_admit: who gives way, who enters. Between the two calls the engine takes pages back
 * and hands them out, so that the second sees what the first one's requests found in the cache. quire_sched_run: who
 * computes how many rows.
 *
 * Order: higher priority first, then who came first; a preempted request keeps its place.
 *
 * Rows. Every DECODE and DRAIN request runs in every step. Prefill has a budget of rows (the chunk): half of it goes to
 * the first request in order, so that nobody starves; the other half to those with the fewest rows left, so that a
 * short prompt does not wait for a long one. A step that ends somebody's prefill is not made longer by rows nobody
 * waits for: what the short ones leave of their half stays empty. Hence a short request beside a long prefill gets its
 * first token after at most the rest of a running step (one chunk), its own rows, and half a chunk.
 *
 * Admission. In order, with pages for prompt and headroom. Long prompts (more rows than half a chunk) compute few at a
 * time, since their pages would lie reserved and idle; short ones pass long ones that wait for pages, but only
 * bypass_max times. A request whose next page a running prefill is about to fill waits for it, at most
 * follow_ticks_max.
 *
 * Preemption. When running requests need pages that are not there: paused requests first, then the last in order gives
 * way. When nobody can enter for want of pages or places: paused requests alone, one a tick. The first in order is
 * never preempted, so it comes to its end; whatever gives way keeps its sealed pages in the cache and finds them again.
 * With a yield_margin the first that waits takes places and pages of those whose priority is lower by so much, the last
 * in order first, if that is enough for it to enter; it is then before all of them in order. While pages are on their
 * way (poison, copies) nobody gives way for them.
 *
 * Pure; threads: any. Nothing fails. */
#ifndef QUIRE_SCHED_SCHED_H
#define QUIRE_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum quire_sched_state {
  QUIRE_SCHED_FREE,
  QUIRE_SCHED_WAITING,
  QUIRE_SCHED_PREFILL,
  QUIRE_SCHED_DECODE,
  QUIRE_SCHED_DRAIN,
  QUIRE_SCHED_HELD,
  QUIRE_SCHED_STATES,
};

/* Prompts computed at once: entries of prefill in one step. */
#define QUIRE_SCHED_PREFILLS_MAX 64
/* Candidates for admission a tick looks at: so many of the short ones in order, and as many long ones. */
#define QUIRE_SCHED_CANDIDATES 16
/* Long prompts that compute at a time. */
#define QUIRE_SCHED_LONG_MAX 4
/* Short requests that may pass one that waits for pages. */
#define QUIRE_SCHED_BYPASS_MAX 32
/* Ticks a request waits for another that computes its prefix. */
#define QUIRE_SCHED_FOLLOW_TICKS_MAX 512

struct quire_sched_limits {
  int32_t running_max;
  int32_t prefills_max;     /* 1 to QUIRE_SCHED_PREFILLS_MAX */
  int32_t chunk_tokens;     /* rows of all prefill entries of a step */
  int32_t page_tokens;      /* a piece of a prompt that is not its last ends at a page border where the budget allows */
  int32_t prefix_pages_max; /* pages that the prefill entries of a step read; 0: no limit */
  int32_t follow_ticks_max;
  int32_t bypass_max;
  int32_t yield_margin; /* a running request gives way to a waiting one whose priority is so much higher; 0: never */
};

enum quire_sched_flags {
  QUIRE_SCHED_PAUSED = 1,     /* its reader does not keep up */
  QUIRE_SCHED_NEEDS_PAGE = 2, /* its next row has no page yet */
};

/* A request that has a page table. */
struct quire_sched_running {
  uint64_t order; /* of arrival; unique */
  int32_t priority;
  uint8_t state; /* PREFILL, DECODE, DRAIN, HELD */
  uint8_t flags;
  uint16_t reserved;
  int32_t left;     /* PREFILL: rows to compute; else 0 */
  int32_t computed; /* PREFILL: positions computed; else 0 */
  int32_t pages;    /* of its page table */
};

/* A request that waits; the array is in order. */
struct quire_sched_waiting {
  uint64_t order;
  int32_t priority;
  int32_t left;         /* rows to compute, as far as is known */
  int32_t pages;        /* pages it takes out of what is available: prompt and headroom, without what it would share */
  int32_t follow_ticks; /* ticks it has waited for a running prefill that computes its prefix; -1: there is none */
  int32_t bypassed;     /* requests behind it that went in while it waited for pages */
  bool refused;         /* asked for pages and got none, and nothing has changed since */
};

struct quire_sched_snapshot {
  const struct quire_sched_running *running;
  const struct quire_sched_waiting *waiting;
  int32_t running_count;
  int32_t waiting_count;
  int32_t pages_available; /* free or evictable */
  int32_t pages_coming;    /* on their way back, without anybody's doing */
  bool squeezed;           /* in the last tick somebody who ran got no page */
};

struct quire_sched_run {
  int32_t index; /* in running */
  int32_t rows;  /* PREFILL: rows; DECODE: 1; DRAIN: 0 */
};

/* Lists belong to the caller: victims and runs [running_max], admits [2 * QUIRE_SCHED_CANDIDATES]. */
struct quire_sched_decision {
  int32_t *victims; /* indices in running, first to go first */
  int32_t *admits;  /* indices in waiting, in the order they enter; one that gets no pages ends the row */
  struct quire_sched_run *runs;
  int32_t victim_count, admit_count, run_count;
};

/* Rows from which on a prompt is long. */
static inline int32_t quire_sched_short_max(const struct quire_sched_limits *limits) {
  return limits->chunk_tokens / 2 > 0 ? limits->chunk_tokens / 2 : 1;
}

/* Is there a way from one state to another? */
bool quire_sched_can(enum quire_sched_state from, enum quire_sched_state to);
/* "waiting", "prefill", ... */
const char *quire_sched_state_name(enum quire_sched_state state);

/* Does (priority, order) a come before b? */
static inline bool quire_sched_before(int32_t a_priority, uint64_t a_order, int32_t b_priority, uint64_t b_order) {
  return a_priority != b_priority ? a_priority > b_priority : a_order < b_order;
}

/* Fills victims and admits. With victims there are no admits. */
void quire_sched_admit(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *snapshot,
                       struct quire_sched_decision *decision_out);
/* Fills runs from the running requests; waiting is not looked at. */
void quire_sched_run(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *snapshot,
                     struct quire_sched_decision *decision_out);

#ifdef __cplusplus
}
#endif
#endif
