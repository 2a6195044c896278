/* One connection: what comes in, what goes out, when it ends (http_server.h). */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/wall.h"
#include "net/http_private.h"

/* Reads of a socket, and requests answered, before others get their turn. */
enum { READS_PER_TURN = 4, REQUESTS_PER_TURN = 32, ANSWER_HEAD_BYTES = 1024 };

static void schedule(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->server != NULL);
  if (quire_list_empty(&exchange->turn)) {
    quire_list_push_back(&exchange->server->turns, &exchange->turn);
  }
  event_active(&exchange->server->turn, 0, 0);
}

/* Keeps the sum of all output up to date. */
static void count_output(struct quire_http_exchange *exchange, size_t bytes) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(server->waiting >= exchange->counted);
  server->waiting += bytes - exchange->counted;
  exchange->counted = bytes;
}

/* Whether the socket is read. A client that has closed its side never is again. */
static void hold_input(struct quire_http_exchange *exchange, bool held) {
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (held == exchange->held || exchange->eof) {
    return;
  }
  exchange->held = held;
  if (held) {
    event_del(&exchange->readable);
  } else {
    event_add(&exchange->readable, NULL);
  }
}

/* Bytes that came and were not looked at. What was, and is no whole head yet, needs others to come first. */
static bool has_more(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->in.bytes == 0 || exchange->scan.seen <= exchange->in.bytes);
  return exchange->state == QUIRE_HTTP_HEAD && exchange->in.bytes > exchange->scan.seen;
}

/* Answers of earlier requests that their client does not read: the next request waits. */
static bool is_full(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->server != NULL);
  return evbuffer_get_length(exchange->out) >= exchange->server->config.limits.out_bytes;
}

/* Whether a name may stand in a line of an answer. */
static bool is_id(struct quire_http_slice name) {
  QUIRE_ASSERT(name.data != NULL);
  for (size_t i = 0; i < name.bytes; i++) {
    if ((unsigned char)name.data[i] <= 0x20 || (unsigned char)name.data[i] >= 0x7f) {
      return false;
    }
  }
  return name.bytes > 0 && name.bytes <= QUIRE_HTTP_ID_BYTES_MAX;
}

static void release_body(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->server->bodies >= exchange->body.bytes);
  exchange->server->bodies -= exchange->body.bytes;
  quire_strbuf_fini(&exchange->body);
  quire_strbuf_init(&exchange->body, exchange->server->env);
}

void quire_http_lose(struct quire_http_exchange *exchange, bool tell) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  bool busy = exchange->state == QUIRE_HTTP_BUSY;
  exchange->state = QUIRE_HTTP_DEAD;
  event_del(&exchange->readable);
  event_del(&exchange->writable);
  close(exchange->fd);
  release_body(exchange);
  count_output(exchange, 0);
  quire_list_remove(&exchange->turn);
  quire_list_remove(&exchange->node);
  quire_list_push_back(&server->dead, &exchange->node);
  event_active(&server->turn, 0, 0);
  server->stats.connections--;
  server->stats.exchanges -= busy ? 1 : 0;
  if (busy && tell) {
    server->stats.gone++;
    server->config.handler.gone(server->config.handler.context, exchange);
  }
}

void quire_http_free(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_DEAD);
  quire_strbuf_fini(&exchange->head_text);
  quire_strbuf_fini(&exchange->in);
  quire_strbuf_fini(&exchange->body);
  evbuffer_free(exchange->out);
  quire_env_free(exchange->server->env, exchange, 1, sizeof *exchange);
}

/* --- output --- */

/* The end of a connection that has said everything: the client may still be sending, and a socket that is closed with
 * unread bytes resets the connection before the client has read its answer. */
