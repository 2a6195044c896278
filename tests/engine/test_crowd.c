// ctest: timeout=120
/* Requests that ask everything of sampling, many at once in a cache too small for them: each is preempted and resumes
 * among others, and says the same tokens, log-probabilities and alternatives as alone (law 6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_run.h"
#include "support/tiny_model.h"

#define REQUESTS 8
#define NEW 125
#define CTX 320
#define SMALL_CACHE (10 * QUIRE_PAGE_TOKENS)
#define TICKS_MAX 20000

static struct exact_model model;
static int32_t prompts[REQUESTS][CTX];
static struct exact_cell cells[REQUESTS];
static struct exact_result alone[REQUESTS];

static struct quire_engine_request request_of(int32_t i) {
  struct quire_engine_request request = exact_request(&cells[i]);
  request.sampling.seed = (uint64_t)(1000 + i);
  request.tag = (uint64_t)i;
  request.new_min = NEW; /* a stop may not be drawn before the end */
  return request;
}

/* Prompts of 50 to 155 tokens, each way of sampling twice, greedy and not. */
static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  for (int32_t i = 0; i < REQUESTS; i++) {
    quire_tiny_tokens((uint64_t)(50 + i), CTX, prompts[i]);
    cells[i] = exact_cell_defaults(&model, prompts[i], 50 + 15 * i);
    cells[i].mtp = true;
    cells[i].new_max = NEW;
    cells[i].sampling = (enum exact_sampling)(i % EXACT_SAMPLINGS);
    cells[i].temperature = i % 3 == 0 ? 0.0f : 0.9f;
  }
  struct quire_engine *engine = exact_engine_open(&cells[0], CTX, 4 * CTX);
  for (int32_t i = 0; i < REQUESTS; i++) {
    struct quire_engine_request request = request_of(i);
    exact_engine_run(engine, &request, &alone[i]);
    assert_int_equal(alone[i].drawn, NEW);
  }
  quire_engine_destroy(engine);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  for (int32_t i = 0; i < REQUESTS; i++) {
    exact_result_free(&alone[i]);
  }
  exact_model_close(&model);
  return 0;
}

static void expect_token(const struct quire_engine_event *event, int32_t at) {
  int32_t i = (int32_t)event->tag;
  const struct exact_result *want = &alone[i];
  assert_true(at < NEW);
  assert_int_equal(event->position, cells[i].length + at);
  if (event->token != want->token[at] || memcmp(&event->logprob, &want->logprob[at], sizeof(float)) != 0) {
    fail_msg("request %d token %d: %d (%a), alone %d (%a)", i, at, event->token, (double)event->logprob,
             want->token[at], (double)want->logprob[at]);
  }
  assert_int_equal(event->top_count, want->top_count[at]);
  assert_true(event->top_count == 0 ||
              memcmp(event->tops, want->top[at], (size_t)event->top_count * sizeof *event->tops) == 0);
}

static void a_crowd_says_what_each_says_alone(int32_t ranks, enum quire_view_mode view, const char *executor) {
  struct exact_cell cell = cells[0];
  cell.ranks = ranks;
  cell.view = view;
  cell.sharing = ranks > 1 ? QUIRE_SHARING_SHARED : QUIRE_SHARING_REPLICATED;
  cell.executor = executor;
  cell.chunk = 100;
  struct quire_engine_config config = exact_engine_config(&cell, CTX, SMALL_CACHE);
  config.running_max = REQUESTS;
  config.queue_max = REQUESTS;
  config.headroom_tokens = 1;
  struct quire_engine *engine = NULL;
  struct quire_error error = {0};
  assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, &error), QUIRE_OK);
  int32_t got[REQUESTS] = {0}, ended = 0;
  for (int32_t i = 0; i < REQUESTS; i++) {
    struct quire_engine_request request = request_of(i);
    uint64_t id;
    assert_int_equal(quire_engine_submit(engine, &request, &id, &error), QUIRE_OK);
  }
  for (uint64_t tick = 1; ended < REQUESTS; tick++) {
    assert_true(tick < TICKS_MAX);
    if (quire_engine_tick(engine, tick, &error) != QUIRE_OK) {
      fail_msg("%s: %s", error.where, error.text);
    }
    struct quire_engine_event event;
    while (quire_engine_poll(engine, &event, 1) == 1) {
      if (event.kind == QUIRE_EVENT_TOKEN) {
        expect_token(&event, got[event.tag]++);
      } else {
        assert_int_equal(event.kind, QUIRE_EVENT_DONE);
        assert_int_equal(got[event.tag], NEW);
        ended++;
      }
    }
  }
  struct quire_engine_stats stats;
  quire_engine_stats(engine, &stats);
  assert_true(stats.preempted > 0);
  printf("%d ranks, %s: %lld preempted in %lld steps\n", ranks, executor, (long long)stats.preempted,
         (long long)stats.steps);
  quire_engine_destroy(engine);
}

static void on_one_rank(void **unused) {
  (void)unused;
  a_crowd_says_what_each_says_alone(1, QUIRE_VIEW_LOCAL, "threads");
}

static void by_peer(void **unused) {
  (void)unused;
  a_crowd_says_what_each_says_alone(3, QUIRE_VIEW_PEER, "threads");
}

static void by_gather_in_processes(void **unused) {
  (void)unused;
  a_crowd_says_what_each_says_alone(2, QUIRE_VIEW_GATHER, "proc");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(on_one_rank),
      cmocka_unit_test(by_peer),
      cmocka_unit_test(by_gather_in_processes),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
