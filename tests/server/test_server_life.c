/* The life of a server as its clients see it: loading, ready, ill, leaving, cut off; and deadlines of requests. */
// ctest: timeout=120
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/fail_env.h"
#include "support/served.h"

#define TEXT "/v1/completions"

enum { CTX_TOKENS = 1 << 15, LONG_CTX_TOKENS = 1 << 20 };

static void loading(void **state) {
  (void)state;
  struct served other;
  served_open(&other, &(struct served_config){.loading = true});
  assert_int_equal(served_status(&other, "GET", "/livez", NULL), 200);
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 503);
  assert_int_equal(served_status(&other, "POST", TEXT, NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/metrics", NULL), 200);
  served_attach(&other);
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 200);
  served_close(&other);
}

static void slow_drain(struct quire_server_options *options) { options->drain_delay_seconds = 0.6; }

/* Unready first, deaf later; what is open ends; then run returns. */
static void drain(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open_narrow(&other, CTX_TOKENS, slow_drain);
  int fd = client_connect(other.port);
  client_send(fd, "POST", TEXT, NULL, "{\"prompt\":\"a\",\"max_tokens\":20000,\"ignore_eos\":true,\"stream\":true}");
  client_wait_ms(50);
  quire_server_drain(other.server);
  client_wait_ms(150);
  assert_int_equal(served_status(&other, "GET", "/readyz", NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/livez", NULL), 200);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1}", &reply);
  assert_int_equal(reply.status, 200);
  assert_non_null(strstr(reply.head, "Connection: close"));
  reply_free(&reply);
  client_receive(fd, &reply);
  assert_true(reply.complete);
  assert_non_null(strstr(reply.body, "data: [DONE]\n\n"));
  reply_free(&reply);
  close(fd);
  served_join(&other);
  served_check_empty(&other);
  served_close(&other);
}

static void quick_end(struct quire_server_options *options) {
  options->drain_delay_seconds = 0;
  options->shutdown_seconds = 0.2;
}

/* What is open at the end, running or waiting, begun or not, is told why, also while a step hangs. */
static void cut_off(void **state) {
  (void)state;
  static const bool streams[] = {true, false, true, false}; /* two run, two wait */
  for (int stop = 0; stop < 2; stop++) {
    struct served other;
    struct reply reply;
    int fds[4];
    served_open_narrow(&other, LONG_CTX_TOKENS, quick_end);
    __atomic_store_n(&other.hang, 20, __ATOMIC_RELEASE); /* one that has begun has said so little that all is read */
    for (int i = 0; i < 4; i++) {
      char body[128];
      snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true,\"stream\":%s}",
               streams[i] ? "true" : "false");
      fds[i] = client_connect(other.port);
      client_send(fds[i], "POST", TEXT, NULL, body);
      if (i == 0) {
        struct pollfd wait = {.fd = fds[0], .events = POLLIN};
        assert_int_equal(poll(&wait, 1, 20000), 1);
      }
    }
    client_wait_ms(100);
    (stop == 0 ? quire_server_drain : quire_server_stop)(other.server);
    for (int i = 0; i < 4; i++) {
      client_receive(fds[i], &reply);
      assert_true(reply.complete);
      assert_non_null(strstr(reply.body, "\"code\":\"shutting_down\"}}"));
      if (i == 0) {
        assert_true(reply.status == 200);
        assert_non_null(strstr(reply.body, "}}\n\ndata: [DONE]\n\n"));
      } else {
        assert_int_equal(reply.status, 503);
        assert_non_null(strstr(reply.head, "Retry-After: "));
      }
      reply_free(&reply);
    }
    served_join(&other);
    __atomic_store_n(&other.hang, 0, __ATOMIC_RELEASE);
    served_check_empty(&other);
    for (int i = 0; i < 4; i++) {
      close(fds[i]);
    }
    served_close(&other);
  }
}