static void begin_linger(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(evbuffer_get_length(exchange->out) == 0);
  if (exchange->eof || shutdown(exchange->fd, SHUT_WR) != 0) {
    quire_http_lose(exchange, false);
    return;
  }
  hold_input(exchange, false);
  exchange->state = QUIRE_HTTP_LINGER;
  exchange->since_ns = quire_http_now(exchange->server);
  quire_strbuf_fini(&exchange->in);
  quire_strbuf_init(&exchange->in, exchange->server->env);
}

/* Writes what the socket takes. The connection may be dead afterwards. */
static void flush(struct quire_http_exchange *exchange) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  while (evbuffer_get_length(exchange->out) > 0) {
    int wrote = evbuffer_write(exchange->out, exchange->fd);
    if (wrote <= 0) {
      if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) {
        break;
      }
      quire_http_lose(exchange, true);
      return;
    }
    server->stats.bytes_out += wrote;
    exchange->wrote_ns = quire_http_now(server);
  }
  size_t left = evbuffer_get_length(exchange->out);
  count_output(exchange, left);
  if (left > 0 && !exchange->want_write) {
    event_add(&exchange->writable, NULL);
    exchange->want_write = true;
    exchange->wrote_ns = quire_http_now(server);
  } else if (left == 0 && exchange->want_write) {
    event_del(&exchange->writable);
    exchange->want_write = false;
  }
  if (left == 0 && exchange->state == QUIRE_HTTP_CLOSE) {
    begin_linger(exchange);
  } else if (left <= server->config.limits.out_bytes / 2) {
    bool was_full = exchange->full;
    exchange->full = false;
    if (was_full && exchange->state == QUIRE_HTTP_BUSY) {
      server->config.handler.room(server->config.handler.context, exchange);
    } else if ((exchange->held || (exchange->eof && has_more(exchange))) && exchange->state == QUIRE_HTTP_HEAD) {
      schedule(exchange);
    }
  }
}

static void on_writable(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  struct quire_http_exchange *exchange = context;
  QUIRE_ASSERT(exchange->want_write);
  flush(exchange);
}

static const char *date_line(struct quire_http_server *server) {
  int64_t ms = quire_wall_ms();
  QUIRE_ASSERT(ms > 0);
  if (ms / 1000 != server->date_second) {
    char date[QUIRE_WALL_HTTP_BYTES];
    quire_wall_http(ms, date);
    snprintf(server->date, sizeof server->date, "Date: %s\r\n", date);
    server->date_second = ms / 1000;
  }
  return server->date;
}

/* Adds status line and fields; framing is one line. */
static bool add_head(struct quire_http_exchange *exchange, const struct quire_http_answer *answer,
                     const char *framing) {
  char head[ANSWER_HEAD_BYTES];
  bool keep = exchange->head.keep_alive && !exchange->drop_body && !exchange->server->draining;
  if (exchange->id[0] == '\0') {
    quire_http_make_id(exchange->server, exchange->id);
  }
  int bytes =
      snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n%sContent-Type: %s\r\nX-Request-Id: %s\r\n%s%s", answer->status,
               quire_http_phrase(answer->status), date_line(exchange->server), answer->type, exchange->id, framing,
               keep ? (exchange->head.minor == 0 ? "Connection: keep-alive\r\n" : "") : "Connection: close\r\n");
  QUIRE_ASSERT(bytes > 0 && (size_t)bytes < sizeof head);
  exchange->head.keep_alive = keep;
  return evbuffer_add(exchange->out, head, (size_t)bytes) == 0 &&
         (answer->fields == NULL || evbuffer_add(exchange->out, answer->fields, strlen(answer->fields)) == 0) &&
         evbuffer_add(exchange->out, "\r\n", 2) == 0;
}

