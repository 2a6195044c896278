/* The inside of the engine, shared by the files of this folder.
 *
 *   engine.c         configuration, memory plan, creation
 *   engine_step.c    a request's way: plans and acknowledgements
 *   engine_inspect.c stored rows, controls of the evaluation, self-checks */
#ifndef QUIRE_ENGINE_ENGINE_PRIVATE_H
#define QUIRE_ENGINE_ENGINE_PRIVATE_H

#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum request_phase {
  PHASE_NONE,
  PHASE_PREFILL,
  PHASE_DECODE,
  PHASE_FLUSH, /* the last rows wait for their owners */
  PHASE_DONE,
};

struct active_request {
  enum request_phase phase;
  quire_cache_request handle;
  struct quire_engine_request args;
  int32_t *tokens;    /* [ctx_tokens] prompt, then what was drawn */
  int32_t count;      /* tokens known */
  int32_t computed;   /* rows computed: pages and local segment */
  int32_t paged;      /* rows in pages, behind a fence */
  int32_t carry_rank; /* holds the hidden state of computed - 1, or -1 */
  int32_t announced;  /* pages of the table the ranks know */
  int32_t listed;     /* position up to which the ranks have the list of the penalties; -1: nothing of it */
  int32_t drawn;
  enum quire_finish finish;
};

struct quire_engine {
  const struct quire_env *env;
  struct quire_engine_config config;
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_step_config step;
  struct quire_cache *cache;
  struct quire_step_executor *executor;
  struct quire_step_plan *plan;
  uint64_t epoch;
  bool failed;
  struct active_request active;
};

/* Opens a request in the cache. Where evicted pages have to pass through the banks first (poison), it sees them through
 * and asks again, as often as that brings pages. Errors as quire_cache_request_begin. */
enum quire_status quire_engine_begin(struct quire_engine *engine, const struct quire_cache_fill *fill,
                                     quire_cache_request *handle_out, struct quire_error *error_out);

/* Moves commands of the cache to the banks and their acknowledgements back. wait: until none is open. */
enum quire_status quire_engine_pump(struct quire_engine *engine, bool wait, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
