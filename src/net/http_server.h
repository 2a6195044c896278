/* Connections that carry HTTP/1.1: reads requests strictly (http_parse.h), hands them over whole, writes answers.
 *
 *   accept -> HEAD -> BODY -> BUSY: the handler has it -> answered -> HEAD ...     one request of a connection at a
 *               |       |       | client leaves                                    time; what it pipelines waits
 *               +-------+-------+--> gone, within one turn of the loop
 *
 * A request is an exchange. The handler answers it when it likes, at once or later, whole or as a stream of chunks;
 * until then a client that leaves is noticed in every state (a closed sending side counts as leaving), and the handler
 * told by `gone`: a connection is always read, since a full socket would hide its end. Whoever pipelines more than 256
 * KiB behind an open request loses what is behind it, and the connection with the answer. Nothing may touch an exchange
 * after it was answered to its end, aborted or gone.
 *
 * Slow clients: a head, a body and unread output have a deadline each. Output that waits is shown by
 * quire_http_pending; whoever streams stops at out_bytes and is called by `room` when it has drained. Between two
 * requests a connection is not read while earlier ones wait for their turn, or more than out_bytes for its client:
 * nobody can pile up answers. Bodies of all connections share one budget, unread answers another of the same size: a
 * large answer that finds it used up is replaced by 503.
 *
 * Every answer, a refusal too, has the line X-Request-Id: the client's, or one that is made.
 *
 * libevent waits for the sockets; its bufferevents are not used, since they stop reading, and with it noticing that a
 * client left, when a pipelined rest fills their buffer, and write a turn of the loop later.
 *
 * Memory: connections are from env, made on accept and given back. Threads: the loop's. */
#ifndef QUIRE_NET_HTTP_SERVER_H
#define QUIRE_NET_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "net/http_parse.h"
#include "net/loop.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_HTTP_ID_BYTES_MAX 128

struct quire_http_server;
struct quire_http_exchange;

/* All above 0. */
struct quire_http_limits {
  int connections;
  size_t head_bytes;
  size_t body_bytes;
  size_t bodies_bytes; /* of all connections together; and so much of answers may wait for their readers */
  size_t out_bytes;    /* pending output at which a stream should pause, and no further request is taken up */
  uint64_t idle_ns;    /* between requests */
  uint64_t head_ns;    /* from a head's first byte to its last */
  uint64_t body_ns;    /* the same for a body */
  uint64_t write_ns;   /* without a byte taken by the client while output waits */
};

struct quire_http_limits quire_http_limits_default(void);

struct quire_http_handler {
  void *context;
  /* The head is complete, its body not read yet. False: the handler has answered (no key, no such route). */
  bool (*begin)(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head);
  /* The request is complete. head is valid during the call; the body until the exchange ends, or is taken. */
  void (*request)(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head);
  /* The client left before the answer's end: the exchange is void after this call. */
  void (*gone)(void *context, struct quire_http_exchange *exchange);
  /* Pending output fell below half of out_bytes, having been above out_bytes. */
  void (*room)(void *context, struct quire_http_exchange *exchange);
  /* Adds the body of an answer to a request that is no proper HTTP or against a limit, as JSON. */
  void (*refuse)(void *context, int status, const char *why, struct quire_strbuf *body);
};

struct quire_http_config {
  const char *host; /* an address or name; NULL: 127.0.0.1 */
  int port;         /* 0: any */
  struct quire_http_limits limits;
  struct quire_http_handler handler;
};

/* Since creation, but connections, exchanges and unread, which are now. */
struct quire_http_stats {
  int64_t accepted, over_limit; /* connections */
  int64_t requests, refused, timeouts, gone, slow_readers;
  int64_t bytes_in, bytes_out;
  int64_t unread; /* bytes of answers that wait for their readers */
  int connections, exchanges;
};

/* Binds and listens. QUIRE_ERR_ARGUMENT (host, limits), QUIRE_ERR_IO (the address is in use, ...), QUIRE_ERR_MEMORY. */
enum quire_status quire_http_server_create(const struct quire_env *env, struct quire_loop *loop,
                                           const struct quire_http_config *config,
                                           struct quire_http_server **server_out, struct quire_error *error_out);
/* Drops all connections without a word (and without `gone`). NULL is allowed. */
void quire_http_server_destroy(struct quire_http_server *server);
int quire_http_server_port(const struct quire_http_server *server);
void quire_http_server_stats(const struct quire_http_server *server, struct quire_http_stats *stats_out);
/* Answers from now on end their connections, and idle ones close. With listening false no new ones are accepted. */
void quire_http_server_drain(struct quire_http_server *server, bool listening);

/* --- an exchange --- */

/* The handler's own pointer; NULL at the start. */
void quire_http_set_user(struct quire_http_exchange *exchange, void *user);
void *quire_http_user(const struct quire_http_exchange *exchange);
struct quire_http_slice quire_http_body(const struct quire_http_exchange *exchange);
/* Moves the body into *body_out, an initialised buffer without memory of its own yet. */
void quire_http_take_body(struct quire_http_exchange *exchange, struct quire_strbuf *body_out);

/* The request's X-Request-Id, when it can stand in an answer: 1 to QUIRE_HTTP_ID_BYTES_MAX printable characters, no
 * blank among them. NULL: it has none; then the answer has what quire_http_set_id says, or 32 hexadecimal digits. */
const char *quire_http_id(const struct quire_http_exchange *exchange);
/* Names a request that has no name; id is copied, and as the client's would be. */
void quire_http_set_id(struct quire_http_exchange *exchange, const char *id);

struct quire_http_answer {
  int status;
  const char *type;   /* Content-Type */
  const char *fields; /* more lines, each "Name: value\r\n"; NULL: none */
  const char *body;
  size_t bytes;
};
/* A whole answer; ends the exchange. */
void quire_http_answer(struct quire_http_exchange *exchange, const struct quire_http_answer *answer);
/* Begins an answer whose length is not known: body and bytes are the first piece. False: no memory; abort it. */
bool quire_http_stream_begin(struct quire_http_exchange *exchange, const struct quire_http_answer *answer);
/* Sends a piece (nothing, when bytes is 0), in one chunk. False: no memory; abort it. Written at the
 * end of the loop's turn, with what else was sent in it. */
bool quire_http_stream_send(struct quire_http_exchange *exchange, const char *bytes, size_t count);
/* Ends the stream and the exchange. */
void quire_http_stream_end(struct quire_http_exchange *exchange);
/* Output the client has not taken yet. */
size_t quire_http_pending(const struct quire_http_exchange *exchange);
/* Cuts the connection; the client sees an answer that ends too early. Ends the exchange. */
void quire_http_abort(struct quire_http_exchange *exchange);

#ifdef __cplusplus
}
#endif
#endif