/* The exchange is over: the connection takes the next request, or ends. */
static void end_exchange(struct quire_http_exchange *exchange) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  server->stats.exchanges--;
  exchange->user = NULL;
  exchange->id[0] = '\0';
  exchange->streaming = false;
  release_body(exchange);
  exchange->state = exchange->head.keep_alive ? QUIRE_HTTP_HEAD : QUIRE_HTTP_CLOSE;
  exchange->scan = (struct quire_http_scan){0};
  exchange->since_ns = quire_http_now(server);
  if (exchange->in_input) {
    return; /* its end flushes and goes on */
  }
  flush(exchange);
  if (exchange->state == QUIRE_HTTP_HEAD) {
    schedule(exchange);
  }
}

static void answer(struct quire_http_exchange *exchange, const struct quire_http_answer *answer) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && !exchange->streaming);
  char framing[48];
  snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", answer->bytes);
  bool added = add_head(exchange, answer, framing) && (exchange->head_only || answer->bytes == 0 ||
                                                       evbuffer_add(exchange->out, answer->body, answer->bytes) == 0);
  if (!added) {
    quire_http_abort(exchange);
    return;
  }
  count_output(exchange, evbuffer_get_length(exchange->out));
  end_exchange(exchange);
}

/* An answer in the handler's words for something that this file has found; 429 and 503 say when to come back. */
static void answer_refusal(struct quire_http_exchange *exchange, int status, const char *why) {
  struct quire_http_server *server = exchange->server;
  struct quire_strbuf body;
  QUIRE_ASSERT(status >= 400);
  quire_strbuf_init(&body, server->env);
  server->config.handler.refuse(server->config.handler.context, status, why, &body);
  answer(exchange, &(struct quire_http_answer){
                       .status = status,
                       .type = "application/json",
                       .fields = status == 503 || status == 429 ? "Retry-After: 1\r\n" : NULL,
                       .body = quire_strbuf_text(&body),
                       .bytes = body.bytes,
                   });
  quire_strbuf_fini(&body);
}

void quire_http_answer(struct quire_http_exchange *exchange, const struct quire_http_answer *whole) {
  const struct quire_http_limits *limits = &exchange->server->config.limits;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  /* the budget may be overdrawn by one answer, so that none is too large for ever */
  if (whole->bytes > limits->out_bytes && exchange->server->waiting >= limits->bodies_bytes) {
    answer_refusal(exchange, 503, "too many large answers wait for their readers at the moment");
  } else {
    answer(exchange, whole);
  }
}

static bool add_bytes(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  char size[24];
  QUIRE_ASSERT(count > 0);
  if (!exchange->chunked_answer) {
    return evbuffer_add(exchange->out, bytes, count) == 0;
  }
  int digits = snprintf(size, sizeof size, "%zx\r\n", count);
  return evbuffer_add(exchange->out, size, (size_t)digits) == 0 && evbuffer_add(exchange->out, bytes, count) == 0 &&
         evbuffer_add(exchange->out, "\r\n", 2) == 0;
}

static bool add_piece(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  QUIRE_ASSERT(exchange->streaming);
  if (count == 0 || exchange->head_only) {
    return true;
  }
  bool added = add_bytes(exchange, bytes, count);
  /* by what a writer sees as pending, framing included: who stops at the limit must hear of room */
  exchange->full = exchange->full || evbuffer_get_length(exchange->out) >= exchange->server->config.limits.out_bytes;
  return added;
}

bool quire_http_stream_begin(struct quire_http_exchange *exchange, const struct quire_http_answer *answer) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && !exchange->streaming);
  exchange->chunked_answer = exchange->head.minor >= 1;
  exchange->head.keep_alive = exchange->head.keep_alive && exchange->chunked_answer;
  exchange->streaming = true;
  schedule(exchange);
  return add_head(exchange, answer, exchange->chunked_answer ? "Transfer-Encoding: chunked\r\n" : "") &&
         add_piece(exchange, answer->body, answer->bytes);
}

bool quire_http_stream_send(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && exchange->streaming);
  if (!add_piece(exchange, bytes, count)) {
    return false;
  }
  /* written at the end of this turn, so that a failing write never calls back into its writer */
  schedule(exchange);
  return true;
}

