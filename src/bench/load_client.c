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
#include "bench/load_response.h"

#define READ_BYTES 65536
#define EVENTS 256
#define LOOK_NS 100000000u /* how often time-outs are looked for */

enum conn_state { CONN_CONNECTING, CONN_SENDING, CONN_READING, CONN_IDLE };

struct conn {
  struct conn *next, *previous; /* of the list it is in: busy or idle */
  struct client *client;
  int fd;
  enum conn_state state;
  struct load_request *request;
  bool reused; /* it has served another request before */
  size_t sent;
  struct quire_strbuf out;
  struct load_response response;
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
  load_response_fini(&conn->response);
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
  load_response_init(&conn->response, env);
  ring_add(&client->busy, conn);
  return conn;
}

/* --- the life of a request --- */

/* The request has come to its end; the connection is closed, or waits for another one. */
static void finish(struct conn *conn, enum load_outcome outcome, const char *note) {
  struct client *client = conn->client;
  struct load_request *request = conn->request;
  const struct load_response *response = &conn->response;
  char *kept = client->run->notes[outcome];
  request->outcome = outcome;
  request->status = response->status;
  request->prompt_tokens = response->prompt_tokens;
  request->completion_tokens = response->completion_tokens;
  request->cached_tokens = response->cached_tokens;
  request->done_ns = now_of(client);
  if (kept[0] == '\0') {
    snprintf(kept, LOAD_NOTE_BYTES, "%s", note);
  }
  client->finished++;
  client->running--;
  conn->request = NULL;
  if (!response->keep || conn->sent < conn->out.bytes) {
    conn_close(conn);
    return;
  }
  conn->state = CONN_IDLE;
  watch(conn, EPOLLIN | EPOLLRDHUP);
  ring_take(conn);
  ring_add(&client->idle, conn);
}

/* The same without an answer that has come to its end. */
static void fail(struct conn *conn, enum load_outcome outcome, const char *note) {
  conn->response.keep = false;
  finish(conn, outcome, note);
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

/* An event with text. False: the answer is cut here. */
static bool on_token(void *context) {
  struct conn *conn = context;
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
  return request->cut <= 0 || request->events < request->cut;
}

/* Gives a connection a request to send. */
static void begin(struct conn *conn, struct load_request *request) {
  conn->request = request;
  conn->sent = 0;
  load_response_begin(&conn->response, on_token, conn);
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
  if (conn->reused && !conn->response.begun) {
    struct conn *again = conn_open(client);
    if (again != NULL) {
      begin(again, conn->request);
      conn_close(conn);
      return;
    }
  }
  if (conn->state == CONN_CONNECTING) {
    fail(conn, LOAD_CONNECT, note);
    return;
  }
  const enum load_outcome outcome = load_response_lost(&conn->response, note);
  finish(conn, outcome, conn->response.note);
}

static void on_bytes(struct conn *conn, const char *bytes, size_t count) {
  const enum load_outcome outcome = load_response_feed(&conn->response, bytes, count);
  conn->client->no_memory = conn->client->no_memory || conn->response.no_memory;
  if (outcome != LOAD_WAITING) {
    finish(conn, outcome, conn->response.note);
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
  conn->state = CONN_READING;
  watch(conn, EPOLLIN);
}

static void look_for_timeouts(struct client *client, uint64_t now) {
  const uint64_t limit = (uint64_t)client->run->options->timeout_s * 1000000000u;
  client->looked_ns = now;
  for (struct conn *conn = client->busy.next, *next; conn != &client->busy; conn = next) {
    next = conn->next;
    if (now - conn->request->sent_ns > limit) {
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
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0 && text.bytes < LOAD_LINE_BYTES_MAX) {
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
