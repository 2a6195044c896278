/* Traces of requests in the format that Mooncake published (FAST'25): one JSON object a line,
 *
 *   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
 *
 * An id stands for a block of 512 tokens and, since it is a hash of a prefix, for all blocks before it; the last id of
 * a request stands for the remainder. The tokens themselves are not published: made-up ones take their place, such that
 * two blocks have the same tokens exactly if they have the same id.
 *
 * Memory: one trace, from env. Threads: constant after open. */
#ifndef QUIRE_BENCH_TRACE_FILE_H
#define QUIRE_BENCH_TRACE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRACE_BLOCK_TOKENS 512

struct trace_request {
  int64_t at_ms;
  int32_t input, output; /* tokens; input at least 1 */
  int64_t first;         /* its ids: trace->ids[first ...], ceil(input / 512) of them */
};

struct trace_file {
  const struct quire_env *env;
  struct trace_request *requests; /* [count] */
  int32_t *ids;                   /* [id_count] */
  int64_t count, id_count;
  int64_t count_max, id_max; /* room */
  int64_t input_tokens;
  int32_t longest;  /* input of any request */
  int32_t distinct; /* ids */
};

/* QUIRE_ERR_NOT_FOUND, _IO: the file; QUIRE_ERR_CORRUPT: a line that is none of the format, named; QUIRE_ERR_MEMORY. */
enum quire_status trace_file_open(const struct quire_env *env, const char *path, struct trace_file *trace_out,
                                  struct quire_error *error_out);
/* The same of a text in memory, which is not kept; name stands for the path in messages. */
enum quire_status trace_file_parse(const struct quire_env *env, const char *name, const char *text, size_t bytes,
                                   struct trace_file *trace_out, struct quire_error *error_out);
void trace_file_close(struct trace_file *trace);

/* Writes the request's input tokens to tokens_out[input]; all are at least 0. */
void trace_file_tokens(const struct trace_file *trace, const struct trace_request *request, int32_t *tokens_out);

#ifdef __cplusplus
}
#endif
#endif