void quire_http_stream_end(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && exchange->streaming);
  if (exchange->chunked_answer && !exchange->head_only && evbuffer_add(exchange->out, "0\r\n\r\n", 5) != 0) {
    quire_http_abort(exchange);
    return;
  }
  end_exchange(exchange);
}

size_t quire_http_pending(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  return evbuffer_get_length(exchange->out);
}

void quire_http_abort(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  quire_http_lose(exchange, false);
}

void quire_http_set_user(struct quire_http_exchange *exchange, void *user) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  exchange->user = user;
}

void *quire_http_user(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->server != NULL);
  return exchange->user;
}

const char *quire_http_id(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  return exchange->id[0] != '\0' ? exchange->id : NULL;
}

void quire_http_set_id(struct quire_http_exchange *exchange, const char *id) {
  struct quire_http_slice name = {id, strlen(id)};
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && exchange->id[0] == '\0' && is_id(name));
  memcpy(exchange->id, name.data, name.bytes + 1);
}

struct quire_http_slice quire_http_body(const struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  return (struct quire_http_slice){quire_strbuf_text(&exchange->body), exchange->body.bytes};
}

void quire_http_take_body(struct quire_http_exchange *exchange, struct quire_strbuf *body_out) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY && body_out->data == NULL);
  *body_out = exchange->body;
  exchange->server->bodies -= exchange->body.bytes;
  quire_strbuf_init(&exchange->body, exchange->server->env);
}

/* --- input --- */

/* Answers a request that is no proper one, or against a limit, and ends the connection. */
static void refuse(struct quire_http_exchange *exchange, int status, const char *why) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_HEAD || exchange->state == QUIRE_HTTP_BODY);
  exchange->state = QUIRE_HTTP_BUSY;
  exchange->head.keep_alive = false;
  exchange->head_only = false;
  server->stats.exchanges++;
  server->stats.refused++;
  server->stats.timeouts += status == 408 ? 1 : 0;
  answer_refusal(exchange, status, why);
}

/* The whole request is there. */
static void dispatch(struct quire_http_exchange *exchange) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BUSY);
  server->stats.requests++;
  server->config.handler.request(server->config.handler.context, exchange, &exchange->head);
}

/* The client's name for the request, if it can stand in a line of the answer. */
static void take_id(struct quire_http_exchange *exchange) {
  struct quire_http_slice id;
  QUIRE_ASSERT(exchange->id[0] == '\0');
  if (quire_http_field(&exchange->head, "x-request-id", &id) && is_id(id)) {
    memcpy(exchange->id, id.data, id.bytes);
    exchange->id[id.bytes] = '\0';
  }
}

/* What a head announces is refused, answered by the handler, or read on. */
static void take_head(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  struct quire_http_server *server = exchange->server;
  const struct quire_http_handler *handler = &server->config.handler;
  const char *why = NULL;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_HEAD);
  quire_strbuf_clear(&exchange->head_text);
  quire_strbuf_add(&exchange->head_text, bytes, count);
  if (quire_strbuf_failed(&exchange->head_text)) {
    refuse(exchange, 503, "the server has no memory for the request");
    return;
  }
  int status = quire_http_head_parse(exchange->head_text.data, count, &exchange->head, &why);
  if (status != 0) {
    refuse(exchange, status, why);
    return;
  }
  take_id(exchange);
  struct quire_http_head *head = &exchange->head;
  exchange->head_only = quire_http_equal(head->method, "HEAD");
  exchange->chunked = (struct quire_http_chunked){0};
  bool body = head->chunked || head->content_length > 0;
  exchange->state = QUIRE_HTTP_BUSY;
  server->stats.exchanges++;
  exchange->drop_body = body;
  if (!handler->begin(handler->context, exchange, head)) {
    return;
  }
  exchange->drop_body = false;
  if (!body) {
    dispatch(exchange);
    return;
  }
  exchange->state = QUIRE_HTTP_BODY;
  server->stats.exchanges--;
  exchange->since_ns = quire_http_now(server);
  if (head->content_length > 0 && (uint64_t)head->content_length > server->config.limits.body_bytes) {
    refuse(exchange, 413, "the body is larger than this server takes");
  } else if (head->expect_continue) {
    evbuffer_add(exchange->out, "HTTP/1.1 100 Continue\r\n\r\n", 25);
  }
}

