/* The load client of `quire bench serve`: requests by plan, sent to a server over non-blocking sockets from one thread,
 * and what became of each.
 *
 *   plan (lengths, prefixes, arrivals: a function of the seed) -> client (epoll, HTTP/1.1, SSE) -> report (CSV, HTML)
 *
 * Times are nanoseconds since the run began. A token's time is that of the read that brought its event. Memory: all
 * from env, by whoever creates an object. Threads: one. */
#ifndef QUIRE_BENCH_LOAD_H
#define QUIRE_BENCH_LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LOAD_NOTE_BYTES 160
#define LOAD_SLICE_NS 100000000u /* of the timeline */
#define LOAD_SLICES_MAX 36000

enum load_endpoint { LOAD_CHAT, LOAD_COMPLETIONS, LOAD_GENERATE };
enum load_lengths { LOAD_RANDOM, LOAD_SHAREGPT };

/* Filled from the option table. */
struct load_options {
  const char *url, *model, *api_key, *out;
  int endpoint; /* enum load_endpoint */
  int lengths;  /* enum load_lengths */
  int64_t requests, concurrency, input_tokens, output_tokens, prefixes, prefix_tokens, vocab, seed, timeout_s, warmup;
  double rate, range_ratio, temperature, disconnect;
  bool stop_at_eos, strict;
};

enum load_outcome {
  LOAD_WAITING,   /* not sent, or without an end */
  LOAD_OK,        /* ended with [DONE] */
  LOAD_CUT,       /* we closed the connection, as planned */
  LOAD_CONNECT,   /* no connection */
  LOAD_RESET,     /* the connection ended before the answer did */
  LOAD_TRUNCATED, /* the body ended without [DONE] */
  LOAD_PROTOCOL,  /* no HTTP, or events that are none */
  LOAD_HTTP_4XX,  /* other than 429 */
  LOAD_HTTP_429,
  LOAD_HTTP_5XX,
  LOAD_STREAM_ERROR, /* an error event */
  LOAD_TIMEOUT,
  LOAD_OUTCOMES,
};

struct load_request {
  uint64_t at_ns;                /* when it should be sent; 0 in a closed loop */
  uint64_t seed;                 /* of its text */
  int32_t input, output, prefix; /* tokens, tokens, which prefix (-1: none) */
  int32_t cut;                   /* close after so many events, 0: as soon as it is sent; -1: never */

  enum load_outcome outcome;
  int status; /* HTTP's, 0: none came */
  uint64_t sent_ns, first_ns, last_ns, done_ns;
  int32_t events;                                          /* with text */
  int32_t prompt_tokens, completion_tokens, cached_tokens; /* -1: the server did not say */
};

struct load_run {
  const struct quire_env *env;
  const struct load_options *options;
  char host[256], port[8], base[256], model[256]; /* of the URL; what requests name */
  struct load_request *requests;                  /* [count] */
  int64_t count;
  float *itl_ms; /* [itl_max]: times between tokens of all requests */
  int64_t itl_count, itl_max;
  uint32_t *slices;                           /* [LOAD_SLICES_MAX]: tokens by time */
  char notes[LOAD_OUTCOMES][LOAD_NOTE_BYTES]; /* what was said with the first of each outcome */
  uint64_t elapsed_ns;
  int64_t running_max; /* most requests in flight at a time */
};

/* "ok", "cut", "connect", ... */
const char *load_outcome_name(enum load_outcome outcome);

/* Reads the URL and makes the plan. QUIRE_ERR_ARGUMENT: options; QUIRE_ERR_MEMORY. */
enum quire_status load_plan(const struct quire_env *env, const struct load_options *options, struct load_run *run_out,
                            struct quire_error *error_out);
void load_free(struct load_run *run);
/* Appends the JSON body of a request. */
void load_body(const struct load_run *run, const struct load_request *request, struct quire_strbuf *body);

/* Sends every request and waits for its end; what becomes of a request is in it, whatever it is. QUIRE_ERR_IO: the
 * host has no address, or there is no epoll; QUIRE_ERR_MEMORY. */
enum quire_status load_send(struct load_run *run, struct quire_error *error_out);
/* The body of one GET, for the model's name; waits. QUIRE_ERR_IO, _MEMORY; *status_out is HTTP's. */
enum quire_status load_get(const struct load_run *run, const char *path, struct quire_strbuf *body, int *status_out,
                           struct quire_error *error_out);

/* What a run comes to. */
struct load_percentiles {
  int64_t count;
  double mean, p50, p90, p95, p99, max;
};
struct load_summary {
  struct load_percentiles ttft_ms, itl_ms, tpot_ms, e2e_ms, late_ms; /* late: sent after its time, the client's fault */
  int64_t outcomes[LOAD_OUTCOMES];
  int64_t input_tokens, output_tokens, cached_tokens; /* of requests that ended well */
  double seconds;
};
enum quire_status load_summarise(const struct load_run *run, struct load_summary *summary_out,
                                 struct quire_error *error_out);
void load_print(const struct load_run *run, const struct load_summary *summary);
/* requests.csv, summary.csv and report.html in options->out. QUIRE_ERR_IO, _MEMORY. */
enum quire_status load_write(const struct load_run *run, const struct load_summary *summary,
                             struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
