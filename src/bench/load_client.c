/* One thread, one epoll, a connection for each request in flight. A connection that its server keeps open is used
 * again, the one used last first; a request that such a connection loses before any byte came is sent once more, on a
 * new one, as browsers do, since its server may have closed it while idle.
 *
 * Rejected: a library. What is measured is when bytes arrive, so nothing may stand between the socket and the clock. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "bench/bench_harness.h"
#include "bench/load.h"
#include "bench/load_event.h"
#include "net/http_parse.h"

#define READ_BYTES 65536
#define HEAD_BYTES_MAX 65536
#define LINE_BYTES_MAX (1 << 22)
#define EVENTS 256
#define LOOK_NS 100000000u /* how often time-outs are looked for */

enum conn_state { CONN_CONNECTING, CONN_SENDING, CONN_HEAD, CONN_BODY, CONN_IDLE };

struct conn {
  struct conn *next, *previous; /* of the list it is in: busy or idle */
  struct client *client;
  int fd;
  enum conn_state state;
  struct load_request *request;
  bool reused;   /* it has served another request before */
  bool answered; /* a byte of the answer has come */
  bool event_stream, chunked, keep, done_seen, failed_event;
  int64_t left; /* of a body with a length; -1: none is known */
  size_t sent;
  struct quire_strbuf out, head, line;
  struct quire_http_scan scan;
  struct quire_http_chunked chunks;
};

struct client {
  struct load_run *run;
  int epoll;
  uint64_t begun_ns;
  struct sockaddr_storage address;
  socklen_t address_bytes;
  int family;
  struct conn busy, idle; /* heads of rings */
  int64_t next, finished, running;
  uint64_t looked_ns;
  bool no_memory;
  char *buffer; /* [READ_BYTES] */
};

static uint64_t now_of(const struct client *client) { return bench_now_ns() - client->begun_ns; }

/* --- connections --- */

static void ring_add(struct conn *ring, struct conn *conn) {
  conn->next = ring->next;
  conn->previous = ring;
  ring->next->previous = conn;
  ring->next = conn;
}

static void ring_take(struct conn *conn) {
  conn->previous->next = conn->next;
  conn->next->previous = conn->previous;
}

static void conn_close(struct conn *conn) {
  const struct quire_env *env = conn->client->run->env;
  ring_take(conn);
  close(conn->fd); /* which takes it out of the epoll */
  quire_strbuf_fini(&conn->out);
  quire_strbuf_fini(&conn->head);
  quire_strbuf_fini(&conn->line);
  quire_env_free(env, conn, 1, sizeof *conn);
}

static void watch(struct conn *conn, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = conn};
  const int changed = epoll_ctl(conn->client->epoll, EPOLL_CTL_MOD, conn->fd, &event);
  QUIRE_ASSERT(changed == 0);
}

