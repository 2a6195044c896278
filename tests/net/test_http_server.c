/* The four tests by which the HTTP library was chosen (a disconnect of a queued request is seen; pipelining survives;
 * slow readers hold no memory and push back; ambiguous framing is refused), and every limit of a connection. */
// ctest: timeout=120
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "net/http_server.h"
#include "support/seed.h"

enum { BIG_BYTES = 64 << 20, PIECE_BYTES = 16 << 10 };

/* One server in a thread of its own. /quick answers at once, /later after 150 ms, /never not at all, /echo with the
 * body, /big streams BIG_BYTES as the client takes them. */
struct fixture {
  struct quire_loop *loop;
  struct quire_http_server *server;
  struct quire_loop_watch *timer;
  struct quire_http_exchange *later[64];
  int later_count;
  struct quire_http_exchange *big, *edge;
  size_t big_sent;
  _Atomic size_t big_pending_max;
  _Atomic int gone, requests;
  pthread_t thread;
  int port;
};

static void answer_text(struct quire_http_exchange *exchange, int status, const char *text, size_t bytes) {
  quire_http_answer(exchange, &(struct quire_http_answer){status, "text/plain", NULL, text, bytes});
}

static bool begin(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head) {
  (void)context;
  if (quire_http_equal(head->path, "/refused")) {
    answer_text(exchange, 401, "no", 2);
    return false;
  }
  return true;
}

static void send_big(struct fixture *f) {
  static const char piece[PIECE_BYTES] = {'x'};
  while (f->big != NULL) {
    size_t pending = quire_http_pending(f->big);
    if (pending > f->big_pending_max) {
      f->big_pending_max = pending;
    }
    if (pending >= 64 << 10) {
      return;
    }
    if (f->big_sent >= BIG_BYTES) {
      struct quire_http_exchange *done = f->big;
      f->big = NULL;
      quire_http_stream_end(done);
      return;
    }
    assert_true(quire_http_stream_send(f->big, piece, sizeof piece));
    f->big_sent += sizeof piece;
  }
}

static void request(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head) {
  struct fixture *f = context;
  f->requests++;
  if (quire_http_equal(head->path, "/later")) {
    f->later[f->later_count++] = exchange;
    quire_loop_timer_start(f->timer, 150000000);
  } else if (quire_http_equal(head->path, "/never")) {
    quire_http_set_user(exchange, f);
  } else if (quire_http_equal(head->path, "/big")) {
    f->big = exchange;
    f->big_sent = 0;
    f->big_pending_max = 0;
    assert_true(quire_http_stream_begin(exchange, &(struct quire_http_answer){200, "text/plain", NULL, "", 0}));
    send_big(f);
  } else if (quire_http_equal(head->path, "/edge")) {
    /* a piece whose framing alone takes it over the limit */
    static char piece[64 << 10];
    memset(piece, 'x', sizeof piece);
    f->edge = exchange;
    assert_true(quire_http_stream_begin(exchange, &(struct quire_http_answer){200, "text/plain", NULL, "", 0}));
    assert_true(quire_http_stream_send(exchange, piece, sizeof piece - 3 - quire_http_pending(exchange)));
    assert_true(quire_http_pending(exchange) >= sizeof piece);
  } else if (quire_http_equal(head->path, "/echo")) {
    struct quire_http_slice body = quire_http_body(exchange);
    answer_text(exchange, 200, body.data, body.bytes);
  } else if (quire_http_equal(head->path, "/quick")) {
    answer_text(exchange, 200, "ok\n", 3);
  } else {
    answer_text(exchange, 404, "none\n", 5);
  }
}

static void gone(void *context, struct quire_http_exchange *exchange) {
  struct fixture *f = context;
  for (int i = 0; i < f->later_count; i++) {
    if (f->later[i] == exchange) {
      f->later[i] = f->later[--f->later_count];
    }
  }
  f->big = f->big == exchange ? NULL : f->big;
  f->gone++;
}

static void room(void *context, struct quire_http_exchange *exchange) {
  struct fixture *f = context;
  if (f->big == exchange) {
    send_big(f);
  } else if (f->edge == exchange) {
    f->edge = NULL;
    assert_true(quire_http_stream_send(exchange, "edge\n", 5));
    quire_http_stream_end(exchange);
  }
}

