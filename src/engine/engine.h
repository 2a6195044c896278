/* The controller of a worker: one request at a time through shared pages, from tokens to tokens.
 *
 *   start   match the longest chain of cached pages, reserve the rest
 *   step    one step plan: a chunk of prefill split over all ranks, or one decode row at its home; then the acks become
 *           cache calls (commit, seal)
 *           the last step brings the uncommitted rows to their owners
 *   finish  the request ends, its sealed pages stay cached
 *
 * The engine reserves everything at creation; quire_engine_plan says how much before. Whatever the configuration
 * (ranks, split, sharing, view, chunk), tokens and stored KV bytes of a request are the same (design, law 6).
 *
 * Threads: one, the controller's. Errors: a request that cannot be served fails alone; a step that fails on a rank
 * (QUIRE_ERR_RANK) ends the engine: destroy it. */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "cache/cache.h"
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
  int32_t ctx_tokens;   /* longest request, prompt and answer */
  int32_t cache_tokens; /* of all pages; at least ctx_tokens */
  int threads_per_rank;
  bool poison;                      /* freed pages are overwritten with NaN before they are used again */
  enum quire_stream_mode copy_mode; /* QUIRE_STREAM_THREAD; DEFERRED in tests */
  uint64_t copy_seed;
  bool debug_shared_kv;        /* compare everything a view reads with what owners wrote */
  enum quire_view_fault fault; /* put in at step fault_epoch (from 1), for debug_shared_kv to find */
  uint64_t fault_epoch;
  struct quire_trace *trace; /* of layers and gather jobs, all ranks; NULL: off */
};

/* The memory plan: bytes one rank reserves, by purpose. */
struct quire_engine_memory {
  struct quire_step_memory rank;
  int64_t rope;         /* one table for all ranks */
  int64_t brain;        /* cache: page states, tree, page tables */
  int64_t bundle_bytes; /* of one page, all parts */
  int32_t pages;        /* of the worker */
  int32_t local_pages;  /* of the rank with most */
};

struct quire_engine_request {
  const int32_t *tokens; /* prompt; copied */
  int32_t count;
  int32_t new_max; /* tokens to draw; 0: prefill only */
  struct quire_sampling sampling;
  const int32_t *stops; /* tokens that end the answer */
  int32_t stop_count;
  bool no_match;               /* take nothing from the cache */
  int32_t flags;               /* QUIRE_ENTRY_SCORE, QUIRE_ENTRY_DRAFT_FULL */
  struct quire_step_row *rows; /* [count], filled for positions that were computed; NULL: not wanted */
};

enum quire_event_kind { QUIRE_EVENT_PREFILL, QUIRE_EVENT_TOKEN, QUIRE_EVENT_DONE };
enum quire_finish { QUIRE_FINISH_STOP, QUIRE_FINISH_LENGTH };

struct quire_engine_event {
  enum quire_event_kind kind;
  int32_t prefilled; /* prompt positions in the cache, hits included */
  int32_t token;     /* TOKEN */
  float logprob;
  enum quire_finish finish; /* DONE */
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

/* Begins a request. QUIRE_ERR_STATE while another runs; QUIRE_ERR_REQUEST when it can never fit or holds an id outside
 * the vocabulary. *hit_out (may be NULL): prompt tokens found in the cache. */
enum quire_status quire_engine_start(struct quire_engine *engine, const struct quire_engine_request *request,
                                     int32_t *hit_out, struct quire_error *error_out);
/* Runs one step. After DONE the rows of the whole request are in their pages, until finish. */
enum quire_status quire_engine_step(struct quire_engine *engine, struct quire_engine_event *event_out,
                                    struct quire_error *error_out);
/* Ends the answer after the token drawn last: the next step brings its rows home and answers DONE. */
void quire_engine_stop(struct quire_engine *engine);
/* Ends the request, in any state; its sealed pages stay cached. */
void quire_engine_finish(struct quire_engine *engine);

/* Positions of the running request whose rows are in pages. */
int32_t quire_engine_tokens(const struct quire_engine *engine);
/* Stored rows of a part of the running request, positions [begin, end) in order, pieces joined: (end - begin) *
 * row_bytes bytes, wherever their pages lie. Between steps. */
enum quire_status quire_engine_read(const struct quire_engine *engine, int32_t part, int32_t begin, int32_t end,
                                    uint8_t *rows_out, struct quire_error *error_out);
/* Pages of the running request that a rank stores. */
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
/* Every module's self-check, between steps. */
bool quire_engine_check_laws(const struct quire_engine *engine, struct quire_error *why_out);

#ifdef __cplusplus
}
#endif
#endif
