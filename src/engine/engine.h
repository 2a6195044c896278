/* The controller of a worker: many requests at once through shared pages, from tokens to tokens.
 *
 *   submit   a request waits (request.h has its states)
 *   tick     one decision (sched/sched.h), one step plan for all that runs, its acks; then the acks become cache calls
 *   poll     what the ticks brought: tokens, ends
 *   cancel   in any state; everything the request held is given back by the next tick
 *
 * The engine reserves everything at creation; quire_engine_plan says how much before. Whatever the configuration
 * (ranks, split, sharing, view, chunk) and whatever runs beside it, tokens and stored KV bytes of a request are the
 * same (design, law 6).
 *
 * n answers to one prompt are n requests: the later ones wait for the first one's sealed pages and share them, and each
 * computes the tail page again, which gives the same bytes as a copy would.
 *
 * Threads: one, the controller's; there is no clock inside, time comes with the tick (worker.h puts a thread around
 * it). Errors: a request that cannot be served fails alone; a step that fails on a rank (QUIRE_ERR_RANK) ends all
 * requests and the engine: destroy it. */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "cache/cache.h"
#include "engine/request.h"
#include "kernels/kernels.h"
#include "layout/parts.h"
#include "layout/step_ack.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/support.h"
#include "model/weights.h"
#include "step/step.h"
#include "view/view.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_engine;

enum quire_sharing { QUIRE_SHARING_SHARED, QUIRE_SHARING_REPLICATED };

struct quire_engine_config {
  const struct quire_model_config *model;
  const struct quire_model_weights *weights;
  struct quire_model_options options;
  const struct quire_kernels *kernels;
  const char *executor; /* name of a step executor; NULL: "threads" */
  int32_t ranks;
  enum quire_split split;
  enum quire_sharing sharing;
  enum quire_view_mode view;
  enum quire_kv_format kv_format;
  int32_t chunk_tokens;
  int32_t ctx_tokens;      /* longest request, prompt and answer */
  int32_t cache_tokens;    /* of all pages; at least ctx_tokens */
  int32_t running_max;     /* requests that run at once; 0: 1 */
  int32_t queue_max;       /* requests that wait; 0: as many as run */
  int32_t yield_margin;    /* a waiting request takes the place and pages of running ones whose priority is lower by so
                              much, when it cannot enter otherwise; nothing they drew is lost. 0: never */
  int32_t headroom_tokens; /* reserved behind a prompt at admission, as far as the answer may go; 0: a page */
  int threads_per_rank;
  bool poison;                      /* freed pages are overwritten with NaN before they are used again */
  enum quire_stream_mode copy_mode; /* QUIRE_STREAM_THREAD; DEFERRED in tests */
  uint64_t copy_seed;
  bool debug_shared_kv;        /* compare everything a view reads with what owners wrote */
  enum quire_view_fault fault; /* put in at step fault_epoch (from 1), for debug_shared_kv to find */
  uint64_t fault_epoch;
  struct quire_trace *trace;          /* of layers and gather jobs, all ranks; NULL: off */
  const struct quire_sim_config *sim; /* of the executor "sim" (step/sim/sim.h); NULL: its defaults */
};

/* The memory plan: bytes one rank reserves, by purpose. */
struct quire_engine_memory {
  struct quire_step_memory rank;
  int64_t rope;         /* one table for all ranks */
  int64_t brain;        /* cache: page states, tree, page tables */
  int64_t controller;   /* requests: their tokens, queues, events */
  int64_t bundle_bytes; /* of one page, all parts */
  int32_t pages;        /* of the worker */
  int32_t local_pages;  /* of the rank with most */
};

