// ctest: timeout=120
/* The controller: what it refuses and how, what it reserves, what a request leaves behind in whatever state it ends,
 * and numbers that are not finite. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_run.h"
#include "support/fail_env.h"

#define PROMPT 400

static struct exact_model model;
static int32_t tokens[PROMPT];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  quire_tiny_tokens(41, PROMPT, tokens);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell three_ranks(int32_t length, int32_t new_max) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, length);
  cell.ranks = 3;
  cell.sharing = QUIRE_SHARING_SHARED;
  cell.view = QUIRE_VIEW_PEER;
  cell.chunk = 100;
  cell.mtp = true;
  cell.new_max = new_max;
  return cell;
}

static struct quire_cache_stats stats_of(struct quire_engine *engine) {
  struct quire_cache_stats stats;
  quire_cache_stats(quire_engine_cache(engine), &stats);
  return stats;
}

/* --- refusals --- */

struct refusal {
  const char *name;
  void (*change)(struct quire_engine_config *config);
  enum quire_status status;
  const char *says; /* a word of the reason */
};

static void no_ranks(struct quire_engine_config *c) { c->ranks = 0; }
static void negative_ranks(struct quire_engine_config *c) { c->ranks = -3; }
static void many_ranks(struct quire_engine_config *c) { c->ranks = 1000000; }
static void local_of_shared(struct quire_engine_config *c) { c->view = QUIRE_VIEW_LOCAL; }
static void peer_of_replicated(struct quire_engine_config *c) { c->sharing = QUIRE_SHARING_REPLICATED; }
static void no_chunk(struct quire_engine_config *c) { c->chunk_tokens = 0; }
static void no_threads(struct quire_engine_config *c) { c->threads_per_rank = 0; }
static void many_threads(struct quire_engine_config *c) { c->threads_per_rank = 1 << 20; }
static void no_context(struct quire_engine_config *c) { c->ctx_tokens = 0; }
static void long_context(struct quire_engine_config *c) {
  c->ctx_tokens = c->model->positions + 1;
  c->cache_tokens = c->ctx_tokens;
}
static void small_cache(struct quire_engine_config *c) { c->cache_tokens = c->ctx_tokens - 1; }
static void unknown_executor(struct quire_engine_config *c) { c->executor = "fibers"; }

static const struct refusal refusals[] = {
    {"no ranks", no_ranks, QUIRE_ERR_ARGUMENT, "1 to 16"},
    {"negative ranks", negative_ranks, QUIRE_ERR_ARGUMENT, "1 to 16"},
    {"a million ranks", many_ranks, QUIRE_ERR_ARGUMENT, "1 to 16"},
    {"view local of shared pages", local_of_shared, QUIRE_ERR_UNSUPPORTED, "replicated"},
    {"view peer of replicated pages", peer_of_replicated, QUIRE_ERR_UNSUPPORTED, "shared"},
    {"chunks of nothing", no_chunk, QUIRE_ERR_ARGUMENT, "at least 1"},
    {"no threads", no_threads, QUIRE_ERR_ARGUMENT, "1 to 64"},
    {"a million threads", many_threads, QUIRE_ERR_ARGUMENT, "1 to 64"},
    {"no context", no_context, QUIRE_ERR_ARGUMENT, "1"},
    {"more context than positions", long_context, QUIRE_ERR_ARGUMENT, "positions"},
    {"a cache below the context", small_cache, QUIRE_ERR_ARGUMENT, "hold"},
    {"an executor nobody wrote", unknown_executor, QUIRE_ERR_UNSUPPORTED, "threads"},
};

static void what_does_not_work_is_refused(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(100, 2);
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct quire_engine_config config = exact_engine_config(&cell, 256, 512);
    refusals[i].change(&config);
    struct quire_engine *engine = NULL;
    struct quire_error error = {0};
    enum quire_status status = quire_engine_create(&fail.env, &config, &engine, &error);
    if (status != refusals[i].status || error.status != status || strstr(error.text, refusals[i].says) == NULL) {
      fail_msg("%s: %s: %s: %s", refusals[i].name, quire_status_name(status), error.where, error.text);
    }
    assert_null(engine);
    fail_env_fini(&fail);
  }
}

