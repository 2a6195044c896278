// ctest: timeout=120
/* Law 6 for a server: what each of 65 requests draws is what it draws alone on one rank, whoever runs beside it, in a
 * pool so small that they take each other's pages, with some given up on the way. (The cells of exact_matrix.h compare
 * the stored bytes of one request in company.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/exact_run.h"
#include "support/seed.h"

#define CROWD 65
#define LONGEST 230
#define NEW_MAX 70

static struct exact_model model;

struct member {
  int32_t tokens[LONGEST];
  struct quire_engine_request request;
  struct exact_result alone, served;
  uint64_t id;
  bool given_up;
};

static struct member crowd[CROWD];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell plain_cell(void) {
  struct exact_cell cell = exact_cell_defaults(&model, crowd[0].tokens, LONGEST);
  cell.kv = QUIRE_KV_FP8;
  cell.mtp = true;
  cell.temperature = 0.8f;
  return cell;
}

static void make_crowd(uint64_t *seed) {
  struct exact_cell cell = plain_cell();
  for (int32_t i = 0; i < CROWD; i++) {
    struct member *m = &crowd[i];
    memset(m, 0, sizeof *m);
    quire_tiny_tokens(300 + (uint64_t)i, LONGEST, m->tokens);
    int32_t shared = (int32_t)quire_splitmix64_below(seed, LONGEST);
    if (i % 3 != 0) { /* two families of prompts that begin alike */
      int32_t family[LONGEST];
      quire_tiny_tokens((uint64_t)(i % 3), LONGEST, family);
      memcpy(m->tokens, family, (size_t)shared * sizeof *family);
    }
    m->request = exact_request(&cell);
    m->request.tokens = m->tokens;
    m->request.count = i == 0 ? LONGEST : 1 + (int32_t)quire_splitmix64_below(seed, i % 4 == 0 ? LONGEST : 80);
    m->request.new_max = 1 + (int32_t)quire_splitmix64_below(seed, NEW_MAX);
    m->request.sampling.seed = quire_splitmix64(seed);
    m->request.sampling.temperature = i % 5 == 0 ? 0.0f : 0.8f;
    m->request.tag = (uint64_t)i;
    m->given_up = i % 13 == 5;
  }
}

static void run_alone(void) {
  struct exact_cell cell = plain_cell();
  struct quire_engine *engine = exact_engine_open(&cell, LONGEST + NEW_MAX, 4 * LONGEST);
  for (int32_t i = 0; i < CROWD; i++) {
    exact_engine_run(engine, &crowd[i].request, &crowd[i].alone);
  }
  quire_engine_destroy(engine);
}

static void hear(struct quire_engine *engine, int32_t *ended) {
  struct quire_engine_event event;
  while (quire_engine_poll(engine, &event, 1) == 1) {
    struct member *m = &crowd[event.tag];
    assert_false(m->served.ended);
    m->served.ended = event.kind != QUIRE_EVENT_TOKEN;
    *ended += m->served.ended;
    if (event.kind == QUIRE_EVENT_FAILED) {
      assert_true(m->given_up && event.status == QUIRE_ERR_CANCELLED);
    } else if (event.kind == QUIRE_EVENT_TOKEN) {
      m->served.token[m->served.drawn] = event.token;
      m->served.logprob[m->served.drawn++] = event.logprob;
    }
  }
}

/* All at once, in a random order; returns how often somebody was preempted. */
static int64_t run_together(const struct exact_cell *cell, int32_t pages, uint64_t *seed) {
  struct quire_engine_config config = exact_engine_config(cell, LONGEST + NEW_MAX, pages * QUIRE_PAGE_TOKENS);
  struct quire_engine *engine = NULL;
  struct quire_error error = {0};
  config.running_max = CROWD;
  config.queue_max = CROWD;
  assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, &error), QUIRE_OK);
  int32_t first = (int32_t)quire_splitmix64_below(seed, CROWD), ended = 0;
  for (int32_t i = 0; i < CROWD; i++) {
    struct member *m = &crowd[(first + i * 7) % CROWD];
    m->served = (struct exact_result){0};
    assert_int_equal(quire_engine_submit(engine, &m->request, &m->id, &error), QUIRE_OK);
  }
  for (int32_t tick = 0; ended < CROWD; tick++) {
    if (quire_engine_tick(engine, 0, &error) != QUIRE_OK) {
      fail_msg("%s: %s", error.where, error.text);
    }
    hear(engine, &ended);
    struct member *m = &crowd[quire_splitmix64_below(seed, CROWD)];
    if (m->given_up && !m->served.ended) {
      quire_engine_cancel(engine, m->id);
    }
  }
  while (quire_engine_active(engine) > 0) {
    assert_int_equal(quire_engine_tick(engine, 0, &error), QUIRE_OK);
  }
  struct quire_engine_stats stats;
  quire_engine_stats(engine, &stats);
  exact_engine_check_idle(engine);
  quire_engine_destroy(engine);
  return stats.preempted;
}

static void compare(const char *what) {
  for (int32_t i = 0; i < CROWD; i++) {
    const struct member *m = &crowd[i];
    assert_true(m->given_up || m->served.drawn == m->alone.drawn);
    if (memcmp(m->served.token, m->alone.token, (size_t)m->served.drawn * sizeof(int32_t)) != 0 ||
        memcmp(m->served.logprob, m->alone.logprob, (size_t)m->served.drawn * sizeof(float)) != 0) {
      fail_msg("%s: request %d (%d tokens, %d drawn) draws other tokens than alone", what, i, m->request.count,
               m->served.drawn);
    }
  }
}

static void everybody_draws_as_alone(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("exact_crowd");
  make_crowd(&seed);
  run_alone();
  static const struct {
    const char *name;
    int32_t ranks, chunk, pages;
    enum quire_sharing sharing;
    enum quire_view_mode view;
  } rows[] = {
      {"one rank, large pool", 1, 128, 400, QUIRE_SHARING_REPLICATED, QUIRE_VIEW_LOCAL},
      {"two ranks, gather, small pool", 2, 100, 14, QUIRE_SHARING_SHARED, QUIRE_VIEW_GATHER},
      {"four ranks, peer, small pool", 4, 64, 14, QUIRE_SHARING_SHARED, QUIRE_VIEW_PEER},
  };
  int64_t preempted = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct exact_cell cell = plain_cell();
    cell.ranks = rows[i].ranks;
    cell.chunk = rows[i].chunk;
    cell.sharing = rows[i].sharing;
    cell.view = rows[i].view;
    preempted += run_together(&cell, rows[i].pages, &seed);
    compare(rows[i].name);
  }
  printf("%lld preemptions\n", (long long)preempted);
  assert_true(preempted > 0);
  for (int32_t i = 0; i < CROWD; i++) {
    exact_result_free(&crowd[i].alone);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(everybody_draws_as_alone)};
  return cmocka_run_group_tests(tests, open_model, close_model);
}