/* A rank that fails ends what runs with 500, whole or in its stream; then the server is unready and says so. */
static void rank_fails(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open(&other, &(struct served_config){.fail_epoch = 3000});
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}",
             &reply);
  assert_true(reply.complete);
  /* a status, if the fault was faster than the first byte */
  assert_true(reply.status == 500 || strstr(reply.body, "data: {\"error\":{\"message\":") != NULL);
  assert_non_null(strstr(reply.body, "\"type\":\"server_error\""));
  reply_free(&reply);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":5}", &reply);
  assert_int_equal(reply.status, 503);
  assert_non_null(strstr(reply.head, "Retry-After: "));
  reply_free(&reply);
  for (int i = 0; i < 40 && served_status(&other, "GET", "/readyz", NULL) == 200; i++) {
    client_wait_ms(100);
  }
  assert_int_equal(served_status(&other, "GET", "/readyz", NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/livez", NULL), 200);
  served_close(&other);
}

/* When a rank fails under many requests, all are answered, and the log says so once. */
static void failures_share_a_line(void **state) {
  (void)state;
  enum { CLIENTS = 12 };
  struct fail_env env;
  struct served other;
  struct reply reply;
  int fds[CLIENTS], failed = 0;
  fail_env_init(&env);
  served_open(&other, &(struct served_config){.env = &env.env, .fail_epoch = 50});
  __atomic_store_n(&other.hang, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < CLIENTS; i++) {
    fds[i] = client_connect(other.port);
    client_send(fds[i], "POST", TEXT, NULL, "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}");
  }
  bool all = false;
  for (int i = 0; i < 100 && !all; i++) {
    client_ask(other.port, "GET", "/metrics", NULL, &reply);
    all = strstr(reply.body, "\nquire_requests_open 12\n") != NULL;
    reply_free(&reply);
    client_wait_ms(all ? 0 : 20);
  }
  assert_true(all);
  __atomic_store_n(&other.hang, 0, __ATOMIC_RELEASE); /* the first step ends, the others come in, and the 50th fails */
  for (int i = 0; i < CLIENTS; i++) {
    client_receive(fds[i], &reply);
    failed += reply.status == 500;
    reply_free(&reply);
    close(fds[i]);
  }
  assert_int_equal(failed, CLIENTS);
  client_wait_ms(700);
  served_close(&other);
  assert_int_equal(env.log_lines[QUIRE_LOG_WARN], 1);
  assert_non_null(strstr(env.log, "requests failed count=12 first_id=cmpl-"));
  fail_env_fini(&env);
}

static void becomes(const struct served *other, const char *path, int status) {
  for (int i = 0; i < 60 && served_status(other, "GET", path, NULL) != status; i++) {
    client_wait_ms(50);
  }
  assert_int_equal(served_status(other, "GET", path, NULL), status);
}

static void quick_health(struct quire_server_options *options) { options->health_seconds = 0.4; }

/* A step that does not end makes the server ill, without the controller being asked; it is well again when it ends. */
static void worker_hangs(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open(&other, &(struct served_config){.change = quick_health});
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200);
  __atomic_store_n(&other.hang, 1, __ATOMIC_RELEASE);
  client_wait_ms(700); /* nothing runs: an idle worker comes by */
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 200);
  /* what only looks at the heartbeat is well until the limit, what needs a step is told at the limit */
  int fd = client_connect(other.port);
  client_send(fd, "GET", "/health_generate", NULL, NULL);
  client_receive(fd, &reply);
  assert_int_equal(reply.status, 503);
  assert_non_null(strstr(reply.body, "has not moved"));
  assert_non_null(strstr(reply.head, "Retry-After: "));
  reply_free(&reply);
  close(fd);
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/readyz", NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 503);
  assert_int_equal(served_status(&other, "GET", "/livez", NULL), 200);
  assert_int_equal(served_status(&other, "GET", "/metrics", NULL), 200);
  __atomic_store_n(&other.hang, 0, __ATOMIC_RELEASE);
  becomes(&other, "/health", 200);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200);
  served_check_empty(&other);
  served_close(&other);
}