/* A connection that is being made; NULL: there is none to be had. */
static struct conn *conn_open(struct client *client) {
  const struct quire_env *env = client->run->env;
  struct conn *conn = quire_env_zalloc(env, 1, sizeof *conn);
  const int fd = socket(client->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  struct epoll_event event = {.events = EPOLLOUT, .data.ptr = conn};
  if (conn == NULL || fd < 0 ||
      (connect(fd, (const struct sockaddr *)&client->address, client->address_bytes) != 0 && errno != EINPROGRESS) ||
      epoll_ctl(client->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    if (fd >= 0) {
      close(fd);
    }
    quire_env_free(env, conn, 1, sizeof *conn);
    return NULL;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  conn->client = client;
  conn->fd = fd;
  quire_strbuf_init(&conn->out, env);
  quire_strbuf_init(&conn->head, env);
  quire_strbuf_init(&conn->line, env);
  ring_add(&client->busy, conn);
  return conn;
}

/* --- the life of a request --- */

/* The request has come to its end; the connection is closed, or waits for another one. */
static void finish(struct conn *conn, enum load_outcome outcome, const char *note, size_t note_bytes) {
  struct client *client = conn->client;
  struct load_request *request = conn->request;
  char *kept = client->run->notes[outcome];
  request->outcome = outcome;
  request->done_ns = now_of(client);
  if (kept[0] == '\0' && note_bytes > 0) {
    snprintf(kept, LOAD_NOTE_BYTES, "%.*s", (int)(note_bytes < LOAD_NOTE_BYTES ? note_bytes : LOAD_NOTE_BYTES), note);
  }
  client->finished++;
  client->running--;
  conn->request = NULL;
  const bool whole = outcome == LOAD_OK || (outcome >= LOAD_HTTP_4XX && outcome <= LOAD_STREAM_ERROR);
  if (!conn->keep || !whole || conn->sent < conn->out.bytes) {
    conn_close(conn);
    return;
  }
  conn->state = CONN_IDLE;
  watch(conn, EPOLLIN | EPOLLRDHUP);
  ring_take(conn);
  ring_add(&client->idle, conn);
}

static void fail(struct conn *conn, enum load_outcome outcome, const char *note) {
  finish(conn, outcome, note, strlen(note));
}

static void write_head(struct conn *conn) {
  static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/generate"};
  const struct load_run *run = conn->client->run;
  struct quire_strbuf body;
  quire_strbuf_init(&body, run->env);
  load_body(run, conn->request, &body);
  quire_strbuf_clear(&conn->out);
  quire_strbuf_addf(&conn->out,
                    "POST %s%s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                    "Accept: text/event-stream\r\nContent-Length: %zu\r\n",
                    run->base, paths[run->options->endpoint], run->host, run->port, body.bytes);
  if (run->options->api_key) {
    quire_strbuf_addf(&conn->out, "Authorization: Bearer %s\r\n", run->options->api_key);
  }
  quire_strbuf_add_text(&conn->out, "\r\n");
  quire_strbuf_add(&conn->out, quire_strbuf_text(&body), body.bytes);
  conn->client->no_memory = conn->client->no_memory || quire_strbuf_failed(&body) || quire_strbuf_failed(&conn->out);
  quire_strbuf_fini(&body);
}

/* Gives a connection a request to send. */
static void begin(struct conn *conn, struct load_request *request) {
  conn->request = request;
  conn->answered = conn->event_stream = conn->chunked = conn->keep = conn->done_seen = conn->failed_event = false;
  conn->left = -1;
  conn->sent = 0;
  conn->scan = (struct quire_http_scan){0};
  conn->chunks = (struct quire_http_chunked){0};
  quire_strbuf_clear(&conn->head);
  quire_strbuf_clear(&conn->line);
  write_head(conn);
}

static void start_next(struct client *client) {
  struct load_request *request = &client->run->requests[client->next++];
  struct conn *conn = client->idle.next != &client->idle ? client->idle.next : NULL;
  client->running++;
  client->run->running_max = client->running > client->run->running_max ? client->running : client->run->running_max;
  request->sent_ns = now_of(client);
  if (conn != NULL) {
    ring_take(conn);
    ring_add(&client->busy, conn);
    conn->reused = true;
    conn->state = CONN_SENDING;
    begin(conn, request);
    watch(conn, EPOLLOUT | EPOLLIN);
    return;
  }
  conn = conn_open(client);
  if (conn == NULL) {
    request->outcome = LOAD_CONNECT;
    request->done_ns = request->sent_ns;
    snprintf(client->run->notes[LOAD_CONNECT], LOAD_NOTE_BYTES, "%s", strerror(errno));
    client->finished++;
    client->running--;
    return;
  }
  begin(conn, request);
}

/* The connection is gone. A reused one may have been closed by its server before it saw the request. */
static void lost(struct conn *conn, const char *note) {
  struct client *client = conn->client;
  if (conn->reused && !conn->answered) {
    struct conn *again = conn_open(client);
    if (again != NULL) {
      begin(again, conn->request);
      conn_close(conn);
      return;
    }
  }
  if (conn->state == CONN_BODY && conn->left < 0 && !conn->chunked) { /* a body that ends with its connection */
    conn->keep = false;
    finish(conn, conn->done_seen ? LOAD_OK : LOAD_TRUNCATED, note, conn->done_seen ? 0 : strlen(note));
    return;
  }
  fail(conn, conn->state == CONN_CONNECTING ? LOAD_CONNECT : LOAD_RESET, note);
}

/* --- what comes back --- */

static void on_token(struct conn *conn) {
  struct client *client = conn->client;
  struct load_run *run = client->run;
  struct load_request *request = conn->request;
  const uint64_t now = now_of(client), slice = now / LOAD_SLICE_NS;
  if (request->events == 0) {
    request->first_ns = now;
  } else if (run->itl_count < run->itl_max) {
    run->itl_ms[run->itl_count++] = (float)((double)(now - request->last_ns) * 1e-6);
  }
  request->last_ns = now;
  request->events++;
  run->slices[slice < LOAD_SLICES_MAX ? slice : LOAD_SLICES_MAX - 1]++;
}

/* One line without its end. False: the request is over. */
static bool on_line(struct conn *conn, const char *line, size_t bytes) {
  struct load_request *request = conn->request;
  bytes -= bytes > 0 && line[bytes - 1] == '\r';
  if (bytes < 5 || memcmp(line, "data:", 5) != 0) { /* blank, a comment, or another field */
    return true;
  }
  line += 5;
  bytes -= 5;
  for (; bytes > 0 && *line == ' '; bytes--) {
    line++;
  }
  if (bytes == 6 && memcmp(line, "[DONE]", 6) == 0) {
    conn->done_seen = true;
    return true;
  }
  const struct load_event event = load_event_read(line, bytes);
  if (!event.object) {
    finish(conn, LOAD_PROTOCOL, line, bytes);
    return false;
  }
  if (event.error) {
    conn->failed_event = true;
    char *kept = conn->client->run->notes[LOAD_STREAM_ERROR];
    snprintf(kept, LOAD_NOTE_BYTES, "%.*s", (int)(bytes < LOAD_NOTE_BYTES ? bytes : LOAD_NOTE_BYTES), line);
  }
  if (event.text) {
    on_token(conn);
  }
  if (event.usage) {
    request->prompt_tokens = event.prompt_tokens;
    request->completion_tokens = event.completion_tokens;
    request->cached_tokens = event.cached_tokens;
  }
  if (request->cut > 0 && request->events >= request->cut) {
    conn->keep = false;
    fail(conn, LOAD_CUT, "");
    return false;
  }
  return true;
}

/* Bytes of a body. False: the request is over. */
static bool on_body(struct conn *conn, const char *bytes, size_t count) {
  if (!conn->event_stream) { /* an error's text, of which the beginning is kept */
    if (conn->line.bytes < LOAD_NOTE_BYTES) {
      quire_strbuf_add(&conn->line, bytes, count < LOAD_NOTE_BYTES ? count : LOAD_NOTE_BYTES);
    }
    return true;
  }
  while (count > 0) {
    const char *newline = memchr(bytes, '\n', count);
    const size_t length = newline ? (size_t)(newline - bytes) : count;
    if (!newline || conn->line.bytes > 0) {
      quire_strbuf_add(&conn->line, bytes, length);
    }
    if (!newline) {
      conn->client->no_memory = conn->client->no_memory || quire_strbuf_failed(&conn->line);
      if (conn->line.bytes > LINE_BYTES_MAX) {
        fail(conn, LOAD_PROTOCOL, "a line of an event stream is longer than 4 MB");
        return false;
      }
      return true;
    }
    const bool joined = conn->line.bytes > 0;
    if (!on_line(conn, joined ? quire_strbuf_text(&conn->line) : bytes, joined ? conn->line.bytes : length)) {
      return false;
    }
    quire_strbuf_clear(&conn->line);
    bytes += length + 1;
    count -= length + 1;
  }
  return true;
}

static void on_end(struct conn *conn) {
  const int status = conn->request->status;
  if (status >= 400) {
    finish(conn,
           status == 429  ? LOAD_HTTP_429
           : status < 500 ? LOAD_HTTP_4XX
                          : LOAD_HTTP_5XX,
           quire_strbuf_text(&conn->line), conn->line.bytes);
  } else if (conn->failed_event) {
    finish(conn, LOAD_STREAM_ERROR, "", 0);
  } else if (status != 200 || !conn->event_stream) {
    fail(conn, LOAD_PROTOCOL, "the answer is no event stream");
  } else {
    finish(conn, conn->done_seen ? LOAD_OK : LOAD_TRUNCATED, "", 0);
  }
}

static bool has(struct quire_http_slice value, const char *text) {
  return memmem(value.data, value.bytes, text, strlen(text)) != NULL;
}

static void on_field(struct conn *conn, struct quire_http_slice name, struct quire_http_slice value) {
  if (quire_http_is(name, "content-length")) {
    conn->left = 0;
    for (size_t i = 0; i < value.bytes && value.data[i] >= '0' && value.data[i] <= '9' && conn->left < INT32_MAX; i++) {
      conn->left = 10 * conn->left + (value.data[i] - '0');
    }
  } else if (quire_http_is(name, "transfer-encoding")) {
    conn->chunked = quire_http_lists(value, "chunked");
  } else if (quire_http_is(name, "content-type")) {
    conn->event_stream = has(value, "text/event-stream");
  } else if (quire_http_is(name, "connection") && quire_http_lists(value, "close")) {
    conn->keep = false;
  }
}

/* "HTTP/1.1 200 OK" and its fields. False: it is none. */
static bool read_head(struct conn *conn, const char *head, size_t bytes) {
  if (bytes < 13 || memcmp(head, "HTTP/1.", 7) != 0 || head[8] != ' ') {
    return false;
  }
  conn->request->status = (int)strtol(head + 9, NULL, 10); /* the head ends with CRLF, so it ends there at the latest */
  conn->keep = head[7] == '1';
  const char *end = head + bytes;
  for (const char *line = memchr(head, '\n', bytes); line != NULL && ++line < end;) {
    const char *newline = memchr(line, '\n', (size_t)(end - line));
    const char *colon = memchr(line, ':', (size_t)((newline ? newline : end) - line));
    if (newline != NULL && colon != NULL) {
      const char *value = colon + 1;
      const char *stop = newline > value && newline[-1] == '\r' ? newline - 1 : newline;
      for (; value < stop && *value == ' '; value++) {
      }
      on_field(conn, (struct quire_http_slice){line, (size_t)(colon - line)},
               (struct quire_http_slice){value, (size_t)(stop - value)});
    }
    line = newline;
  }
  conn->left = conn->chunked ? -1 : conn->left;
  conn->keep = conn->keep && (conn->chunked || conn->left >= 0);
  return conn->request->status >= 100;
}

/* Bytes after the head. */
static void read_body(struct conn *conn, const char *bytes, size_t count) {
  while (conn->chunked && count > 0) {
    struct quire_http_piece piece = {0};
    const enum quire_http_more more = quire_http_chunked_feed(&conn->chunks, bytes, count, &piece);
    if (more == QUIRE_HTTP_BAD) {
      fail(conn, LOAD_PROTOCOL, piece.why);
      return;
    }
    if (piece.body.bytes > 0 && !on_body(conn, piece.body.data, piece.body.bytes)) {
      return;
    }
    if (more == QUIRE_HTTP_DONE) {
      on_end(conn);
      return;
    }
    bytes += piece.used;
    count -= piece.used;
  }
  if (conn->chunked) {
    return;
  }
  const size_t taken = conn->left >= 0 && (int64_t)count > conn->left ? (size_t)conn->left : count;
  conn->left -= conn->left >= 0 ? (int64_t)taken : 0;
  if (on_body(conn, bytes, taken) && conn->left == 0) {
    on_end(conn);
  }
}

static void on_bytes(struct conn *conn, const char *bytes, size_t count) {
  const char *why = NULL;
  conn->answered = true;
  if (conn->state == CONN_BODY) {
    read_body(conn, bytes, count);
    return;
  }
  const size_t before = conn->head.bytes;
  quire_strbuf_add(&conn->head, bytes, count);
  const enum quire_http_more more =
      quire_http_head_scan(&conn->scan, quire_strbuf_text(&conn->head), conn->head.bytes, &why);
  if (more == QUIRE_HTTP_MORE && conn->head.bytes < HEAD_BYTES_MAX) {
    return;
  }
  if (more != QUIRE_HTTP_DONE || !read_head(conn, quire_strbuf_text(&conn->head), conn->scan.seen)) {
    fail(conn, LOAD_PROTOCOL, why ? why : "the answer is no HTTP");
    return;
  }
  conn->state = CONN_BODY;
  const size_t rest = conn->scan.seen - before; /* of this read, what belongs to the head */
  if (conn->left == 0) {
    on_end(conn);
  } else {
    read_body(conn, bytes + rest, count - rest);
  }
}

/* --- the loop --- */

static void on_readable(struct conn *conn) {
  const ssize_t got = recv(conn->fd, conn->client->buffer, READ_BYTES, 0);
  if (got > 0 && conn->state != CONN_IDLE) {
    on_bytes(conn, conn->client->buffer, (size_t)got);
  } else if (conn->state == CONN_IDLE) { /* closed by its server, or bytes nobody asked for */
    conn_close(conn);
  } else if (got == 0) {
    lost(conn, "the server closed the connection");
  } else if (errno != EAGAIN && errno != EINTR) {
    lost(conn, strerror(errno));
  }
}

static void on_writable(struct conn *conn) {
  int fault = 0;
  socklen_t bytes = sizeof fault;
  if (conn->state == CONN_CONNECTING) {
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &fault, &bytes) != 0 || fault != 0) {
      lost(conn, strerror(fault));
      return;
    }
    conn->state = CONN_SENDING;
    watch(conn, EPOLLOUT | EPOLLIN);
  }
  const ssize_t sent =
      send(conn->fd, quire_strbuf_text(&conn->out) + conn->sent, conn->out.bytes - conn->sent, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EINTR) { /* a server that refuses early has said why before it closed */
      on_readable(conn);
    }
    return;
  }
  conn->sent += (size_t)sent;
  if (conn->sent < conn->out.bytes) {
    return;
  }
  if (conn->request->cut == 0) {
    fail(conn, LOAD_CUT, "");
    return;
  }
  conn->state = CONN_HEAD;
  watch(conn, EPOLLIN);
}