static void refuse(void *context, int status, const char *why, struct quire_strbuf *body) {
  (void)context;
  quire_strbuf_addf(body, "{\"status\":%d,\"why\":\"%s\"}", status, why);
}

static void on_timer(void *context) {
  struct fixture *f = context;
  while (f->later_count > 0) {
    answer_text(f->later[--f->later_count], 200, "later\n", 6);
  }
}

static void *run_loop(void *context) {
  struct fixture *f = context;
  quire_loop_run(f->loop, NULL);
  return NULL;
}

static struct quire_http_limits small_limits(void) {
  struct quire_http_limits limits = quire_http_limits_default();
  limits.connections = 20;
  limits.head_bytes = 4096;
  limits.body_bytes = 100000;
  limits.bodies_bytes = 150000;
  limits.out_bytes = 64 << 10;
  limits.head_ns = 600000000;
  limits.body_ns = 600000000;
  limits.idle_ns = 900000000;
  limits.write_ns = 1500000000;
  return limits;
}

static void start(struct fixture *f) {
  memset(f, 0, sizeof *f);
  const struct quire_env *env = quire_env_default();
  struct quire_error error = {0};
  assert_int_equal(quire_loop_create(env, &f->loop, &error), QUIRE_OK);
  struct quire_http_config config = {.limits = small_limits(), .handler = {f, begin, request, gone, room, refuse}};
  assert_int_equal(quire_http_server_create(env, f->loop, &config, &f->server, &error), QUIRE_OK);
  assert_int_equal(quire_loop_timer(f->loop, on_timer, f, &f->timer), QUIRE_OK);
  f->port = quire_http_server_port(f->server);
  assert_int_equal(pthread_create(&f->thread, NULL, run_loop, f), 0);
}

static void finish(struct fixture *f, struct quire_http_stats *stats_out) {
  quire_loop_stop(f->loop);
  pthread_join(f->thread, NULL);
  struct quire_http_stats stats;
  quire_http_server_stats(f->server, &stats);
  quire_http_server_destroy(f->server);
  quire_loop_watch_end(f->timer);
  quire_loop_destroy(f->loop);
  if (stats_out != NULL) {
    *stats_out = stats;
  }
}

static int dial(const struct fixture *f) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

static void put(int fd, const char *text, size_t bytes) {
  while (bytes > 0) {
    ssize_t sent = send(fd, text, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return; /* refused and closed: the answer says so */
    }
    text += sent;
    bytes -= (size_t)sent;
  }
}

static void say(int fd, const char *text) { put(fd, text, strlen(text)); }

/* Reads until `wanted` appears `times` times, the end, or 3 s of silence; returns the bytes kept, terminated. */
static size_t hear(int fd, char *out, size_t size, const char *wanted, int times) {
  size_t got = 0;
  out[0] = '\0';
  for (;;) {
    int seen = 0;
    for (const char *at = out; wanted != NULL && (at = strstr(at, wanted)) != NULL; at += strlen(wanted)) {
      seen++;
    }
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if ((wanted != NULL && seen >= times) || got + 1 >= size || poll(&wait, 1, 3000) <= 0) {
      return got;
    }
    ssize_t bytes = recv(fd, out + got, size - 1 - got, 0);
    if (bytes <= 0) {
      return got;
    }
    got += (size_t)bytes;
    out[got] = '\0';
  }
}

static int status_of(const struct fixture *f, const char *text, size_t bytes) {
  char answer[4096];
  int fd = dial(f), status = 0;
  put(fd, text, bytes);
  hear(fd, answer, sizeof answer, "\r\n\r\n", 1);
  close(fd);
  bool answered = sscanf(answer, "HTTP/1.1 %d", &status) == 1;
  assert_true(!answered || strstr(answer, "\r\nX-Request-Id: ") != NULL); /* refusals, too */
  return answered ? status : 0;
}

static bool wait_for(_Atomic int *value, int wanted) {
  for (int i = 0; i < 300 && *value < wanted; i++) {
    nanosleep(&(struct timespec){0, 10000000}, NULL);
  }
  return *value >= wanted;
}

#define HOST "Host: a\r\n"

