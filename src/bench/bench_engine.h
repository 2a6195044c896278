/* What benches of the whole engine share: the model of --model, workers over it, one request's run.
 *
 * Memory: the bench's. Threads: the caller's; ranks have theirs. */
#ifndef QUIRE_BENCH_BENCH_ENGINE_H
#define QUIRE_BENCH_BENCH_ENGINE_H

#include "bench/bench_harness.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens --model once; later calls find it open. */
enum quire_status bench_model_open(struct bench *bench, struct quire_error *error_out);

/* A worker that answers one prompt of random tokens again and again. */
struct bench_worker {
  struct bench *bench;
  struct quire_engine *engine;
  struct cli_tokens prompt;
  int32_t new_max; /* 1: prefill is measured, more: decode */
};

struct bench_worker_config {
  int32_t ranks;
  enum quire_sharing sharing;
  enum quire_view_mode view;
  int32_t prompt_tokens, new_max;
  struct quire_trace *trace; /* NULL: none */
};

enum quire_status bench_worker_open(struct bench *bench, const struct bench_worker_config *config,
                                    struct bench_worker *worker_out, struct quire_error *error_out);
void bench_worker_close(struct bench_worker *worker);
/* `run` of a side: nanoseconds of the prefill, or of the decode steps after one. */
enum quire_status bench_worker_run(void *worker, uint64_t *ns_out, struct quire_error *error_out);
/* Units of a run: prompt tokens, or decode steps. */
double bench_worker_units(const struct bench_worker *worker);

/* The products of a model's own layers, as a side: every thread its own rows. */
struct bench_products;
enum quire_status bench_products_open(struct bench *bench, int threads, int32_t rows,
                                      struct bench_products **products_out, struct quire_error *error_out);
void bench_products_close(struct bench_products *products);
void bench_products_work(void *products);
/* Operations of one call. */
double bench_products_operations(const struct bench_products *products);

/* Operations one prompt token needs on average: 2 * active parameters
 *   + per layer 2 * heads * selected * (576 + 512)   attention
 *   + per layer 2 * index heads * 128 * context      indexer */
double bench_token_operations(const struct bench *bench, int32_t prompt_tokens);
/* Bytes of weights one decoded token touches. */
double bench_token_bytes(const struct bench *bench);
/* Bytes of KV it touches behind so many positions: all index keys, and the selected latents. */
double bench_token_kv_bytes(const struct bench_worker *worker, int32_t positions);

#ifdef __cplusplus
}
#endif
#endif