static void look_for_timeouts(struct client *client, uint64_t now) {
  const uint64_t limit = (uint64_t)client->run->options->timeout_s * 1000000000u;
  client->looked_ns = now;
  for (struct conn *conn = client->busy.next, *next; conn != &client->busy; conn = next) {
    next = conn->next;
    if (now - conn->request->sent_ns > limit) {
      conn->keep = false;
      fail(conn, LOAD_TIMEOUT, "no end within --timeout-s");
    }
  }
}

/* Sends what is due; answers how long there is nothing to send. */
static uint64_t send_due(struct client *client) {
  const struct load_run *run = client->run;
  const int64_t room = run->options->concurrency > 0 ? run->options->concurrency : INT64_MAX;
  for (; client->next < run->count && client->running < room;) {
    const uint64_t now = now_of(client), at = run->requests[client->next].at_ns;
    if (at > now) {
      return at - now < LOOK_NS ? at - now : LOOK_NS;
    }
    start_next(client);
  }
  return LOOK_NS;
}

static enum quire_status loop(struct client *client, struct quire_error *error_out) {
  struct epoll_event events[EVENTS];
  uint64_t shown = 0;
  while (client->finished < client->run->count && !client->no_memory) {
    const uint64_t wait = send_due(client);
    const struct timespec timeout = {.tv_nsec = (long)wait};
    const int count = epoll_pwait2(client->epoll, events, EVENTS, &timeout, NULL);
    if (count < 0 && errno != EINTR) {
      return quire_error_set(error_out, QUIRE_ERR_IO, "bench serve", "epoll: %s", strerror(errno));
    }
    for (int i = 0; i < count; i++) {
      struct conn *conn = events[i].data.ptr;
      const bool sending = conn->state == CONN_SENDING && !(events[i].events & EPOLLIN);
      if (conn->state == CONN_CONNECTING || sending) {
        on_writable(conn);
      } else {
        on_readable(conn);
      }
    }
    const uint64_t now = now_of(client);
    if (now - client->looked_ns > LOOK_NS) {
      look_for_timeouts(client, now);
    }
    if (now - shown > 2 * LOOK_NS) {
      shown = now;
      cli_progress("requests", (double)client->finished, (double)client->run->count, "requests", client->begun_ns);
    }
  }
  return client->no_memory ? quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench serve", "no memory for a request")
                           : QUIRE_OK;
}