/* What runs now, and counters since creation. */
struct quire_engine_stats {
  int32_t waiting, prefilling, decoding, draining, held;
  int32_t waiting_tokens; /* prompt tokens of those that wait */
  int64_t submitted, refused, done, failed, cancelled;
  int64_t preempted;
  int64_t prompt_tokens;  /* of requests admitted for the first time */
  int64_t cached_tokens;  /* of these, found in the cache */
  int64_t prefill_tokens; /* rows computed by prefill entries, those after a preemption included */
  int64_t decode_tokens;  /* rows computed by decode entries */
  int64_t drawn_tokens;
  int64_t ticks, steps; /* ticks; those that ran a plan */
  int32_t fault;        /* QUIRE_STEP_FAULT_* of the configuration's fault (layout/step_ack.h) */
  bool failed_rank;
};

/* One configuration against the support table: views, sharing, ranks, formats, the model's own rules. */
enum quire_status quire_engine_check(const struct quire_engine_config *config, struct quire_error *error_out);

/* Parts table of a configuration; draft parts exist when the weights have a draft layer. False: too many layers. */
bool quire_engine_parts(const struct quire_engine_config *config, struct quire_parts *parts_out);
struct quire_hash128 quire_engine_fingerprint(const struct quire_engine_config *config);
enum quire_status quire_engine_plan(const struct quire_engine_config *config, struct quire_engine_memory *memory_out,
                                    struct quire_error *error_out);

/* Bytes of all ranks together. */
int64_t quire_engine_memory_total(const struct quire_engine_config *config, const struct quire_engine_memory *memory);

/* QUIRE_ERR_ARGUMENT when the machine has less memory available than the plan needs. */
enum quire_status quire_engine_create(const struct quire_env *env, const struct quire_engine_config *config,
                                      struct quire_engine **engine_out, struct quire_error *error_out);
void quire_engine_destroy(struct quire_engine *engine);

/* --- serving --- */

/* Copies the request and lets it wait. QUIRE_ERR_AGAIN: queue_max wait already. QUIRE_ERR_REQUEST: it can never fit or
 * holds an id outside the vocabulary. QUIRE_ERR_ARGUMENT: a value out of bounds. QUIRE_ERR_UNSUPPORTED: a draft layer
 * is asked for and there is none. QUIRE_ERR_RANK: the engine has failed. *id_out is never 0. */
enum quire_status quire_engine_submit(struct quire_engine *engine, const struct quire_engine_request *request,
                                      uint64_t *id_out, struct quire_error *error_out);
/* The checks of submit alone; for any thread, since it reads only what creation fixed. */
enum quire_status quire_engine_check_request(const struct quire_engine *engine,
                                             const struct quire_engine_request *request, struct quire_error *error_out);
/* Ends what was cancelled or is late, decides, runs one plan to its end (or none, when nothing can run) and keeps the
 * events. now_ns is compared with the requests' deadlines and never goes back. QUIRE_ERR_STATE: events of two ticks
 * have not been polled. QUIRE_ERR_RANK: a step failed; every request has failed with it. */
enum quire_status quire_engine_tick(struct quire_engine *engine, uint64_t now_ns, struct quire_error *error_out);
/* Between ticks, of an engine that may be idle for long: whether every rank is there. False: a rank has died, every
 * request has failed with it, and ticks are QUIRE_ERR_RANK from now on. Costs a system call a rank process. */
bool quire_engine_alive(struct quire_engine *engine);
/* Takes up to max events, oldest first. */
int32_t quire_engine_poll(struct quire_engine *engine, struct quire_engine_event *events_out, int32_t max);
/* Why a request failed: valid from its FAILED event until the next tick. NULL for one that did not. */
const struct quire_error *quire_engine_error(const struct quire_engine *engine, uint64_t id);
/* The request ends at the next tick with FAILED (QUIRE_ERR_CANCELLED). False: no such request (it has ended). A held
 * request that is done is released. */
bool quire_engine_cancel(struct quire_engine *engine, uint64_t id);
/* Ends the answer after the token drawn last: DONE (stop) comes with the next tick. For stop texts, which only the
 * caller can see. False: no such request, or it is not drawing. */
