/* One engine, one request, everything that must not depend on how the worker is built: stored rows of every part in
 * request order, tokens, bits of log-probabilities.
 *
 * Results belong to the caller (exact_result_free). Everything that goes wrong fails the test. Threads: one. */
#ifndef QUIRE_TESTS_EXACT_RUN_H
#define QUIRE_TESTS_EXACT_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "support/exact_model.h"

#define EXACT_NEW_MAX 128
#define EXACT_TOPS 5
#define EXACT_PROMPT_TOPS 3
#define EXACT_TEXT_BYTES 512

/* What the cache holds when the request starts. */
enum exact_source {
  EXACT_COLD,
  EXACT_HIT,       /* the same prompt ran before */
  EXACT_PARTIAL,   /* a prompt ran that shares the first three fifths of this one */
  EXACT_ABANDONED, /* the same prompt ran for one or two chunks and was given up */
  EXACT_SOURCES,
};

/* What else the request asks of sampling. */
enum exact_sampling {
  EXACT_PLAIN,
  EXACT_PENALISED,  /* all three penalties */
  EXACT_BIASED,     /* a bias list, and stops that may not be drawn yet */
  EXACT_EVERYTHING, /* both, every cut, and likeliest tokens */
  EXACT_SAMPLINGS,
};

/* Who runs beside the request. */
enum exact_company {
  EXACT_ALONE,
  EXACT_AMONG,     /* seven others of mixed lengths, some with the same prefix, one of them given up */
  EXACT_PREEMPTED, /* as many, which take its pages in the middle of its way */
  EXACT_COMPANIES,
};

struct exact_cell {
  struct exact_model *model;
  enum quire_dtype compute;
  float latent_norm_eps; /* 0: 1e-6, as transformers has it */
  bool hadamard, any_scale;
  enum quire_kv_format kv;
  bool mtp;

  int32_t ranks;
  enum quire_split split;
  enum quire_sharing sharing;
  enum quire_view_mode view;
  int32_t chunk; /* 0: the whole prompt */
  int threads;
  const char *executor;
  const char *isa;
  bool mapped; /* weights stay as they are where these kernels have a layout of their own */
  enum quire_stream_mode copy_mode;
  uint64_t copy_seed;
  bool debug; /* of the shared pages: it must find nothing */

  enum exact_company company;
  bool warm; /* another prompt ran before, so that page ids are others */
  enum exact_source source;
  int32_t slack_pages; /* of the cache, beyond what is needed */

  const int32_t *tokens;
  int32_t length;
  int32_t new_max;
  float temperature;
  enum exact_sampling sampling;
  bool scored; /* log-probabilities of the prompt's second half */
};

struct exact_result {
  int32_t hit;
  bool ended;
  int32_t count; /* rows of the request in pages */
  int32_t drawn;
  int32_t token[EXACT_NEW_MAX];
  float logprob[EXACT_NEW_MAX];
  int32_t top_count[EXACT_NEW_MAX];
  struct quire_top top[EXACT_NEW_MAX][EXACT_TOPS];
  int32_t scored_begin, scored_end; /* prompt positions with log-probabilities */
  struct quire_step_row *scored;    /* [scored_end] */
  struct quire_top *scored_top;     /* [scored_end][EXACT_PROMPT_TOPS] */
  int32_t parts;
  int32_t row_bytes[QUIRE_PARTS_MAX];
  uint8_t *rows[QUIRE_PARTS_MAX]; /* [count * row_bytes] */
};

/* One rank, one thread, one chunk, view local, cold, bf16, no draft layer, greedy. */
struct exact_cell exact_cell_defaults(struct exact_model *model, const int32_t *tokens, int32_t length);
void exact_cell_text(const struct exact_cell *cell, char text_out[EXACT_TEXT_BYTES]);

struct quire_engine_config exact_engine_config(const struct exact_cell *cell, int32_t ctx_tokens, int32_t cache_tokens);
struct quire_engine *exact_engine_open(const struct exact_cell *cell, int32_t ctx_tokens, int32_t cache_tokens);
/* The cell's request; the caller may change it before it starts. */
struct quire_engine_request exact_request(const struct exact_cell *cell);
/* Runs a request to its end, reads it, finishes it. result_out may be NULL. */
void exact_engine_run(struct quire_engine *engine, const struct quire_engine_request *request,
                      struct exact_result *result_out);
/* Steps to DONE, drawn tokens into result; the request stays for the caller to look at. */
void exact_engine_finish_steps(struct quire_engine *engine, struct exact_result *result);
/* Reads the rows of the running request into result. */
void exact_engine_collect(struct quire_engine *engine, struct exact_result *result);
/* Laws hold, and with no request every page is free or cached. */
void exact_engine_check_idle(struct quire_engine *engine);

/* Ticks until the request has ended; its tokens into result. Other events are dropped. */
void exact_engine_serve(struct quire_engine *engine, uint64_t id, struct exact_result *result);

/* The whole cell: engine, history, request, company. */
void exact_cell_run(const struct exact_cell *cell, struct exact_result *result_out);
/* False, with the first difference in text, unless got equals the reference in everything got has: a result without
 * draft layer is compared in its target parts. */
bool exact_results_equal(const struct exact_result *reference, const struct exact_result *got,
                         char text_out[EXACT_TEXT_BYTES]);
void exact_result_free(struct exact_result *result);

#endif