static enum quire_status find_address(struct client *client, struct quire_error *error_out) {
  const struct load_run *run = client->run;
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  const int fault = getaddrinfo(run->host, run->port, &hints, &found);
  if (fault != 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "bench serve", "%s:%s: %s", run->host, run->port,
                           gai_strerror(fault));
  }
  QUIRE_ASSERT(found->ai_addrlen <= sizeof client->address);
  memcpy(&client->address, found->ai_addr, found->ai_addrlen);
  client->address_bytes = found->ai_addrlen;
  client->family = found->ai_family;
  freeaddrinfo(found);
  return QUIRE_OK;
}

static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

static enum quire_status client_open(struct client *client, struct load_run *run, struct quire_error *error_out) {
  *client = (struct client){.run = run, .epoll = -1, .begun_ns = bench_now_ns()};
  client->busy.next = client->busy.previous = &client->busy;
  client->idle.next = client->idle.previous = &client->idle;
  raise_descriptors();
  enum quire_status status = find_address(client, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  client->buffer = quire_env_zalloc(run->env, READ_BYTES, 1);
  client->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (client->buffer == NULL || client->epoll < 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "bench serve", "no memory or no descriptors for epoll");
  }
  return QUIRE_OK;
}

static void client_close(struct client *client) {
  while (client->busy.next != &client->busy) {
    conn_close(client->busy.next);
  }
  while (client->idle.next != &client->idle) {
    conn_close(client->idle.next);
  }
  if (client->epoll >= 0) {
    close(client->epoll);
  }
  quire_env_free(client->run->env, client->buffer, READ_BYTES, 1);
}