/* Keeps bytes of a body; false when the request was refused. */
static bool keep_body(struct quire_http_exchange *exchange, struct quire_http_slice piece) {
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BODY);
  if (piece.bytes > server->config.limits.body_bytes - exchange->body.bytes) {
    refuse(exchange, 413, "the body is larger than this server takes");
    return false;
  }
  if (piece.bytes > server->config.limits.bodies_bytes - server->bodies) {
    refuse(exchange, 503, "the server holds too many large requests at the moment");
    return false;
  }
  quire_strbuf_add(&exchange->body, piece.data, piece.bytes);
  if (quire_strbuf_failed(&exchange->body)) {
    refuse(exchange, 503, "the server has no memory for the request");
    return false;
  }
  server->bodies += piece.bytes;
  return true;
}

static void end_body(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BODY);
  exchange->state = QUIRE_HTTP_BUSY;
  exchange->server->stats.exchanges++;
  dispatch(exchange);
}

static size_t take_body(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_BODY);
  if (!exchange->head.chunked) {
    size_t left = (size_t)exchange->head.content_length - exchange->body.bytes;
    size_t take = count < left ? count : left;
    if (keep_body(exchange, (struct quire_http_slice){bytes, take}) && take == left) {
      end_body(exchange);
    }
    return take;
  }
  struct quire_http_piece piece;
  enum quire_http_more more = quire_http_chunked_feed(&exchange->chunked, bytes, count, &piece);
  if (more == QUIRE_HTTP_BAD) {
    refuse(exchange, 400, piece.why);
  } else if (keep_body(exchange, piece.body)) {
    if (more == QUIRE_HTTP_DONE) {
      end_body(exchange);
    } else if (exchange->chunked.left > exchange->server->config.limits.body_bytes - exchange->body.bytes) {
      refuse(exchange, 413, "the body is larger than this server takes");
    }
  }
  return piece.used;
}

/* Reads a head out of bytes; returns what it used of them. */
static size_t take_scan(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  const char *why = NULL;
  QUIRE_ASSERT(exchange->state == QUIRE_HTTP_HEAD);
  bool begun = exchange->scan.begun;
  enum quire_http_more more = quire_http_head_scan(&exchange->scan, bytes, count, &why);
  if (!begun && exchange->scan.begun) {
    exchange->since_ns = quire_http_now(exchange->server);
  }
  struct quire_http_scan scan = exchange->scan;
  size_t limit = exchange->server->config.limits.head_bytes;
  if (more == QUIRE_HTTP_BAD) {
    refuse(exchange, 400, why);
  } else if (scan.seen > limit) {
    refuse(exchange, 431, "the head of the request is larger than this server takes");
  } else if (more == QUIRE_HTTP_DONE) {
    exchange->scan = (struct quire_http_scan){0};
    take_head(exchange, bytes + scan.skipped, scan.seen - scan.skipped);
    return scan.seen;
  }
  return 0;
}

/* Goes through bytes until they are used up, a request is with the handler, or it was many; returns how many were
 * used. */
static size_t consume(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  QUIRE_ASSERT(exchange->in_input);
  size_t used = 0;
  for (int i = 0; i < REQUESTS_PER_TURN && used < count;) {
    size_t step = 0;
    if (exchange->state == QUIRE_HTTP_HEAD && !is_full(exchange)) {
      step = take_scan(exchange, bytes + used, count - used);
      i++;
    } else if (exchange->state == QUIRE_HTTP_BODY) {
      step = take_body(exchange, bytes + used, count - used);
    }
    used += step;
    if (step == 0) {
      break;
    }
  }
  return used;
}