static void requests_that_cannot_be_are_refused(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(100, 4);
  cell.mtp = false;
  struct quire_engine *engine = exact_engine_open(&cell, 256, 256);
  struct exact_result before = {0}, after = {0};
  struct quire_engine_request good = exact_request(&cell), bad;
  struct quire_engine_event event;
  struct quire_error error = {0};
  good.no_match = true;
  exact_engine_run(engine, &good, &before);
  int32_t strange[3] = {5, 512, 7};
  bad = good;
  bad.count = 0;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  bad = good;
  bad.count = 256;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  assert_non_null(strstr(error.text, "256"));
  bad.count = 100;
  bad.new_max = -1;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  bad.new_max = INT32_MAX;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  bad = good;
  bad.tokens = strange;
  bad.count = 3;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  assert_non_null(strstr(error.text, "512"));
  strange[1] = -1;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_REQUEST);
  bad = good;
  bad.flags = QUIRE_ENTRY_DRAFT_FULL;
  assert_int_equal(quire_engine_start(engine, &bad, NULL, &error), QUIRE_ERR_UNSUPPORTED);
  assert_int_equal(quire_engine_step(engine, &event, &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_engine_start(engine, &good, NULL, &error), QUIRE_OK);
  assert_int_equal(quire_engine_start(engine, &good, NULL, &error), QUIRE_ERR_STATE);
  quire_engine_finish(engine);
  quire_engine_finish(engine);
  exact_engine_run(engine, &good, &after);
  char text[EXACT_TEXT_BYTES];
  assert_true(exact_results_equal(&before, &after, text));
  exact_engine_check_idle(engine);
  exact_result_free(&before);
  exact_result_free(&after);
  quire_engine_destroy(engine);
}

/* --- memory --- */

static void nothing_is_allocated_after_creation(void **unused) {
  (void)unused;
  static const enum quire_view_mode views[] = {QUIRE_VIEW_PEER, QUIRE_VIEW_GATHER};
  for (int v = 0; v < 2; v++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct exact_cell cell = three_ranks(250, 70);
    cell.view = views[v];
    struct quire_engine_config config = exact_engine_config(&cell, 330, 400);
    struct quire_engine *engine = NULL;
    assert_int_equal(quire_engine_create(&fail.env, &config, &engine, NULL), QUIRE_OK);
    uint64_t before = fail.allocations;
    fail.fail_from = 0;
    struct quire_engine_request request = exact_request(&cell);
    int32_t others[PROMPT];
    quire_tiny_tokens(42, PROMPT, others);
    for (int i = 0; i < 4; i++) {
      struct exact_result result = {0};
      request.tokens = i % 2 == 0 ? tokens : others;
      request.count = 250 - i;
      request.new_max = i < 2 ? 70 : 5;
      assert_int_equal(quire_engine_start(engine, &request, NULL, NULL), QUIRE_OK);
      exact_engine_finish_steps(engine, &result);
      assert_int_equal(result.drawn, request.new_max);
      quire_engine_finish(engine);
    }
    assert_true(stats_of(engine).evicted_pages > 0);
    assert_int_equal(fail.allocations, before);
    assert_int_equal(fail.log_lines[QUIRE_LOG_WARN] + fail.log_lines[QUIRE_LOG_ERROR], 0);
    quire_engine_destroy(engine);
    fail_env_fini(&fail);
  }
}

static enum quire_status create_and_destroy(void *context, const struct quire_env *env) {
  struct quire_engine *engine = NULL;
  struct quire_error error = {0};
  enum quire_status status = quire_engine_create(env, context, &engine, &error);
  if (status != QUIRE_OK) {
    assert_null(engine);
    assert_int_equal(error.status, status);
    assert_true(error.text[0] != '\0');
    return status;
  }
  quire_engine_destroy(engine);
  return QUIRE_OK;
}

static void every_allocation_of_creation_may_fail(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(60, 2);
  cell.ranks = 2;
  cell.chunk = 16;
  static const enum quire_view_mode views[] = {QUIRE_VIEW_PEER, QUIRE_VIEW_GATHER};
  for (int v = 0; v < 2; v++) {
    cell.view = views[v];
    cell.threads = 1 + v;
    struct quire_engine_config config = exact_engine_config(&cell, 64, 128);
    assert_true(fail_env_sweep(create_and_destroy, &config) > 50);
  }
}