enum quire_status load_send(struct load_run *run, struct quire_error *error_out) {
  struct client client;
  QUIRE_ASSERT(run && run->requests);
  enum quire_status status = client_open(&client, run, error_out);
  if (status == QUIRE_OK) {
    status = loop(&client, error_out);
    run->elapsed_ns = now_of(&client);
  }
  client_close(&client);
  return status;
}

enum quire_status load_get(const struct load_run *run, const char *path, struct quire_strbuf *body, int *status_out,
                           struct quire_error *error_out) {
  struct client client = {.run = (struct load_run *)(uintptr_t)run};
  struct quire_strbuf text;
  char buffer[4096];
  enum quire_status status = find_address(&client, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const struct timeval patience = {.tv_sec = 10};
  const int fd = socket(client.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  quire_strbuf_init(&text, run->env);
  quire_strbuf_addf(&text, "GET %s%s HTTP/1.0\r\nHost: %s:%s\r\n", run->base, path, run->host, run->port);
  if (run->options->api_key) {
    quire_strbuf_addf(&text, "Authorization: Bearer %s\r\n", run->options->api_key);
  }
  quire_strbuf_add_text(&text, "\r\n");
  ssize_t got = -1;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
      connect(fd, (const struct sockaddr *)&client.address, client.address_bytes) == 0 &&
      send(fd, text.data, text.bytes, MSG_NOSIGNAL) == (ssize_t)text.bytes) {
    quire_strbuf_clear(&text);
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0 && text.bytes < LINE_BYTES_MAX) {
      quire_strbuf_add(&text, buffer, (size_t)got);
    }
  }
  const char *head_end = got == 0 ? strstr(quire_strbuf_text(&text), "\r\n\r\n") : NULL;
  if (head_end == NULL || text.bytes < 13) {
    status = quire_error_set(error_out, QUIRE_ERR_IO, "bench serve", "%s:%s does not answer GET %s: %s", run->host,
                             run->port, path, got < 0 ? strerror(errno) : "no HTTP");
  } else {
    *status_out = (int)strtol(quire_strbuf_text(&text) + 9, NULL, 10);
    quire_strbuf_add_text(body, head_end + 4);
  }
  if (fd >= 0) {
    close(fd);
  }
  quire_strbuf_fini(&text);
  return status;
}
