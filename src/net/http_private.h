/* A connection and the server it belongs to, for the files that make up http_server.h. */
#ifndef QUIRE_NET_HTTP_PRIVATE_H
#define QUIRE_NET_HTTP_PRIVATE_H

#include <event2/buffer.h>

#include "base/list.h"
#include "net/http_server.h"
#include "net/loop_private.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One read of a socket. */
#define QUIRE_HTTP_READ_BYTES ((size_t)64 << 10)
/* What a client may pipeline behind a request that is being answered. */
#define QUIRE_HTTP_AHEAD_BYTES ((size_t)256 << 10)
/* What the system keeps of unread output; left alone it takes megabytes for a reader that stopped. */
#define QUIRE_HTTP_SEND_BYTES (128 << 10)
#define QUIRE_HTTP_TICK_NS ((uint64_t)200 * 1000 * 1000)
/* After an answer that ends the connection so long is read and dropped, so that the answer arrives; and in all so
 * much. */
#define QUIRE_HTTP_LINGER_NS ((uint64_t)1000 * 1000 * 1000)
#define QUIRE_HTTP_DROP_BYTES ((size_t)16 << 20)

enum quire_http_state {
  QUIRE_HTTP_HEAD,   /* reading a head */
  QUIRE_HTTP_BODY,   /* reading a body */
  QUIRE_HTTP_BUSY,   /* the handler has the request */
  QUIRE_HTTP_CLOSE,  /* output goes out, then the end */
  QUIRE_HTTP_LINGER, /* nothing goes out any more; what comes in is dropped */
  QUIRE_HTTP_DEAD,   /* closed, waiting to be freed */
};

struct quire_http_exchange {
  struct quire_http_server *server;
  struct quire_list node; /* in connections or dead */
  struct quire_list turn; /* in turns, when its input is to be looked at again */
  int fd;
  enum quire_http_state state;
  struct event readable, writable;
  bool overrun;        /* more was pipelined than is kept: input is dropped */
  bool held;           /* not read: requests that came wait for their turn, or answers for their reader */
  bool want_write;     /* `writable` is added */
  bool in_input;       /* inside quire_http_input: output waits for its end */
  bool streaming;      /* the head of a streamed answer is out */
  bool chunked_answer; /* its pieces are chunks */
  bool head_only;      /* HEAD */
  bool drop_body;      /* answered before its body was read: the connection ends */
  bool full;           /* output was above out_bytes: call room */
  bool eof;            /* the client's side is closed */
  void *user;
  char id[QUIRE_HTTP_ID_BYTES_MAX + 1]; /* X-Request-Id; empty: none yet */
  struct quire_http_scan scan;
  struct quire_http_chunked chunked;
  struct quire_http_head head;
  struct quire_strbuf head_text, in, body;
  struct evbuffer *out;
  uint64_t since_ns; /* begin of the state that a deadline counts from */
  uint64_t wrote_ns; /* when output last moved */
  size_t counted;    /* of out, in server->waiting */
  size_t dropped;
};

struct quire_http_server {
  const struct quire_env *env;
  struct quire_http_config config;
  struct quire_loop *loop;
  int listen_fd, port;
  bool accepting, draining;
  struct event accept, tick, turn;
  struct quire_list connections, turns, dead;
  struct quire_http_stats stats;
  size_t bodies;  /* bytes of bodies held now */
  size_t waiting; /* bytes of output that clients have not taken */
  int64_t date_second;
  char date[64]; /* "Date: ...\r\n" of date_second */
  char *scratch; /* QUIRE_HTTP_READ_BYTES */
};

uint64_t quire_http_now(const struct quire_http_server *server);
/* 32 hexadecimal digits, for who was given no name. */
void quire_http_make_id(const struct quire_http_server *server, char id_out[QUIRE_HTTP_ID_BYTES_MAX + 1]);
/* Takes over fd; closes it when there is no memory. */
void quire_http_connect(struct quire_http_server *server, int fd);
/* Ends a connection: closes its socket, tells the handler if it has the request and `tell`. Freed later. */
void quire_http_lose(struct quire_http_exchange *exchange, bool tell);
void quire_http_free(struct quire_http_exchange *exchange);
/* Looks at input that is already there. */
void quire_http_turn(struct quire_http_exchange *exchange);
/* Checks the deadlines of a connection. */
void quire_http_check(struct quire_http_exchange *exchange, uint64_t now);
/* Ends a connection that is idle, between requests. */
void quire_http_end_idle(struct quire_http_exchange *exchange);

#ifdef __cplusplus
}
#endif
#endif