/* What is left for later, behind what was used of it. */
static void keep_rest(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  struct quire_strbuf *in = &exchange->in;
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (exchange->state >= QUIRE_HTTP_CLOSE) {
    return;
  }
  if (in->bytes > 0 && bytes != in->data) {
    QUIRE_ASSERT(bytes > in->data && bytes + count == in->data + in->bytes);
    memmove(in->data, bytes, count);
    in->bytes = count;
  } else if (in->bytes == 0 && count > 0) {
    quire_strbuf_add(in, bytes, count);
  }
  if (quire_strbuf_failed(in)) {
    quire_http_lose(exchange, true);
  } else if (exchange->state == QUIRE_HTTP_BUSY && in->bytes > QUIRE_HTTP_AHEAD_BYTES) {
    /* its end can be seen only by reading on, so the rest is dropped, and the connection ends with this answer */
    exchange->overrun = true;
    exchange->head.keep_alive = false;
    quire_strbuf_fini(in);
    quire_strbuf_init(in, exchange->server->env);
  } else if (in->bytes == 0 && in->capacity > QUIRE_HTTP_AHEAD_BYTES) {
    quire_strbuf_fini(in);
    quire_strbuf_init(in, exchange->server->env);
  }
}

/* Bytes that came in, none of them twice: [bytes, count) is new, `in` holds what is older. */
static void input(struct quire_http_exchange *exchange, const char *bytes, size_t count) {
  struct quire_strbuf *in = &exchange->in;
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (exchange->state >= QUIRE_HTTP_CLOSE || exchange->overrun) {
    exchange->dropped += count;
    return;
  }
  if (in->bytes > 0 && count > 0) {
    quire_strbuf_add(in, bytes, count);
    if (quire_strbuf_failed(in)) {
      quire_http_lose(exchange, true);
      return;
    }
  }
  bool kept = in->bytes > 0;
  if (!kept && count == 0) {
    hold_input(exchange, false);
    flush(exchange);
    return;
  }
  const char *all = kept ? in->data : bytes;
  size_t total = kept ? in->bytes : count;
  exchange->in_input = true;
  size_t used = consume(exchange, all, total);
  exchange->in_input = false;
  if (exchange->state == QUIRE_HTTP_DEAD) {
    return;
  }
  keep_rest(exchange, all + used, total - used);
  if (exchange->state == QUIRE_HTTP_DEAD) {
    return;
  }
  hold_input(exchange, has_more(exchange) || (exchange->state == QUIRE_HTTP_HEAD && is_full(exchange)));
  flush(exchange);
  if (exchange->state == QUIRE_HTTP_HEAD && exchange->held && !is_full(exchange)) {
    schedule(exchange);
  }
}

/* The client closed its side, or the connection is broken: nobody waits for what is being made. */
static void end_of_input(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  exchange->eof = true;
  if (exchange->state == QUIRE_HTTP_CLOSE || has_more(exchange)) {
    event_del(&exchange->readable); /* finish writing, or look at requests that came whole, then end */
    return;
  }
  if (exchange->state == QUIRE_HTTP_HEAD && evbuffer_get_length(exchange->out) > 0) {
    exchange->state = QUIRE_HTTP_CLOSE;
    event_del(&exchange->readable);
    return;
  }
  quire_http_lose(exchange, true);
}