/* Test one: the client of a request that waits leaves, alone, and behind more pipelined bytes than are read ahead. */
static void disconnect_is_seen(void **state) {
  (void)state;
  struct fixture f;
  struct quire_http_stats stats;
  start(&f);
  int fd = dial(&f);
  say(fd, "GET /never HTTP/1.1\r\n" HOST "\r\n");
  assert_true(wait_for(&f.requests, 1));
  close(fd);
  assert_true(wait_for(&f.gone, 1));
  fd = dial(&f);
  say(fd, "GET /never HTTP/1.1\r\n" HOST "\r\n");
  for (int i = 0; i < 20000; i++) {
    char more[] = "GET /quick HTTP/1.1\r\nHost: a\r\n\r\n";
    if (send(fd, more, sizeof more - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      break;
    }
  }
  assert_true(wait_for(&f.requests, 2));
  close(fd);
  assert_true(wait_for(&f.gone, 2));
  /* a closed sending side counts as leaving, but what can be answered at once is */
  char answer[1024];
  fd = dial(&f);
  say(fd, "GET /quick HTTP/1.1\r\n" HOST "\r\nGET /quick HTTP/1.1\r\n" HOST "\r\nGET /never HTTP/1.1\r\n" HOST "\r\n");
  shutdown(fd, SHUT_WR);
  hear(fd, answer, sizeof answer, "ok\n", 2);
  assert_non_null(strstr(answer, "ok\n"));
  close(fd);
  assert_true(wait_for(&f.gone, 3));
  finish(&f, &stats);
  assert_int_equal(stats.gone, 3);
  assert_int_equal(stats.exchanges, 0);
}

/* Test two: requests sent in one go are answered in order, those behind a slow one too, wherever the bytes are cut. */
static void pipelining_survives(void **state) {
  (void)state;
  uint64_t rng = test_seed("pipelining_survives");
  struct fixture f;
  start(&f);
  static char text[1 << 16], answer[1 << 16];
  for (int round = 0; round < 6; round++) {
    size_t used = 0;
    for (int i = 0; i < 40; i++) {
      if (i == 20) {
        used += (size_t)sprintf(text + used, "GET /later HTTP/1.1\r\n" HOST "\r\n");
      } else if (i % 2 == 0) {
        used += (size_t)sprintf(text + used, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 7\r\n\r\n<no %02d>", i);
      } else {
        used += (size_t)sprintf(text + used,
                                "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\n<no\r\n4\r\n"
                                " %02d>\r\n0\r\n\r\n",
                                i);
      }
    }
    int fd = dial(&f);
    for (size_t at = 0; at < used;) {
      size_t step = round == 0 ? used : 1 + quire_splitmix64_below(&rng, 200);
      step = step < used - at ? step : used - at;
      put(fd, text + at, step);
      at += step;
    }
    hear(fd, answer, sizeof answer, "<no 39>", 1);
    close(fd);
    const char *at = answer;
    for (int i = 0; i < 40; i++) {
      char wanted[16];
      snprintf(wanted, sizeof wanted, i == 20 ? "later\n" : "<no %02d>", i);
      at = strstr(at, "HTTP/1.1 200 OK");
      assert_non_null(at);
      const char *body = strstr(at, "\r\n\r\n");
      assert_non_null(body);
      assert_memory_equal(body + 4, wanted, strlen(wanted));
      at = body;
    }
  }
  finish(&f, NULL);
}

/* Test three: who does not read is not written for, and is cut off in the end; who reads slowly gets everything. */
static void back_pressure(void **state) {
  (void)state;
  struct fixture f;
  struct quire_http_stats stats;
  start(&f);
  static char answer[1 << 20];
  int fd = dial(&f);
  say(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
  size_t total = 0;
  for (ssize_t got; total < BIG_BYTES && (got = recv(fd, answer, sizeof answer, 0)) > 0;) {
    total += (size_t)got;
  }
  close(fd);
  assert_true(total >= BIG_BYTES);
  assert_true(f.big_pending_max < (64 << 10) + 2 * PIECE_BYTES);
  fd = dial(&f);
  say(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
  int before = f.gone;
  nanosleep(&(struct timespec){0, 500000000}, NULL);
  assert_int_equal(f.gone, before);
  assert_true(f.big_pending_max < (64 << 10) + 2 * PIECE_BYTES);
  assert_true(wait_for(&f.gone, before + 1));
  close(fd);
  fd = dial(&f);
  say(fd, "GET /edge HTTP/1.1\r\n" HOST "\r\n");
  hear(fd, answer, sizeof answer, "edge\n\r\n0\r\n", 1);
  assert_non_null(strstr(answer, "edge\n\r\n0\r\n"));
  close(fd);
  finish(&f, &stats);
  assert_int_equal(stats.slow_readers, 1);
}

/* Bytes to a socket as long as it takes them at once, up to `most`. */
static size_t stuff(int fd, const char *bytes, size_t count, size_t most) {
  size_t sent = 0;
  for (int idle = 0; idle < 30 && sent < most;) {
    ssize_t got = send(fd, bytes + sent % count, count - sent % count, MSG_DONTWAIT | MSG_NOSIGNAL);
    idle = got > 0 ? 0 : idle + 1;
    sent += got > 0 ? (size_t)got : 0;
    nanosleep(&(struct timespec){0, got > 0 ? 0 : 10000000}, NULL);
  }
  return sent;
}

/* Who pipelines without reading piles nothing up: its requests stay in its socket. What it reads later is all there. */
static void unread_answers(void **state) {
  (void)state;
  enum { BODY = 2000, MANY = 400 };
  static char text[MANY * (BODY + 80)], answer[1 << 16];
  struct fixture f;
  struct quire_http_stats stats;
  start(&f);
  size_t used = 0, each = 0;
  for (int i = 0; i < MANY; i++) {
    used += (size_t)sprintf(text + used, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", BODY);
    memset(text + used, 'a', BODY);
    used += BODY;
    each = i == 0 ? used : each;
  }
  int fd = dial(&f);
  size_t sent = stuff(fd, text, used, (size_t)256 << 20);
  assert_true(sent < (size_t)64 << 20);
  /* 64 KB are pending at most when the last of a read is taken up, and one socket's buffer lies before them */
  assert_true(f.requests < (int)((4 << 20) / BODY));
  int wanted = (int)(sent / each), seen = 0;
  size_t matched = 0;
  for (ssize_t got; seen < wanted && (got = recv(fd, answer, sizeof answer, 0)) > 0;) {
    for (ssize_t i = 0; i < got; i++) { /* bodies are all a's */
      matched = answer[i] == "HTTP/1.1 200 OK"[matched] ? matched + 1 : answer[i] == 'H' ? 1 : 0;
      seen += matched == 15 ? 1 : 0;
      matched = matched == 15 ? 0 : matched;
    }
  }
  assert_int_equal(seen, wanted);
  assert_int_equal(f.requests, wanted);
  close(fd);
  finish(&f, &stats);
  assert_int_equal(stats.unread, 0);
}

/* Unread answers of all connections share a budget: one above it is told to come back. */
static void unread_budget(void **state) {
  (void)state;
  enum { CLIENTS = 12, BODY = 99000 };
  static char text[BODY + 100], answer[4096];
  struct fixture f;
  start(&f);
  int fds[CLIENTS], refused = 0, small = 4096;
  int head = sprintf(text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", BODY);
  memset(text + head, 'a', BODY);
  for (int i = 0; i < CLIENTS; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
    /* six in a row: the first fills the socket's buffers, the others wait in ours */
    for (int k = 0; k < 6; k++) {
      stuff(fds[i], text, (size_t)head + BODY, (size_t)head + BODY);
    }
  }
  for (int i = 0; i < CLIENTS; i++) {
    bool found = false;
    for (size_t got; !found && (got = hear(fds[i], answer, sizeof answer, " 503 ", 1)) > 0;) {
      found = strstr(answer, "HTTP/1.1 503 ") != NULL;
    }
    refused += found;
    close(fds[i]);
  }
  assert_true(refused > 0);
  assert_int_equal(status_of(&f, "GET /quick HTTP/1.1\r\n" HOST "\r\n", 32), 200);
  finish(&f, NULL);
}

/* Test four: what two readers could frame differently gets 400, and nothing behind it is taken for a request. */
static void ambiguous_framing(void **state) {
  (void)state;
  static const char *const bad[] = {
      "Content-Length: 4\r\nContent-Length: 2\r\n\r\nbody",
      "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
      "Content-Length: 4, 4\r\n\r\nbody",
      "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "Content-Length: +4\r\n\r\nbody",
      "Content-Length: 4x\r\n\r\nbody",
      "Content-Length : 4\r\n\r\nbody",
      "X: a\r\n b\r\n\r\n",
      "X: a\n\n",
      "X: a\rb\r\n\r\n",
      "Host: b\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\nzz\r\nbody\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n4\r\nbodyGET /quick\r\n0\r\n\r\n",
  };
  struct fixture f;
  start(&f);
  char text[2048], answer[4096];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    int bytes =
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\n" HOST "%sGET /quick HTTP/1.1\r\n" HOST "\r\n", bad[i]);
    int fd = dial(&f);
    put(fd, text, (size_t)bytes);
    hear(fd, answer, sizeof answer, NULL, 0);
    close(fd);
    if (strncmp(answer, "HTTP/1.1 400", 12) != 0 || strstr(answer, "ok\n") != NULL) {
      fail_msg("case %zu: %s", i, answer);
    }
    assert_non_null(strstr(answer, "Connection: close"));
  }
  char nul[] = "GET /quick HTTP/1.1\r\nHost: a\r\nX: a?b\r\n\r\n";
  *strchr(nul, '?') = '\0';
  assert_int_equal(status_of(&f, nul, sizeof nul - 1), 400);
  assert_int_equal(f.requests, 0);
  finish(&f, NULL);
}

static int post_zeros(const struct fixture *f, size_t bytes) {
  static char text[1 << 20];
  int head = sprintf(text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n", bytes);
  memset(text + head, '0', bytes);
  return status_of(f, text, (size_t)head + bytes);
}

static void limits(void **state) {
  (void)state;
  struct fixture f;
  struct quire_http_stats stats;
  start(&f);
  static char text[1 << 16], answer[8192];
  assert_int_equal(post_zeros(&f, 100000), 200);
  assert_int_equal(post_zeros(&f, 100001), 413);
  int head = sprintf(text, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n186a1\r\n");
  memset(text + head, '0', sizeof text - (size_t)head);
  int fd = dial(&f);
  put(fd, text, sizeof text);
  put(fd, text + 100, 40000);
  hear(fd, answer, sizeof answer, "\r\n\r\n", 1);
  assert_memory_equal(answer, "HTTP/1.1 413", 12);
  close(fd);
  /* a chunk that says it is larger is refused before it comes */
  fd = dial(&f);
  put(fd, text, (size_t)sprintf(text, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n40000000\r\n"));
  hear(fd, answer, sizeof answer, "\r\n\r\n", 1);
  assert_memory_equal(answer, "HTTP/1.1 413", 12);
  close(fd);
  /* two large bodies together are above the budget of all */
  int first = dial(&f);
  head = sprintf(text, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 90000\r\n\r\n");
  memset(text + head, '0', sizeof text - (size_t)head);
  put(first, text, sizeof text);
  put(first, text + 100, 20000);
  nanosleep(&(struct timespec){0, 50000000}, NULL);
  assert_int_equal(post_zeros(&f, 90000), 503);
  close(first);
  head = sprintf(text, "GET /quick HTTP/1.1\r\n" HOST "X: ");
  memset(text + head, 'a', 5000);
  assert_int_equal(status_of(&f, text, (size_t)head + 5000), 431);
  /* no key, before the body is read; the connection ends */
  fd = dial(&f);
  say(fd, "POST /refused HTTP/1.1\r\n" HOST "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  hear(fd, answer, sizeof answer, NULL, 0);
  assert_memory_equal(answer, "HTTP/1.1 401", 12);
  assert_non_null(strstr(answer, "Connection: close"));
  close(fd);
  /* connections */
  int many[20];
  for (int i = 0; i < 20; i++) {
    many[i] = dial(&f);
  }
  assert_int_equal(status_of(&f, "", 0), 503);
  for (int i = 0; i < 20; i++) {
    close(many[i]);
  }
  finish(&f, &stats);
  assert_int_equal(stats.over_limit, 1);
}

/* A head, a body that trickle in, and a connection without a request. */
static void slow_clients(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  char answer[1024];
  int head = dial(&f), body = dial(&f), idle = dial(&f);
  say(head, "GET /quick HTTP/1.1\r\nHo");
  say(body, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 50\r\n\r\n");
  for (int i = 0; i < 20; i++) {
    say(head, "s");
    say(body, "b");
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  hear(head, answer, sizeof answer, NULL, 0);
  assert_memory_equal(answer, "HTTP/1.1 408", 12);
  hear(body, answer, sizeof answer, NULL, 0);
  assert_memory_equal(answer, "HTTP/1.1 408", 12);
  assert_int_equal(hear(idle, answer, sizeof answer, NULL, 0), 0);
  close(head);
  close(body);
  close(idle);
  finish(&f, NULL);
}

static void versions(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  char answer[4096];
  int fd = dial(&f);
  say(fd, "HEAD /quick HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST
          "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  hear(fd, answer, sizeof answer, "100 Continue\r\n\r\n", 1);
  assert_non_null(strstr(answer, "Content-Length: 3\r\n"));
  assert_null(strstr(answer, "ok\n"));
  say(fd, "abcGET /quick HTTP/1.0\r\n\r\n");
  hear(fd, answer, sizeof answer, NULL, 0);
  assert_non_null(strstr(answer, "\r\n\r\nabc"));
  assert_non_null(strstr(answer, "Connection: close\r\n"));
  close(fd);
  assert_int_equal(status_of(&f, "GET / HTTP/3.1\r\n" HOST "\r\n", 27), 505);
  assert_int_equal(status_of(&f, "GET /nothing HTTP/1.1\r\n" HOST "\r\n", 34), 404);
  finish(&f, NULL);
}

/* Empty lines before a request, and nothing after them: the loop waits for more and others are served. */
static void empty_lines(void **state) {
  (void)state;
  struct fixture f;
  start(&f);
  char answer[1024];
  int lines = dial(&f), half = dial(&f), gone = dial(&f);
  say(lines, "\r\n");
  say(half, "\r\n\r");
  say(gone, "\r\n");
  shutdown(gone, SHUT_WR);
  nanosleep(&(struct timespec){0, 50000000}, NULL);
  assert_int_equal(status_of(&f, "GET /quick HTTP/1.1\r\n" HOST "\r\n", 32), 200);
  assert_int_equal(hear(gone, answer, sizeof answer, NULL, 0), 0);
  say(lines, "GET /quick HTTP/1.1\r\n" HOST "\r\n");
  say(half, "\nGET /quick HTTP/1.1\r\n" HOST "\r\n");
  assert_true(hear(lines, answer, sizeof answer, "ok\n", 1) > 0 && strstr(answer, " 200 ") != NULL);
  assert_true(hear(half, answer, sizeof answer, "ok\n", 1) > 0 && strstr(answer, " 200 ") != NULL);
  close(lines);
  close(half);
  close(gone);
  finish(&f, NULL);
}

/* Random bytes, and real requests with a byte changed: an answer or an end, and the server lives. */
static void garbage(void **state) {
  (void)state;
  uint64_t rng = test_seed("garbage");
  struct fixture f;
  start(&f);
  const char *good = "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (int round = 0; round < 300; round++) {
    char text[256], answer[1024];
    size_t bytes = strlen(good);
    memcpy(text, good, bytes);
    for (int i = 0; i < 3; i++) {
      text[quire_splitmix64_below(&rng, bytes)] = (char)quire_splitmix64(&rng);
    }
    int fd = dial(&f);
    put(fd, text, round % 3 == 0 ? quire_splitmix64_below(&rng, bytes) : bytes);
    shutdown(fd, SHUT_WR);
    hear(fd, answer, sizeof answer, NULL, 0);
    close(fd);
  }
  assert_int_equal(status_of(&f, good, strlen(good)), 200);
  finish(&f, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(disconnect_is_seen),
      cmocka_unit_test(pipelining_survives),
      cmocka_unit_test(back_pressure),
      cmocka_unit_test(unread_answers),
      cmocka_unit_test(unread_budget),
      cmocka_unit_test(ambiguous_framing),
      cmocka_unit_test(limits),
      cmocka_unit_test(slow_clients),
      cmocka_unit_test(versions),
      cmocka_unit_test(empty_lines),
      cmocka_unit_test(garbage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
