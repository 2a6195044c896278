/* One answer as the load client reads it: bytes of HTTP/1.1 in, cut anywhere; its tokens, counts and outcome out. What
 * comes out does not depend on where the bytes were cut.
 *
 *   begin -> feed ... feed -> an outcome, or the connection ends -> lost -> an outcome
 *
 * Knows no socket and no clock, so that a test and a fuzzer can be the server. Memory: grows with heads and lines, from
 * env; kept between answers, given back by fini. Threads: one owner. */
#ifndef QUIRE_BENCH_LOAD_RESPONSE_H
#define QUIRE_BENCH_LOAD_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/strbuf.h"
#include "bench/load.h"
#include "net/http_parse.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LOAD_HEAD_BYTES_MAX 65536
#define LOAD_LINE_BYTES_MAX (1 << 22)

/* Called for each event with text; false: the answer is cut here (LOAD_CUT). */
typedef bool load_token_fn(void *context);

struct load_response {
  int status; /* HTTP's, 0: none came */
  bool begun; /* a byte has come */
  bool keep;  /* with an outcome: the connection can carry another request */
  int32_t prompt_tokens, completion_tokens, cached_tokens; /* -1: the server did not say */
  char note[LOAD_NOTE_BYTES]; /* with an outcome: what was said, without control characters; "" for nothing */
  bool no_memory;             /* the answer cannot be read to its end */

  /* private */
  load_token_fn *on_token;
  void *context;
  bool in_body, event_stream, chunked, done_seen, failed_event;
  int64_t left; /* of a body with a length; -1: none is known */
  struct quire_strbuf head, line;
  struct quire_http_scan scan;
  struct quire_http_chunked chunks;
};

void load_response_init(struct load_response *response, const struct quire_env *env);
void load_response_fini(struct load_response *response);
/* A new answer; what was known of the last one is forgotten. */
void load_response_begin(struct load_response *response, load_token_fn *on_token, void *context);
/* LOAD_WAITING: there is more to come. After another outcome only begin and fini are allowed; bytes behind the answer
 * cost the connection. */
enum load_outcome load_response_feed(struct load_response *response, const char *bytes, size_t count);
/* The connection ended first, why for the note: a body without a length ends so, every other answer is LOAD_RESET. */
enum load_outcome load_response_lost(struct load_response *response, const char *why);

#ifdef __cplusplus
}
#endif
#endif
