/* What is asked of the engine and what it answers: plain values, shared by engine.h (one thread) and worker.h (any).
 *
 * A request's states and the ways between them (docs/design.md draws them; tests/sched walks them):
 *
 *   submit --> WAITING --admit--> PREFILL --last chunk--> DECODE --last token--> DRAIN --> end
 *                 ^                  |                       |                  (rows to their owners)
 *                 +---- preempt -----+-----------------------+
 *
 *   From every state a cancel, a deadline or a fault of the request leads to its end at the next plan border, where
 *   everything it holds is given back. Each request ends with exactly one event, DONE or FAILED, and says nothing after
 *   it.
 *
 * Law 6: tokens and log-probabilities depend on the prompt, the sampling parameters and nothing else. */
#ifndef QUIRE_ENGINE_REQUEST_H
#define QUIRE_ENGINE_REQUEST_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"
#include "layout/chain.h"
#include "layout/step_ack.h"
#include "layout/step_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_ENGINE_STOPS_MAX 32

struct quire_engine_request {
  const int32_t *tokens; /* prompt; copied */
  int32_t count;
  int32_t new_max; /* tokens to draw; 0: prefill only */
  int32_t new_min; /* before so many tokens no stop token is drawn */
  struct quire_sampling
      sampling;         /* its bias list is copied. prompt_logprobs sets QUIRE_ENTRY_SCORE and keeps the hit in
                                     the cache before the first row that is wanted */
  const int32_t *stops; /* tokens that end the answer; copied, at most QUIRE_ENGINE_STOPS_MAX */
  int32_t stop_count;
  int32_t priority;     /* higher goes first; 0 is normal */
  uint64_t deadline_ns; /* by the clock of the ticks (worker: CLOCK_MONOTONIC); 0: none */
  const void *salt;     /* tenant: pages are shared only among requests of one salt; 0 to QUIRE_CHAIN_SALT_MAX bytes */
  int32_t salt_bytes;
  bool no_match;               /* take nothing from the cache (prompt log-probabilities) */
  bool hold;                   /* keep rows and pages after the end, until quire_engine_cancel: all rows, unless it is
                                  stopped while it computes again what a preemption took */
  int32_t flags;               /* QUIRE_ENTRY_SCORE, QUIRE_ENTRY_DRAFT_FULL: of the prompt's rows */
  struct quire_step_row *rows; /* [count], filled for positions that were computed (the log-probability at i is of the
                                  token at i + 1), complete at the end event; the caller's, which keeps it until then.
                                  NULL: not wanted */
  struct quire_top *row_tops;  /* [count * sampling.prompt_top_logprobs] likewise; NULL: not wanted */
  uint64_t tag;                /* the caller's, comes back in every event */
};

enum quire_event_kind {
  QUIRE_EVENT_PREFILL, /* only of quire_engine_step */
  QUIRE_EVENT_TOKEN,
  QUIRE_EVENT_DONE,   /* the answer is complete: the last event */
  QUIRE_EVENT_FAILED, /* status says why: the last event */
};
enum quire_finish { QUIRE_FINISH_STOP, QUIRE_FINISH_LENGTH };

struct quire_engine_event {
  uint64_t id;
  uint64_t tag;
  const struct quire_top *tops; /* TOKEN: [top_count] likeliest first; valid until the next tick, of a worker until the
                                   next take of the ticket */
  uint64_t admitted_ns; /* first token and end: when it left the queue first, by the clock of the ticks; else 0 */
  int32_t position;     /* TOKEN: its position; prompt positions come before */
  int32_t token;        /* TOKEN */
  float logprob;        /* TOKEN: of it under the full softmax */
  int32_t prefilled;    /* prompt positions in the cache, hits included */
  int32_t cached;       /* prompt tokens that were found in the cache */
  uint8_t kind;         /* enum quire_event_kind */
  uint8_t finish;       /* enum quire_finish */
  uint8_t status;       /* FAILED: CANCELLED, REQUEST (deadline), NONFINITE, RANK, ...; else QUIRE_OK */
  uint8_t top_count;    /* TOKEN: sampling.top_logprobs */
};
static_assert(sizeof(struct quire_engine_event) == 56, "one event a token: small");

#ifdef __cplusplus
}
#endif
#endif
