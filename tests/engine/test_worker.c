// ctest: timeout=60
/* The engine behind its thread: what goes in comes out, readers that do not read hold nobody up, and whatever is given
 * up is given back. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/thread.h"
#include "engine/worker.h"
#include "support/sim_engine.h"

#define NEW_MAX 90

static struct quire_worker *open_worker(struct sim_engine *s, int32_t tickets, int32_t ring, uint64_t stall_ns) {
  struct quire_worker *worker = NULL;
  struct quire_error error = {0};
  sim_engine_open(s);
  struct quire_worker_config config = {s->engine, tickets, ring, stall_ns};
  if (quire_worker_create(quire_env_default(), &config, &worker, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  return worker;
}

/* Waits for news; fails the test when there are none for long. */
static int32_t wait_news(struct quire_worker *worker, quire_ticket *tickets, int32_t max) {
  for (;;) {
    int32_t count = quire_worker_ready(worker, tickets, max);
    if (count > 0) {
      return count;
    }
    struct pollfd fd = {.fd = quire_worker_fd(worker), .events = POLLIN};
    if (poll(&fd, 1, 20000) <= 0) {
      fail_msg("no news");
    }
  }
}

static struct quire_engine_request request_of(const int32_t *tokens, int32_t count, int32_t new_max) {
  return (struct quire_engine_request){
      .tokens = tokens, .count = count, .new_max = new_max, .sampling = {.temperature = 1, .top_p = 1, .seed = 5}};
}

