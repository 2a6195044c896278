/* The server: OpenAI's and SGLang's HTTP interfaces over one worker.
 *
 *     clients --HTTP--> loop thread --large bodies--> text threads (JSON, template, tokens)
 *                          |  ^  <------ jobs done ------+
 *                   submit |  | tickets with news
 *                          v  |
 *                         worker (engine/worker.h)
 *
 * The loop thread owns everything here but what a text thread works on; a request of few bytes never leaves it. Streams
 * are written as tokens come; a client that does not read leaves them in its ticket's ring, so that nothing grows.
 *
 * Life: create binds the address, so that health can be asked while a model loads (503); attach makes it ready; drain
 * makes it unready, then deaf, then ends run. A client that leaves, in any state, has its request cancelled.
 *
 * Memory: env's, but JSON trees (malloc's). Threads: create, run and destroy from one; attach, drain, stop from any. */
#ifndef QUIRE_SERVER_SERVER_H
#define QUIRE_SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/option.h"
#include "base/status.h"
#include "engine/worker.h"
#include "net/http_server.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_server;

enum { QUIRE_COMPAT_NONE, QUIRE_COMPAT_SGLANG, QUIRE_COMPAT_VLLM };

/* Filled from the rows below. */
struct quire_server_options {
  const char *host, *api_key, *api_key_file, *served_name;
  int64_t port, connections, body_bytes, head_bytes, text_threads, bodies_bytes;
  double head_seconds, body_seconds, idle_seconds, write_seconds, request_seconds;
  double drain_delay_seconds, shutdown_seconds, keepalive_seconds, health_seconds;
  int compat, metrics_compat;
  bool log_requests;
};

extern const struct quire_option quire_server_rows[];
extern const int quire_server_row_count;

/* What is served; the caller's, alive until the server is destroyed. */
struct quire_server_model {
  const char *name, *path, *family; /* name: without --served-model-name */
  const char *version, *view, *kv_format, *numerics;
  struct quire_worker *worker;
  const struct quire_tokenizer *tokenizer;
  const struct quire_chat *chat; /* NULL: the model has no template we know; chat is refused */
  const int32_t *eos;            /* tokens that end an answer */
  int32_t eos_count;
  int32_t vocab;        /* ids of the model; requests name smaller ones */
  int32_t ctx_tokens;   /* prompt and answer together */
  int32_t cache_tokens; /* of all pages */
  int32_t page_tokens, ranks, running_max, queue_max;
  int64_t weight_bytes, kv_bytes; /* of the worker; /v1/loads tells them */
  struct quire_sampling defaults;
};

/* Binds and listens, and reads the key file. QUIRE_ERR_ARGUMENT, _IO, _NOT_FOUND, _MEMORY. options live on. */
enum quire_status quire_server_create(const struct quire_env *env, const struct quire_server_options *options,
                                      struct quire_server **server_out, struct quire_error *error_out);
/* After run has returned. NULL is allowed. */
void quire_server_destroy(struct quire_server *server);
int quire_server_port(const struct quire_server *server);
/* The loop, for descriptors of the caller's (signals). */
struct quire_loop *quire_server_loop(struct quire_server *server);
/* Reads the key file again; where it cannot be read the keys stay, and the log says why. The loop's thread. */
void quire_server_reload_keys(struct quire_server *server);
/* Serves until drained or stopped. */
enum quire_status quire_server_run(struct quire_server *server, struct quire_error *error_out);

/* --- any thread --- */

/* The model is there: ready from now on. Once. */
void quire_server_attach(struct quire_server *server, const struct quire_server_model *model);
/* Not ready from now on; after the drain delay nothing new is taken; when all are done run returns, and also when the
 * shutdown time has passed: what is open then is answered with 503. */
void quire_server_drain(struct quire_server *server);
/* Open requests are answered with 503, as far as their sockets take it, and run returns. */
void quire_server_stop(struct quire_server *server);

#ifdef __cplusplus
}
#endif
#endif