bool quire_engine_stop_request(struct quire_engine *engine, uint64_t id);
/* A paused request computes nothing and is the first to be preempted. False: no such request. */
bool quire_engine_pause(struct quire_engine *engine, uint64_t id, bool paused);
/* Requests that wait, run or drain: whether another tick has something to do. */
int32_t quire_engine_active(const struct quire_engine *engine);
/* Events a poll would find now. */
int32_t quire_engine_pending(const struct quire_engine *engine);
/* Drops all cached pages: at once, or when the last request that reads them ends. Returns their number. */
int32_t quire_engine_flush(struct quire_engine *engine);
void quire_engine_stats(const struct quire_engine *engine, struct quire_engine_stats *stats_out);

/* --- one request alone --- */

/* Submits a request with `hold` and admits it. QUIRE_ERR_STATE while another of these runs. Other errors as submit, and
 * QUIRE_ERR_AGAIN when it does not get in beside what runs. *hit_out (may be NULL): prompt tokens found in the
 * cache. */
enum quire_status quire_engine_start(struct quire_engine *engine, const struct quire_engine_request *request,
                                     int32_t *hit_out, struct quire_error *error_out);
/* Ticks once and answers the request's event: PREFILL, TOKEN, DONE; its failure is the call's. After DONE the rows of
 * the whole request are in their pages, until finish. Events of other requests are dropped. */
enum quire_status quire_engine_step(struct quire_engine *engine, struct quire_engine_event *event_out,
                                    struct quire_error *error_out);
/* Ends the answer after the token drawn last: the next step brings its rows home and answers DONE. */
void quire_engine_stop(struct quire_engine *engine);
/* Ends the request, in any state; its sealed pages stay cached. */
void quire_engine_finish(struct quire_engine *engine);

/* --- a request's rows, between ticks --- */

/* The request the following calls look at; quire_engine_start sets its own. False: no such request. */
bool quire_engine_watch(struct quire_engine *engine, uint64_t id);
/* Positions of the request whose rows are in pages; 0 when it has none. */
int32_t quire_engine_tokens(const struct quire_engine *engine);
/* Stored rows of a part of the request, positions [begin, end) in order, pieces joined: (end - begin) * row_bytes
 * bytes, wherever their pages lie. */
enum quire_status quire_engine_read(const struct quire_engine *engine, int32_t part, int32_t begin, int32_t end,
                                    uint8_t *rows_out, struct quire_error *error_out);
/* Pages of the request that a rank stores. */
int32_t quire_engine_rank_pages(const struct quire_engine *engine, int32_t rank);

/* Controls of the evaluation, on the cached pages of a prompt, between requests; both return the number of pages
 * changed. The first pairs the latents of every page with the index keys of the page `shift` further on; the second
 * overwrites the pages of tokens with those of another prompt. */
int32_t quire_engine_mispair(struct quire_engine *engine, const int32_t *tokens, int32_t count, int32_t shift);
int32_t quire_engine_replace(struct quire_engine *engine, const int32_t *tokens, int32_t count, const int32_t *others,
                             int32_t others_count);

const struct quire_parts *quire_engine_parts_of(const struct quire_engine *engine);
struct quire_cache *quire_engine_cache(struct quire_engine *engine);
/* Shows one rank's forward pass; between steps. False where ranks are processes. */
bool quire_engine_tap(struct quire_engine *engine, int32_t rank, const struct quire_tap *tap);
/* After steps of which none failed: what became of the configuration's fault. QUIRE_OK: there is none. QUIRE_ERR_STATE:
 * it was not put in, or nobody was to find it; the text says why. QUIRE_ERR_RANK: it was put in, read, and not found.
 * Pure. */
enum quire_status quire_engine_judge_fault(const struct quire_engine_config *config,
                                           const struct quire_engine_stats *stats, struct quire_error *error_out);
/* Every module's self-check, between steps. */
bool quire_engine_check_laws(const struct quire_engine *engine, struct quire_error *why_out);

#ifdef __cplusplus
}
#endif
#endif