/* Everything is given back: the worker is idle, and the cache has no page that is not free or cached. */
static void expect_idle(struct quire_worker *worker) {
  struct quire_worker_stats stats = {0};
  struct quire_error why = {0};
  for (int i = 0; i < 2000; i++) {
    quire_ticket news[4]; /* of tickets that were closed before their news was read: they are kept until then */
    quire_worker_ready(worker, news, 4);
    quire_worker_stats(worker, &stats);
    if (quire_worker_idle(worker) && stats.tickets == 0 && stats.cache.requests == 0) {
      break;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  if (!quire_worker_check(worker, &why)) {
    fail_msg("%s: %s", why.where, why.text);
  }
  quire_worker_stats(worker, &stats);
  assert_int_equal(stats.tickets, 0);
  assert_int_equal(stats.cache.requests, 0);
  assert_int_equal(stats.cache.refs, 0);
  assert_int_equal(stats.cache.free + stats.cache.cached + stats.cache.quarantined, stats.cache.pages);
  assert_int_equal(stats.engine.waiting + stats.engine.prefilling + stats.engine.decoding, 0);
}

/* Waits until every page is free, or cached where that counts. Returns the pages that are cached. */
static int32_t wait_free(struct quire_worker *worker, bool or_cached) {
  struct quire_worker_stats stats = {0};
  for (int i = 0; i < 5000; i++) {
    quire_worker_stats(worker, &stats);
    if (stats.cache.free + (or_cached ? stats.cache.cached : 0) == stats.cache.pages) {
      return stats.cache.cached;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  fail_msg("of %d pages %d are free, %d cached, %d quarantined", stats.cache.pages, stats.cache.free,
           stats.cache.cached, stats.cache.quarantined);
  return -1;
}

/* Nobody asks any more, and yet every page is free in the end: those that are poisoned before they may be used again
 * come home without another request. */
static void poisoned_pages_come_home(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  s.config.poison = true;
  struct quire_worker *worker = open_worker(&s, 4, 64, 0);
  int32_t tokens[200];
  sim_prompt(1, 0, 1, 200, tokens);
  struct quire_engine_request request = request_of(tokens, 200, 9);
  quire_ticket ticket, news[4];
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, NULL), QUIRE_OK);
  struct quire_engine_event event = {0};
  while (event.kind != QUIRE_EVENT_DONE) {
    wait_news(worker, news, 4);
    while (event.kind != QUIRE_EVENT_DONE && quire_worker_take(worker, ticket, &event, 1) == 1) {
    }
  }
  quire_worker_close(worker, ticket);
  expect_idle(worker);
  assert_true(wait_free(worker, true) > 0);
  quire_worker_flush(worker);
  wait_free(worker, false);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

struct expected {
  int32_t tokens[300];
  int32_t answer[NEW_MAX];
  int32_t count, got;
  bool ended;
};

static void many_requests_come_back(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  struct quire_worker *worker = open_worker(&s, 48, 8, 0);
  struct expected *all = calloc(40, sizeof *all);
  assert_non_null(all);
  quire_ticket tickets[40];
  for (int32_t i = 0; i < 40; i++) {
    all[i].count = 1 + (int32_t)(quire_mix64((uint64_t)i) % 299);
    sim_prompt(3, 200, (uint64_t)i, all[i].count, all[i].tokens);
    sim_answer(all[i].tokens, all[i].count, 5, NEW_MAX, all[i].answer);
    struct quire_engine_request request = request_of(all[i].tokens, all[i].count, NEW_MAX);
    struct quire_error error = {0};
    assert_int_equal(quire_worker_submit(worker, &request, &tickets[i], &error), QUIRE_OK);
  }
  for (int32_t open = 40; open > 0;) {
    quire_ticket news[7];
    int32_t count = wait_news(worker, news, 7);
    for (int32_t n = 0; n < count; n++) {
      int32_t i = 0;
      while (tickets[i].v != news[n].v) {
        i++;
      }
      struct quire_engine_event events[3];
      int32_t taken;
      while ((taken = quire_worker_take(worker, news[n], events, 3)) > 0) {
        for (int32_t e = 0; e < taken; e++) {
          assert_false(all[i].ended);
          all[i].ended = events[e].kind == QUIRE_EVENT_DONE;
          if (events[e].kind == QUIRE_EVENT_TOKEN) {
            assert_int_equal(events[e].token, all[i].answer[all[i].got]);
            assert_int_equal(events[e].position, all[i].count + all[i].got);
            all[i].got++;
          } else {
            assert_int_equal(events[e].kind, QUIRE_EVENT_DONE);
          }
        }
      }
      if (all[i].ended) {
        assert_int_equal(all[i].got, NEW_MAX);
        quire_worker_close(worker, news[n]);
        open--;
      }
    }
  }
  expect_idle(worker);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
  free(all);
}

/* One reader leaves its ring full: the others go on, it goes on when it reads, and has lost nothing. */
static void a_slow_reader_holds_nobody_up(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  struct quire_worker *worker = open_worker(&s, 8, 4, 0);
  int32_t tokens[70], answer[NEW_MAX], got = 0;
  sim_prompt(1, 0, 1, 70, tokens);
  sim_answer(tokens, 70, 5, NEW_MAX, answer);
  struct quire_engine_request request = request_of(tokens, 70, NEW_MAX);
  quire_ticket slow, fast, news[4];
  assert_int_equal(quire_worker_submit(worker, &request, &slow, NULL), QUIRE_OK);
  assert_int_equal(quire_worker_submit(worker, &request, &fast, NULL), QUIRE_OK);
  struct quire_engine_event event = {.kind = QUIRE_EVENT_TOKEN};
  while (event.kind == QUIRE_EVENT_TOKEN) {
    int32_t count = wait_news(worker, news, 4);
    for (int32_t n = 0; n < count; n++) {
      while (news[n].v == fast.v && quire_worker_take(worker, fast, &event, 1) == 1) {
      }
    }
  }
  assert_int_equal(event.kind, QUIRE_EVENT_DONE);
  quire_worker_close(worker, fast);
  for (event.kind = QUIRE_EVENT_TOKEN; event.kind == QUIRE_EVENT_TOKEN;) {
    if (quire_worker_take(worker, slow, &event, 1) == 0) {
      wait_news(worker, news, 4);
    } else if (event.kind == QUIRE_EVENT_TOKEN) {
      assert_int_equal(event.token, answer[got++]);
    }
  }
  assert_int_equal(event.kind, QUIRE_EVENT_DONE);
  assert_int_equal(got, NEW_MAX);
  quire_worker_close(worker, slow);
  expect_idle(worker);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

/* One that never reads is ended, with a reason. */
static void a_reader_that_never_reads_is_ended(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  struct quire_worker *worker = open_worker(&s, 8, 4, 20000000);
  int32_t tokens[70];
  sim_prompt(1, 0, 1, 70, tokens);
  struct quire_engine_request request = request_of(tokens, 70, NEW_MAX);
  quire_ticket ticket, news[4];
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, NULL), QUIRE_OK);
  for (int i = 0; i < 5000 && !quire_worker_idle(worker); i++) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  assert_true(quire_worker_idle(worker));
  struct quire_engine_event events[8];
  assert_int_equal(wait_news(worker, news, 4), 1);
  assert_int_equal(quire_worker_take(worker, ticket, events, 8), 4);
  assert_int_equal(events[3].kind, QUIRE_EVENT_FAILED);
  assert_int_equal(events[3].status, QUIRE_ERR_CANCELLED);
  assert_non_null(strstr(quire_worker_error(worker, ticket)->text, "unread"));
  quire_worker_close(worker, ticket);
  expect_idle(worker);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

static void refusals_come_at_once(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  s.config.running_max = 2;
  s.config.queue_max = 1;
  struct quire_worker *worker = open_worker(&s, 16, 4, 0);
  int32_t tokens[2] = {1, SIM_VOCAB};
  struct quire_error error = {0};
  quire_ticket ticket, open[3];
  struct quire_engine_request request = request_of(tokens, 2, 500), bad = request_of(tokens, 1, 500);
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, &error), QUIRE_ERR_REQUEST);
  bad.hold = true;
  assert_int_equal(quire_worker_submit(worker, &bad, &ticket, &error), QUIRE_ERR_ARGUMENT);
  bad = request_of(tokens, 1, 2000);
  assert_int_equal(quire_worker_submit(worker, &bad, &ticket, &error), QUIRE_ERR_REQUEST);
  request = request_of(tokens, 1, 500);
  for (int i = 0; i < 3; i++) { /* nobody reads: they stay */
    assert_int_equal(quire_worker_submit(worker, &request, &open[i], &error), QUIRE_OK);
  }
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, &error), QUIRE_ERR_AGAIN);
  assert_int_equal(quire_worker_cancel_all(worker), 3);
  for (int i = 0; i < 3; i++) {
    quire_worker_close(worker, open[i]);
  }
  expect_idle(worker);
  quire_worker_drain(worker);
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, &error), QUIRE_ERR_STATE);
  struct quire_worker_stats stats;
  quire_worker_stats(worker, &stats);
  assert_int_equal(stats.rejected, 1);
  assert_true(stats.draining);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