/* The plan says before what creation takes: all but the tables, which are small. */
static void the_memory_plan_is_kept(void **unused) {
  (void)unused;
  static const enum quire_view_mode views[] = {QUIRE_VIEW_PEER, QUIRE_VIEW_GATHER};
  for (int v = 0; v < 2; v++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct exact_cell cell = three_ranks(1000, 24);
    cell.view = views[v];
    struct quire_engine_config config = exact_engine_config(&cell, 1024, 3 * 4096);
    struct quire_engine_memory memory;
    struct quire_engine *engine = NULL;
    assert_int_equal(quire_engine_plan(&config, &memory, NULL), QUIRE_OK);
    assert_int_equal(memory.pages, 192);
    assert_int_equal(memory.local_pages, 64);
    assert_int_equal(memory.bundle_bytes, 64 * 3 * (1152 + 132));
    const struct quire_step_memory *rank = &memory.rank;
    int64_t planned = quire_engine_memory_total(&config, &memory);
    assert_int_equal(rank->view.gather > 0, views[v] == QUIRE_VIEW_GATHER);
    assert_int_equal(quire_engine_create(&fail.env, &config, &engine, NULL), QUIRE_OK);
    assert_true((int64_t)fail.peak_bytes >= planned);
    if ((int64_t)fail.peak_bytes > planned + planned / 20 + (1 << 20)) {
      fail_msg("%lld bytes planned, %llu taken", (long long)planned, (unsigned long long)fail.peak_bytes);
    }
    quire_engine_destroy(engine);
    fail_env_fini(&fail);
  }
}

/* --- what a request leaves behind --- */

/* A request is ended after each of its steps in turn: all pages come back, whole ones stay cached, and the same request
 * then gives the same bytes. */
static void a_request_may_end_in_any_state(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(230, 30);
  struct exact_result expected = {0};
  struct quire_engine *engine = exact_engine_open(&cell, 300, 700);
  struct quire_engine_request request = exact_request(&cell);
  exact_engine_run(engine, &request, &expected);
  quire_engine_destroy(engine);
  for (int poison = 0; poison < 2; poison++) {
    for (int steps = 0; steps < 36; steps += steps < 5 ? 1 : 7) {
      struct quire_engine_config config = exact_engine_config(&cell, 300, 700);
      struct quire_engine_event event = {0};
      struct quire_error error = {0};
      config.poison = poison == 1;
      assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, NULL), QUIRE_OK);
      assert_int_equal(quire_engine_start(engine, &request, NULL, NULL), QUIRE_OK);
      for (int i = 0; i < steps && event.kind != QUIRE_EVENT_DONE; i++) {
        assert_int_equal(quire_engine_step(engine, &event, &error), QUIRE_OK);
        assert_true(quire_engine_check_laws(engine, NULL));
      }
      int32_t whole = quire_engine_tokens(engine) / QUIRE_PAGE_TOKENS;
      quire_engine_finish(engine);
      exact_engine_check_idle(engine);
      struct quire_cache_stats stats = stats_of(engine);
      assert_int_equal(stats.cached, whole);
      assert_int_equal(stats.free + stats.quarantined, stats.pages - whole);
      assert_true(poison == 1 || stats.quarantined == 0);
      struct exact_result got = {0};
      char text[EXACT_TEXT_BYTES];
      exact_engine_run(engine, &request, &got);
      int32_t most = (cell.length - 1) / QUIRE_PAGE_TOKENS;
      assert_int_equal(got.hit, (whole < most ? whole : most) * QUIRE_PAGE_TOKENS);
      if (!exact_results_equal(&expected, &got, text)) {
        fail_msg("ended after %d steps: %s", steps, text);
      }
      exact_result_free(&got);
      quire_engine_destroy(engine);
    }
  }
  exact_result_free(&expected);
}

static void hits_and_evictions_are_counted(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(200, 0);
  struct quire_engine *engine = exact_engine_open(&cell, 256, 6 * 64);
  struct quire_engine_request request = exact_request(&cell);
  struct exact_result result = {0};
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, 0);
  exact_result_free(&result);
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, 192);
  exact_result_free(&result);
  request.count = 192; /* the last token is always computed */
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, 128);
  exact_result_free(&result);
  struct quire_cache_stats stats = stats_of(engine);
  assert_int_equal(stats.fill_tokens, 592);
  assert_int_equal(stats.hit_tokens, 320);
  assert_int_equal(stats.cached, 3);
  assert_int_equal(stats.evicted_pages, 0);
  int32_t others[PROMPT];
  quire_tiny_tokens(43, PROMPT, others);
  request.tokens = others;
  request.count = 256;
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, 0);
  exact_result_free(&result);
  stats = stats_of(engine);
  assert_true(stats.evicted_pages >= 1);
  request.no_match = true;
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, 0);
  exact_result_free(&result);
  exact_engine_check_idle(engine);
  quire_engine_destroy(engine);
}

