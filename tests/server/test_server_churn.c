/* Clients by the thousand, and clients that leave at random moments: nothing is left behind, memory stays flat.
 *
 *   many      1,000 streams at once, each read to its end and whole
 *   churn     10,000 requests, 64 at a time, of which three in ten leave: before, while or after they send, in the
 *             queue, in the middle of their answer. Afterwards free + cached = all pages, no ticket, no pin, the laws
 *             hold; the slope of resident memory over the second half is printed and bounded. */
// ctest: timeout=120
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/seed.h"
#include "support/served.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

enum { MANY = 1000, REQUESTS = 10000, AT_ONCE = 64, TAIL = 32 };

/* One request of a crowd. */
struct asker {
  int fd; /* -1: none */
  bool leaves;
  size_t leave_at; /* bytes of the answer after which it goes */
  size_t got;
  char tail[TAIL]; /* the answer's last bytes */
  bool stream;
};

static void keep_tail(struct asker *asker, const char *data, size_t bytes) {
  if (bytes >= TAIL) {
    memcpy(asker->tail, data + bytes - TAIL, TAIL);
  } else {
    memmove(asker->tail, asker->tail + bytes, TAIL - bytes);
    memcpy(asker->tail + TAIL - bytes, data, bytes);
  }
  asker->got += bytes;
}

static bool ended(const struct asker *asker) {
  static const char done[] = "data: [DONE]\n\n\r\n0\r\n\r\n";
  return memcmp(asker->tail + TAIL - (sizeof done - 1), done, sizeof done - 1) == 0;
}

static int dial(int port, int epoll_fd, uint32_t index) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = index};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event), 0);
  return fd;
}

static void raise_descriptors(void) {
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max < 8192 ? limit.rlim_max : 8192;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  assert_true(limit.rlim_cur >= 2 * MANY + 100);
}

static void many(void **state) {
  (void)state;
  static struct asker askers[MANY];
  static char buffer[1 << 16];
  struct served served;
  raise_descriptors();
  served_open(&served, &(struct served_config){.running_max = 256, .queue_max = MANY, .cache_tokens = 1 << 19});
  int epoll_fd = epoll_create1(EPOLL_CLOEXEC), open = 0;
  for (uint32_t i = 0; i < MANY; i++, open++) {
    char body[256];
    askers[i] = (struct asker){.fd = dial(served.port, epoll_fd, i)};
    snprintf(body, sizeof body,
             "{\"prompt\":[%u,7,%u],\"max_tokens\":%u,\"ignore_eos\":true,\"stream\":true,\"stream_options\":"
             "{\"include_usage\":true}}",
             1 + i, 1 + i % 50, 100 + i % 100);
    client_send(askers[i].fd, "POST", "/v1/completions", NULL, body);
  }
  while (open > 0) {
    struct epoll_event events[64];
    int count = epoll_wait(epoll_fd, events, 64, 20000);
    assert_true(count > 0);
    for (int k = 0; k < count; k++) {
      struct asker *asker = &askers[events[k].data.u32];
      ssize_t got = recv(asker->fd, buffer, sizeof buffer, 0);
      assert_true(got > 0);
      if (asker->got == 0) {
        assert_memory_equal(buffer, "HTTP/1.1 200", 12);
      }
      keep_tail(asker, buffer, (size_t)got);
      if (ended(asker)) {
        assert_true(asker->got > 100 * 100);
        close(asker->fd);
        open--;
      }
    }
  }
  close(epoll_fd);
  served_check_empty(&served);
  served_close(&served);
}

/* --- churn --- */

static int random_below(uint64_t *rng, int bound) { return (int)quire_splitmix64_below(rng, (uint64_t)bound); }

/* Half of a request, or all of it; what leaves at once is closed here. */
static void begin(struct asker *asker, uint32_t index, int port, int epoll_fd, uint64_t *rng) {
  char body[4096], head[256];
  int tokens = 1 + random_below(rng, 200), bytes;
  *asker = (struct asker){.fd = dial(port, epoll_fd, index), .stream = random_below(rng, 3) > 0};
  asker->leaves = random_below(rng, 10) < 3;
  bytes = snprintf(body, sizeof body,
                   "{\"max_tokens\":%d,\"n\":%d,\"seed\":%d,\"ignore_eos\":true,\"stream\":%s,\"prompt\":[", tokens,
                   1 + random_below(rng, 8) / 7, random_below(rng, 1000), asker->stream ? "true" : "false");
  int count = 1 + random_below(rng, 400), start = random_below(rng, 8);
  for (int i = 0; i < count; i++) {
    bytes += snprintf(body + bytes, sizeof body - (size_t)bytes, "%s%d", i > 0 ? "," : "",
                      10 + (start * 131 + i * 7) % 4000);
  }
  bytes += snprintf(body + bytes, sizeof body - (size_t)bytes, "]}");
  int head_bytes =
      snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", bytes);
  int moment = random_below(rng, 5);
  if (asker->leaves && moment < 2) {
    /* in the head, or in the body */
    send(asker->fd, head, moment == 0 ? (size_t)random_below(rng, head_bytes) : (size_t)head_bytes, MSG_NOSIGNAL);
    if (moment == 1) {
      send(asker->fd, body, (size_t)random_below(rng, bytes), MSG_NOSIGNAL);
    }
    close(asker->fd);
    asker->fd = -1;
    return;
  }
  send(asker->fd, head, (size_t)head_bytes, MSG_NOSIGNAL);
  send(asker->fd, body, (size_t)bytes, MSG_NOSIGNAL);
  if (asker->leaves && moment == 2) {
    close(asker->fd); /* queued, most likely */
    asker->fd = -1;
    return;
  }
  asker->leave_at = asker->leaves ? (size_t)random_below(rng, 30000) : SIZE_MAX;
}