static void on_readable(evutil_socket_t fd, short what, void *context) {
  (void)what;
  struct quire_http_exchange *exchange = context;
  struct quire_http_server *server = exchange->server;
  QUIRE_ASSERT(fd == exchange->fd);
  for (int i = 0; i < READS_PER_TURN; i++) {
    ssize_t got = recv(fd, server->scratch, QUIRE_HTTP_READ_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    }
    if (got <= 0) {
      end_of_input(exchange);
      return;
    }
    server->stats.bytes_in += got;
    input(exchange, server->scratch, (size_t)got);
    if (exchange->state == QUIRE_HTTP_DEAD) {
      return;
    }
    if ((size_t)got < QUIRE_HTTP_READ_BYTES || exchange->held) {
      break;
    }
  }
  if (exchange->dropped > QUIRE_HTTP_DROP_BYTES) {
    quire_http_lose(exchange, true);
  }
}

void quire_http_turn(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (exchange->state == QUIRE_HTTP_BUSY || exchange->state == QUIRE_HTTP_CLOSE) {
    flush(exchange);
    return;
  }
  input(exchange, NULL, 0);
  if (exchange->eof && exchange->state < QUIRE_HTTP_CLOSE) {
    end_of_input(exchange);
  }
}

/* --- begin and end --- */

void quire_http_connect(struct quire_http_server *server, int fd) {
  QUIRE_ASSERT(fd >= 0);
  struct event_base *base = quire_loop_base(server->loop);
  struct quire_http_exchange *exchange = quire_env_zalloc(server->env, 1, sizeof *exchange);
  struct evbuffer *out = exchange != NULL ? evbuffer_new() : NULL;
  if (out == NULL) {
    quire_env_free(server->env, exchange, 1, sizeof *exchange);
    close(fd);
    return;
  }
  int one = 1;
  int room = QUIRE_HTTP_SEND_BYTES;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  exchange->server = server;
  exchange->fd = fd;
  exchange->out = out;
  exchange->since_ns = quire_http_now(server);
  quire_list_init(&exchange->turn);
  quire_list_push_back(&server->connections, &exchange->node);
  quire_strbuf_init(&exchange->head_text, server->env);
  quire_strbuf_init(&exchange->in, server->env);
  quire_strbuf_init(&exchange->body, server->env);
  event_assign(&exchange->readable, base, fd, EV_READ | EV_PERSIST, on_readable, exchange);
  event_assign(&exchange->writable, base, fd, EV_WRITE | EV_PERSIST, on_writable, exchange);
  event_add(&exchange->readable, NULL);
  server->stats.connections++;
}

void quire_http_end_idle(struct quire_http_exchange *exchange) {
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (exchange->state == QUIRE_HTTP_HEAD && !exchange->scan.begun && exchange->in.bytes == 0 &&
      evbuffer_get_length(exchange->out) == 0) {
    quire_http_lose(exchange, false);
  }
}

void quire_http_check(struct quire_http_exchange *exchange, uint64_t now) {
  struct quire_http_server *server = exchange->server;
  const struct quire_http_limits *limits = &server->config.limits;
  QUIRE_ASSERT(exchange->state != QUIRE_HTTP_DEAD);
  if (exchange->want_write) {
    if (now > exchange->wrote_ns && now - exchange->wrote_ns > limits->write_ns) {
      server->stats.slow_readers++;
      quire_http_lose(exchange, true);
    }
    return;
  }
  uint64_t age = now > exchange->since_ns ? now - exchange->since_ns : 0;
  switch (exchange->state) {
  case QUIRE_HTTP_HEAD:
    if (exchange->scan.begun && age > limits->head_ns) {
      refuse(exchange, 408, "the head of the request took too long");
    } else if (!exchange->scan.begun && age > limits->idle_ns) {
      quire_http_lose(exchange, false);
    }
    break;
  case QUIRE_HTTP_BODY:
    if (age > limits->body_ns) {
      refuse(exchange, 408, "the body of the request took too long");
    }
    break;
  case QUIRE_HTTP_LINGER:
    if (age > QUIRE_HTTP_LINGER_NS) {
      quire_http_lose(exchange, false);
    }
    break;
  case QUIRE_HTTP_BUSY:
  default:
    break;
  }
}