static void answers_end_where_they_should(void **unused) {
  (void)unused;
  struct exact_cell cell = three_ranks(70, 10);
  struct quire_engine *engine = exact_engine_open(&cell, 256, 512);
  struct quire_engine_request request = exact_request(&cell);
  struct exact_result full = {0}, cut = {0};
  struct quire_engine_event event = {0};
  exact_engine_run(engine, &request, &full);
  assert_int_equal(full.drawn, 10);
  assert_int_equal(full.count, 79); /* the last token drawn is never computed */
  int32_t stop = full.token[4], first = 4;
  while (first > 0 && full.token[first - 1] != stop) {
    first--;
  }
  int32_t at = 0;
  while (full.token[at] != stop) {
    at++;
  }
  request.stops = &stop;
  request.stop_count = 1;
  assert_int_equal(quire_engine_start(engine, &request, NULL, NULL), QUIRE_OK);
  exact_engine_finish_steps(engine, &cut);
  assert_int_equal(cut.drawn, at + 1);
  assert_int_equal(quire_engine_tokens(engine), 70 + at);
  assert_int_equal(quire_engine_step(engine, &event, NULL), QUIRE_ERR_STATE);
  quire_engine_finish(engine);
  /* the caller ends the answer after the third token */
  request.stop_count = 0;
  assert_int_equal(quire_engine_start(engine, &request, NULL, NULL), QUIRE_OK);
  int drawn = 0;
  while (event.kind != QUIRE_EVENT_DONE) {
    assert_int_equal(quire_engine_step(engine, &event, NULL), QUIRE_OK);
    drawn += event.kind == QUIRE_EVENT_TOKEN;
    if (drawn == 3) {
      quire_engine_stop(engine);
    }
  }
  assert_int_equal(drawn, 3);
  assert_int_equal(event.finish, QUIRE_FINISH_STOP);
  assert_int_equal(quire_engine_tokens(engine), 72);
  quire_engine_finish(engine);
  exact_engine_check_idle(engine);
  exact_result_free(&full);
  quire_engine_destroy(engine);
}

/* --- numbers that are not finite --- */

#define NAN_TOKEN 510 /* no prompt of ours has it */

/* The request fails in its second chunk, nothing of that chunk is cached, and the next request does not notice. */
static void expect_failure_alone(const struct quire_model_weights *weights, const int32_t *bad, int32_t count,
                                 int32_t cached, const char *executor) {
  struct exact_cell cell = three_ranks(150, 3);
  cell.kv = QUIRE_KV_FP8;
  cell.executor = executor;
  struct quire_engine_config config = exact_engine_config(&cell, 256, 400);
  struct quire_engine *engine = NULL;
  struct exact_result expected = {0}, got = {0};
  struct quire_engine_request request = exact_request(&cell), failing = request;
  struct quire_error error = {0};
  char text[EXACT_TEXT_BYTES];
  exact_cell_run(&cell, &expected);
  config.weights = weights;
  assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, NULL), QUIRE_OK);
  failing.tokens = bad;
  failing.count = count;
  for (int i = 0; i < 2; i++) {
    struct quire_engine_event event = {0};
    assert_int_equal(quire_engine_start(engine, &failing, NULL, NULL), QUIRE_OK);
    enum quire_status status = QUIRE_OK;
    while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
      status = quire_engine_step(engine, &event, &error);
    }
    assert_int_equal(status, QUIRE_ERR_NONFINITE);
    assert_int_equal(error.status, QUIRE_ERR_NONFINITE);
    assert_non_null(strstr(error.text, "restore the checkpoint"));
    assert_int_equal(quire_engine_step(engine, &event, NULL), QUIRE_ERR_STATE);
    quire_engine_finish(engine);
    exact_engine_check_idle(engine);
    assert_int_equal(quire_cache_match(quire_engine_cache(engine), bad, count), cached);
    request.no_match = i == 1;
    exact_engine_run(engine, &request, &got);
    if (!exact_results_equal(&expected, &got, text)) {
      fail_msg("%s", text);
    }
    exact_result_free(&got);
  }
  exact_result_free(&expected);
  quire_engine_destroy(engine);
}