/* True when the asker is done. Answers that refuse (the queue is full) end a request, too. */
static bool read_answer(struct asker *asker, int64_t *whole, int64_t *refused) {
  static char buffer[1 << 16];
  ssize_t got = recv(asker->fd, buffer, sizeof buffer, 0);
  if (got < 0 && errno == ECONNRESET && asker->leaves) {
    return true;
  }
  assert_true(got > 0);
  bool first = asker->got == 0;
  bool refusal = first && memcmp(buffer, "HTTP/1.1 429", 12) == 0;
  if (first && !refusal) {
    assert_memory_equal(buffer, "HTTP/1.1 200", 12);
  }
  keep_tail(asker, buffer, (size_t)got);
  *refused += refusal ? 1 : 0;
  bool finished = asker->stream ? ended(asker) : memcmp(asker->tail + TAIL - 2, "}}", 2) == 0;
  *whole += finished && !refusal ? 1 : 0;
  return refusal || finished || asker->got >= asker->leave_at;
}

static double resident_mb(void) {
  long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
  fclose(file);
  return (double)resident * (double)sysconf(_SC_PAGESIZE) * 1e-6;
}

/* Least squares of resident memory over requests, in bytes a request. */
struct slope {
  double n, x, y, xx, xy;
};

static void slope_add(struct slope *s, double x, double y) {
  s->n += 1;
  s->x += x;
  s->y += y;
  s->xx += x * x;
  s->xy += x * y;
}

static double slope_of(const struct slope *s) { return (s->n * s->xy - s->x * s->y) / (s->n * s->xx - s->x * s->x); }

static void churn(void **state) {
  (void)state;
  uint64_t rng = test_seed("churn");
  static struct asker askers[AT_ONCE];
  struct served served;
  struct slope slope = {0};
  raise_descriptors();
  served_open(&served, &(struct served_config){
                           .running_max = 24, .queue_max = 32, .cache_tokens = 24 * 1024, .ctx_tokens = 2048});
  int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  int64_t whole = 0, refused = 0, left = 0;
  int begun = 0, open = 0;
  for (int i = 0; i < AT_ONCE; i++) {
    askers[i].fd = -1;
  }
  double first = 0, last = 0;
  while (begun < REQUESTS || open > 0) {
    for (uint32_t i = 0; i < AT_ONCE && begun < REQUESTS; i++) {
      if (askers[i].fd < 0) {
        begin(&askers[i], i, served.port, epoll_fd, &rng);
        open += askers[i].fd >= 0 ? 1 : 0;
        left += askers[i].leaves ? 1 : 0;
        begun++;
        if (begun >= REQUESTS / 2 && begun % 50 == 0) {
          last = resident_mb();
          first = slope.n == 0 ? last : first;
          slope_add(&slope, begun, last);
        }
      }
    }
    struct epoll_event events[64];
    int count = epoll_wait(epoll_fd, events, 64, open > 0 ? 20000 : 0);
    assert_true(count > 0 || open == 0);
    for (int k = 0; k < count; k++) {
      struct asker *asker = &askers[events[k].data.u32];
      int64_t before = refused;
      if (asker->fd >= 0 && read_answer(asker, &whole, &refused)) {
        close(asker->fd);
        asker->fd = -1;
        open--;
        if (refused > before) { /* another asks in its place */
          begun--;
          left -= asker->leaves ? 1 : 0;
        }
      }
    }
  }
  close(epoll_fd);
  served_check_empty(&served);
  double bytes = slope_of(&slope) * 1e6;
  printf("%d requests: %lld whole, %lld were to leave, %lld refused; resident %.1f to %.1f MB, slope %.1f bytes a "
         "request\n",
         begun, (long long)whole, (long long)left, (long long)refused, first, last, bytes);
  assert_true(left > REQUESTS / 4 && whole > REQUESTS / 4);
  /* a request that left one page behind would show as 4,096; a sanitizer keeps what was freed */
  assert_true(bytes < 400 || SANITIZED);
  struct reply reply;
  client_ask(served.port, "GET", "/metrics", NULL, &reply);
  assert_non_null(strstr(reply.body, "\nquire_requests_open 0\n"));
  reply_free(&reply);
  served_close(&served);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many), cmocka_unit_test(churn)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