struct crowd {
  struct quire_worker *worker;
  int32_t finished; /* atomic */
};

/* Threads that submit and cancel while the reader reads and closes: what is left is nothing. */
static void *submitter(void *context) {
  struct crowd *crowd = context;
  struct quire_worker *worker = crowd->worker;
  uint64_t random = (uint64_t)(uintptr_t)&worker;
  int32_t tokens[200];
  for (int32_t i = 0; i < 300; i++) {
    int32_t count = 1 + (int32_t)quire_splitmix64_below(&random, 199);
    sim_prompt(2, 130, quire_splitmix64(&random) >> 40, count, tokens);
    struct quire_engine_request request = request_of(tokens, count, 1 + (int32_t)quire_splitmix64_below(&random, 20));
    request.sampling.top_logprobs = i % 3;
    quire_ticket ticket;
    if (quire_worker_submit(worker, &request, &ticket, NULL) != QUIRE_OK) {
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    } else if (quire_splitmix64_below(&random, 3) == 0) {
      quire_worker_cancel(worker, ticket);
    }
  }
  __atomic_add_fetch(&crowd->finished, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void a_crowd_leaves_nothing_behind(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  struct quire_worker *worker = open_worker(&s, 64, 8, 0);
  struct crowd crowd = {worker, 0};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) {
    assert_true(quire_thread_start(&threads[i], submitter, &crowd));
  }
  uint64_t random = 9;
  struct quire_worker_stats stats = {.tickets = 1};
  while (stats.tickets > 0 || __atomic_load_n(&crowd.finished, __ATOMIC_ACQUIRE) < 3) {
    quire_ticket news[16];
    int32_t count = quire_worker_ready(worker, news, 16);
    for (int32_t n = 0; n < count; n++) {
      struct quire_engine_event event;
      bool ended = false;
      while (quire_worker_take(worker, news[n], &event, 1) == 1) {
        ended = event.kind != QUIRE_EVENT_TOKEN;
        assert_int_equal(event.tag, news[n].v);
      }
      if (ended || quire_splitmix64_below(&random, 8) == 0) { /* now and then it hangs up in the middle */
        quire_worker_close(worker, news[n]);
      }
    }
    if (count == 0) {
      struct pollfd fd = {.fd = quire_worker_fd(worker), .events = POLLIN};
      poll(&fd, 1, 20);
    }
    quire_worker_stats(worker, &stats);
  }
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
  }
  expect_idle(worker);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

/* A rank fails: every ticket hears of it, and nothing more is taken. */
static void a_failed_rank_reaches_everybody(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  s.sim.fail_epoch = 60;
  struct quire_worker *worker = open_worker(&s, 8, 128, 0);
  int32_t tokens[70];
  sim_prompt(1, 0, 1, 70, tokens);
  struct quire_engine_request request = request_of(tokens, 70, NEW_MAX);
  quire_ticket tickets[4], news[8];
  int32_t inside = 0; /* on a slow machine the rank may fail before the last of them */
  while (inside < 4 && quire_worker_submit(worker, &request, &tickets[inside], NULL) == QUIRE_OK) {
    inside++;
  }
  assert_true(inside > 0);
  for (int32_t failed = 0; failed < inside;) {
    int32_t count = wait_news(worker, news, 8);
    for (int32_t n = 0; n < count; n++) {
      struct quire_engine_event event;
      while (quire_worker_take(worker, news[n], &event, 1) == 1) {
        assert_int_not_equal(event.kind, QUIRE_EVENT_DONE);
        failed += event.kind == QUIRE_EVENT_FAILED && event.status == QUIRE_ERR_RANK;
      }
    }
  }
  struct quire_error why;
  assert_int_equal(quire_worker_submit(worker, &request, &tickets[0], &why), QUIRE_ERR_STATE);
  assert_non_null(strstr(why.text, "a rank has failed"));
  struct quire_worker_stats stats;
  quire_worker_stats(worker, &stats);
  assert_true(stats.failed);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

/* Prompt log-probabilities and likeliest tokens belong to the ticket. (The simulator scores nothing: places only.) */
static void a_ticket_keeps_its_rows(void **unused) {
  (void)unused;
  struct sim_engine s;
  sim_engine_defaults(&s);
  struct quire_worker *worker = open_worker(&s, 8, 4, 0);
  int32_t tokens[70];
  sim_prompt(1, 0, 1, 70, tokens);
  struct quire_engine_request request = request_of(tokens, 70, 1);
  request.sampling.prompt_logprobs = true;
  request.sampling.prompt_top_logprobs = 2;
  quire_ticket ticket, news;
  assert_int_equal(quire_worker_submit(worker, &request, &ticket, NULL), QUIRE_OK);
  struct quire_engine_event event = {.kind = QUIRE_EVENT_TOKEN};
  while (event.kind == QUIRE_EVENT_TOKEN) {
    wait_news(worker, &news, 1);
    while (quire_worker_take(worker, ticket, &event, 1) == 1) {
    }
  }
  assert_int_equal(event.kind, QUIRE_EVENT_DONE);
  const struct quire_top *tops = NULL;
  const struct quire_step_row *rows = quire_worker_rows(worker, ticket, &tops);
  assert_non_null(rows);
  assert_non_null(tops);
  for (int32_t i = 0; i < 70; i++) { /* an ack's row that nobody scored */
    assert_int_equal(rows[i].argmax, QUIRE_TOKEN_ABSENT);
  }
  quire_worker_close(worker, ticket);
  expect_idle(worker);
  quire_worker_destroy(worker);
  sim_engine_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_requests_come_back),         cmocka_unit_test(poisoned_pages_come_home),
      cmocka_unit_test(a_slow_reader_holds_nobody_up),   cmocka_unit_test(a_reader_that_never_reads_is_ended),
      cmocka_unit_test(refusals_come_at_once),           cmocka_unit_test(a_crowd_leaves_nothing_behind),
      cmocka_unit_test(a_failed_rank_reaches_everybody), cmocka_unit_test(a_ticket_keeps_its_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