static void weights_of_other_kernels_are_refused(void **unused) {
  (void)unused;
  struct exact_cell cell = exact_cell_defaults(&model, (const int32_t[]){1}, 1);
  cell.isa = "portable";
  struct quire_engine_config config = exact_engine_config(&cell, QUIRE_PAGE_TOKENS, QUIRE_PAGE_TOKENS);
  struct quire_model_weights weights = *config.weights;
  struct quire_error error = {0};
  weights.packed_for = quire_kernels_at(0);
  assert_ptr_not_equal(weights.packed_for, config.kernels);
  config.weights = &weights;
  assert_int_equal(quire_engine_check(&config, &error), QUIRE_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "packed for"));
  weights.packed_for = config.kernels;
  assert_int_equal(quire_engine_check(&config, &error), QUIRE_OK);
}

static void a_row_that_is_not_finite_fails_its_request(void **unused) {
  (void)unused;
  struct quire_model_weights weights = *exact_model_weights(&model, QUIRE_DTYPE_BF16, true, NULL);
  size_t bytes = (size_t)weights.embed.n * (size_t)weights.embed.ld * 2;
  uint16_t *embed = malloc(bytes);
  assert_non_null(embed);
  memcpy(embed, weights.embed.data, bytes);
  embed[(size_t)NAN_TOKEN * (size_t)weights.embed.ld + 7] = 0x7FC0;
  weights.embed.data = embed;
  int32_t bad[200];
  quire_tiny_tokens(44, 200, bad);
  for (int i = 0; i < 200; i++) {
    bad[i] = bad[i] == NAN_TOKEN ? 3 : bad[i];
  }
  bad[130] = NAN_TOKEN; /* second chunk: one whole page was sealed before */
  expect_failure_alone(&weights, bad, 200, 1, "threads");
  expect_failure_alone(&weights, bad, 200, 1, "proc");
  bad[0] = NAN_TOKEN;
  expect_failure_alone(&weights, bad, 1, 0, "threads");
  free(embed);
}

/* All that is stored is finite, but the answer is not: it must not be token 0. */
static void logits_that_are_not_finite_fail_their_request(void **unused) {
  (void)unused;
  struct exact_cell cell = exact_cell_defaults(&model, tokens, 100);
  cell.new_max = 3;
  struct quire_engine_config config = exact_engine_config(&cell, 128, 128);
  struct quire_model_weights weights = *config.weights;
  float *norm = calloc((size_t)model.config.hidden, sizeof *norm);
  assert_non_null(norm);
  memcpy(norm, weights.final_norm, (size_t)model.config.hidden * sizeof *norm);
  norm[3] = -INFINITY;
  weights.final_norm = norm;
  config.weights = &weights;
  struct quire_engine *engine = NULL;
  struct quire_engine_event event;
  struct quire_engine_request request = exact_request(&cell);
  assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, NULL), QUIRE_OK);
  assert_int_equal(quire_engine_start(engine, &request, NULL, NULL), QUIRE_OK);
  assert_int_equal(quire_engine_step(engine, &event, NULL), QUIRE_ERR_NONFINITE);
  quire_engine_finish(engine);
  exact_engine_check_idle(engine);
  request.new_max = 0; /* nothing is drawn: the cache may be filled */
  exact_engine_run(engine, &request, NULL);
  quire_engine_destroy(engine);
  free(norm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_does_not_work_is_refused),
      cmocka_unit_test(requests_that_cannot_be_are_refused),
      cmocka_unit_test(nothing_is_allocated_after_creation),
      cmocka_unit_test(every_allocation_of_creation_may_fail),
      cmocka_unit_test(the_memory_plan_is_kept),
      cmocka_unit_test(a_request_may_end_in_any_state),
      cmocka_unit_test(hits_and_evictions_are_counted),
      cmocka_unit_test(answers_end_where_they_should),
      cmocka_unit_test(weights_of_other_kernels_are_refused),
      cmocka_unit_test(a_row_that_is_not_finite_fails_its_request),
      cmocka_unit_test(logits_that_are_not_finite_fail_their_request),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