/* A rank that dies while nothing runs is missed before a request finds out. */
static void rank_dies_idle(void **state) {
  (void)state;
  struct served other;
  served_open(&other, &(struct served_config){0});
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 200);
  __atomic_store_n(&other.dead, 1, __ATOMIC_RELEASE);
  becomes(&other, "/health", 503);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 503);
  assert_int_equal(served_status(&other, "POST", "/generate", NULL), 400); /* the body first */
  json_t *root = NULL;
  struct reply reply;
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1}", &reply);
  root = reply_json(&reply);
  assert_int_equal(reply.status, 503);
  assert_string_equal(json_text_at(root, "error.type"), "unavailable_error");
  json_decref(root);
  reply_free(&reply);
  served_close(&other);
}

/* A probe needs no place: a worker that is full of requests that move is well, and probes count nowhere. */
static void busy_worker_is_well(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  int fds[4];
  served_open_full(&other, LONG_CTX_TOKENS, fds);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200); /* the queue is full */
  close(fds[3]);
  client_wait_ms(100);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200); /* it waits, others draw */
  for (int i = 0; i < 3; i++) {
    close(fds[i]);
  }
  served_check_empty(&other);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200); /* it draws */
  client_ask(other.port, "GET", "/metrics", NULL, &reply);
  assert_non_null(strstr(reply.body, "\nquire_requests_total{end=\"length\"} 0\n"));
  assert_non_null(strstr(reply.body, "\nquire_rejected_total 0\n"));
  reply_free(&reply);
  served_check_empty(&other);
  served_close(&other);
}

static void short_requests(struct quire_server_options *options) { options->request_seconds = 0.3; }

/* A request has its deadline also while a step hangs. */
static void deadline_while_hung(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open(&other, &(struct served_config){.change = short_requests});
  __atomic_store_n(&other.hang, 1, __ATOMIC_RELEASE);
  int whole = client_connect(other.port), streamed = client_connect(other.port);
  client_send(whole, "POST", TEXT, NULL, "{\"prompt\":\"a\",\"max_tokens\":5}");
  client_send(streamed, "POST", TEXT, NULL, "{\"prompt\":\"a\",\"max_tokens\":5,\"n\":2,\"stream\":true}");
  client_receive(whole, &reply);
  assert_int_equal(reply.status, 408);
  assert_non_null(strstr(reply.body, "\"code\":\"deadline\""));
  reply_free(&reply);
  client_receive(streamed, &reply);
  assert_int_equal(reply.status, 408);
  reply_free(&reply);
  close(whole);
  close(streamed);
  __atomic_store_n(&other.hang, 0, __ATOMIC_RELEASE);
  served_check_empty(&other);
  assert_int_equal(served_status(&other, "GET", "/health_generate", NULL), 200);
  served_close(&other);
}

static void deadline(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open_narrow(&other, LONG_CTX_TOKENS, short_requests);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true}", &reply);
  assert_int_equal(reply.status, 408);
  reply_free(&reply);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true,\"stream\":true}",
             &reply);
  assert_int_equal(reply.status, 200);
  assert_true(reply.complete);
  const char *fault = strstr(reply.body, "data: {\"error\":{\"message\":");
  assert_non_null(fault);
  assert_non_null(strstr(fault, "\"code\":\"deadline\"}}\n\ndata: [DONE]\n\n"));
  reply_free(&reply);
  served_check_empty(&other);
  served_close(&other);
}

/* An argument is a pattern of the tests to run. */
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(loading),
      cmocka_unit_test(drain),
      cmocka_unit_test(cut_off),
      cmocka_unit_test(deadline),
      cmocka_unit_test(deadline_while_hung),
      cmocka_unit_test(rank_fails),
      cmocka_unit_test(failures_share_a_line),
      cmocka_unit_test(worker_hangs),
      cmocka_unit_test(rank_dies_idle),
      cmocka_unit_test(busy_worker_is_well),
  };
  return cmocka_run_group_tests_name("server life", tests, NULL, NULL);
}
