#include "support/exact_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WARM_TOKENS 150
#define WARM_NEW 2
#define OTHERS 7
/* Prompts of others: the pages they begin with are few, those they need for their second token are more than there
 * are. */
#define OTHER_TOKENS 62
#define OTHER_NEW 5
#define OTHER_PAGES 5
#define SAMPLING_SEED 7

static void expect_ok(enum quire_status status, const struct quire_error *error) {
  if (status != QUIRE_OK) {
    fail_msg("%s: %s: %s", quire_status_name(status), error->where, error->text);
  }
}

struct exact_cell exact_cell_defaults(struct exact_model *model, const int32_t *tokens, int32_t length) {
  return (struct exact_cell){
      .model = model,
      .compute = QUIRE_DTYPE_BF16,
      .kv = QUIRE_KV_BF16,
      .ranks = 1,
      .split = QUIRE_SPLIT_ZIGZAG,
      .sharing = QUIRE_SHARING_REPLICATED,
      .view = QUIRE_VIEW_LOCAL,
      .threads = 1,
      .executor = "threads",
      .isa = "auto",
      .copy_mode = QUIRE_STREAM_THREAD,
      .source = EXACT_COLD,
      .tokens = tokens,
      .length = length,
  };
}

void exact_cell_text(const struct exact_cell *cell, char text_out[EXACT_TEXT_BYTES]) {
  static const char *const sources[EXACT_SOURCES] = {"cold", "hit", "partial hit", "abandoned"};
  static const char *const views[] = {"local", "gather", "peer"};
  static const char *const samplings[EXACT_SAMPLINGS] = {"plain", "penalised", "biased", "everything"};
  static const char *const companies[EXACT_COMPANIES] = {"alone", "among others", "preempted"};
  snprintf(
      text_out, EXACT_TEXT_BYTES,
      "model %s compute %s kv %s%s%s mtp %s | ranks %d split %s kv %s view %s chunk %d executor %s threads %d isa %s "
      "weights %s copies %s (seed %llu) debug %d | %s %s%s slack %d | length %d new %d temperature %g %s%s",
      cell->model->dir, cell->compute == QUIRE_DTYPE_F32 ? "f32" : "bf16", quire_kv_format_name(cell->kv),
      cell->hadamard ? " hadamard" : "", cell->any_scale ? " any scale" : "", cell->mtp ? "on" : "off", cell->ranks,
      cell->split == QUIRE_SPLIT_ZIGZAG ? "zigzag" : "interleave",
      cell->sharing == QUIRE_SHARING_SHARED ? "shared" : "replicated", views[cell->view], cell->chunk, cell->executor,
      cell->threads, cell->isa, cell->mapped ? "mapped" : "packed",
      cell->copy_mode == QUIRE_STREAM_DEFERRED ? "deferred" : "thread", (unsigned long long)cell->copy_seed,
      cell->debug, companies[cell->company], cell->warm ? "warm " : "", sources[cell->source], cell->slack_pages,
      cell->length, cell->new_max, (double)cell->temperature, samplings[cell->sampling], cell->scored ? " scored" : "");
}

struct quire_engine_config exact_engine_config(const struct exact_cell *cell, int32_t ctx_tokens,
                                               int32_t cache_tokens) {
  struct quire_engine_config config = {
      .model = &cell->model->config,
      .options = quire_model_options_default(),
      .ranks = cell->ranks,
      .executor = cell->executor,
      .split = cell->split,
      .sharing = cell->sharing,
      .view = cell->view,
      .kv_format = cell->kv,
      .chunk_tokens = cell->chunk > 0 ? cell->chunk : ctx_tokens,
      .ctx_tokens = ctx_tokens,
      .cache_tokens = cache_tokens,
      .running_max = cell->company == EXACT_ALONE ? 1 : OTHERS + 1,
      .headroom_tokens = 1,
      .threads_per_rank = cell->threads,
      .poison = true,
      .copy_mode = cell->copy_mode,
      .copy_seed = cell->copy_seed,
      .debug_shared_kv = cell->debug,
  };
  struct quire_error error = {0};
  config.options.compute = cell->compute;
  config.options.hadamard = cell->hadamard;
  config.options.scale_pow2 = !cell->any_scale;
  if (cell->latent_norm_eps > 0) {
    config.options.latent_norm_eps = cell->latent_norm_eps;
  }
  expect_ok(quire_kernels_find(cell->isa, &config.kernels, &error), &error);
  bool packed = !cell->mapped && config.kernels->pack_weight != NULL && cell->compute == QUIRE_DTYPE_BF16;
  config.weights = exact_model_weights(cell->model, cell->compute, cell->mtp, packed ? config.kernels : NULL);
  return config;
}

struct quire_engine *exact_engine_open(const struct exact_cell *cell, int32_t ctx_tokens, int32_t cache_tokens) {
  struct quire_engine_config config = exact_engine_config(cell, ctx_tokens, cache_tokens);
  struct quire_engine *engine = NULL;
  struct quire_error error = {0};
  expect_ok(quire_engine_create(quire_env_default(), &config, &engine, &error), &error);
  return engine;
}

/* The first row that a request for log-probabilities of the second half needs. */
static int32_t scored_begin(const struct exact_cell *cell) {
  int32_t start = cell->length / 2;
  return start > 0 ? start - 1 : 0;
}

struct quire_engine_request exact_request(const struct exact_cell *cell) {
  static const struct quire_bias bias[] = {{3, 2.0f}, {17, -100.0f}, {40, 1.5f}, {41, 1.5f}, {3, 0.5f}};
  static const int32_t stops[] = {3, 40};
  struct quire_engine_request request = {
      .tokens = cell->tokens,
      .count = cell->length,
      .new_max = cell->new_max,
      .sampling = {.temperature = cell->temperature, .top_p = 1.0f, .logprobs = true, .seed = SAMPLING_SEED},
  };
  struct quire_sampling *s = &request.sampling;
  if (cell->sampling == EXACT_PENALISED || cell->sampling == EXACT_EVERYTHING) {
    s->repetition_penalty = 1.3f;
    s->presence_penalty = 0.5f;
    s->frequency_penalty = 0.25f;
  }
  if (cell->sampling == EXACT_BIASED || cell->sampling == EXACT_EVERYTHING) {
    s->bias = bias;
    s->bias_count = (int32_t)(sizeof bias / sizeof bias[0]);
    request.stops = stops;
    request.stop_count = 2;
    request.new_min = 3;
  }
  if (cell->sampling == EXACT_EVERYTHING) {
    s->top_p = 0.95f;
    s->top_k = 60;
    s->min_p = 0.01f;
    s->top_logprobs = EXACT_TOPS;
  }
  s->prompt_logprobs = cell->scored;
  s->prompt_logprobs_start = cell->scored ? cell->length / 2 : 0;
  s->prompt_top_logprobs = cell->scored ? EXACT_PROMPT_TOPS : 0;
  return request;
}

static void keep_token(struct exact_result *result, const struct quire_engine_event *event) {
  assert_true(result->drawn < EXACT_NEW_MAX);
  result->token[result->drawn] = event->token;
  result->logprob[result->drawn] = event->logprob;
  result->top_count[result->drawn] = event->top_count;
  assert_in_range(event->top_count, 0, EXACT_TOPS);
  for (int32_t i = 0; i < event->top_count; i++) {
    result->top[result->drawn][i] = event->tops[i];
  }
  result->drawn++;
}

void exact_engine_finish_steps(struct quire_engine *engine, struct exact_result *result) {
  struct quire_engine_event event = {0};
  struct quire_error error = {0};
  result->drawn = 0;
  do {
    expect_ok(quire_engine_step(engine, &event, &error), &error);
    if (event.kind == QUIRE_EVENT_TOKEN) {
      keep_token(result, &event);
    }
  } while (event.kind != QUIRE_EVENT_DONE);
}

/* Room in the result for the log-probabilities of the prompt, if they are asked for. */
static struct quire_engine_request with_rows(const struct quire_engine_request *request, struct exact_result *result) {
  struct quire_engine_request asked = *request;
  if (request->sampling.prompt_logprobs && request->rows == NULL) {
    int32_t start = request->sampling.prompt_logprobs_start;
    result->scored_begin = start > 0 ? start - 1 : 0;
    result->scored_end = request->count;
    result->scored = calloc((size_t)request->count, sizeof *result->scored);
    result->scored_top = calloc((size_t)request->count * EXACT_PROMPT_TOPS, sizeof *result->scored_top);
    assert_true(result->scored != NULL && result->scored_top != NULL);
    asked.rows = result->scored;
    asked.row_tops = result->scored_top;
  }
  return asked;
}

void exact_engine_collect(struct quire_engine *engine, struct exact_result *result) {
  const struct quire_parts *parts = quire_engine_parts_of(engine);
  struct quire_error error = {0};
  result->count = quire_engine_tokens(engine);
  result->parts = parts->count;
  for (int32_t i = 0; i < parts->count; i++) {
    size_t bytes = (size_t)result->count * (size_t)parts->part[i].row_bytes;
    result->row_bytes[i] = parts->part[i].row_bytes;
    result->rows[i] = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(result->rows[i]);
    expect_ok(quire_engine_read(engine, i, 0, result->count, result->rows[i], &error), &error);
  }
}

void exact_engine_run(struct quire_engine *engine, const struct quire_engine_request *request,
                      struct exact_result *result_out) {
  struct exact_result result = {0};
  struct quire_error error = {0};
  struct quire_engine_request asked = with_rows(request, &result);
  expect_ok(quire_engine_start(engine, &asked, &result.hit, &error), &error);
  exact_engine_finish_steps(engine, &result);
  if (result_out != NULL) {
    exact_engine_collect(engine, &result);
    *result_out = result;
  }
  quire_engine_finish(engine);
  if (result_out == NULL) {
    exact_result_free(&result);
  }
}

void exact_engine_check_idle(struct quire_engine *engine) {
  struct quire_error error = {0};
  if (!quire_engine_check_laws(engine, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  struct quire_cache_stats stats;
  quire_cache_stats(quire_engine_cache(engine), &stats);
  assert_int_equal(stats.refs, 0);
  assert_int_equal(stats.filling, 0);
  assert_int_equal(stats.requests, 0);
  assert_int_equal(stats.lost, 0);
  /* a page that waits for its poison is quarantined, and pinned by the command */
  assert_int_equal(stats.free + stats.cached + stats.quarantined, stats.pages);
}

/* Runs what has to be in the cache; returns the hit the request must find. */
static int32_t prepare(const struct exact_cell *cell, struct quire_engine *engine) {
  int32_t longest = (cell->scored ? scored_begin(cell) : cell->length - 1) / QUIRE_PAGE_TOKENS, shared = 0;
  struct quire_engine_request request = exact_request(cell);
  request.new_max = 0;
  if (cell->source == EXACT_HIT) {
    exact_engine_run(engine, &request, NULL);
    shared = cell->length;
  } else if (cell->source == EXACT_PARTIAL) {
    int32_t *tokens = malloc((size_t)cell->length * sizeof *tokens);
    assert_non_null(tokens);
    shared = cell->length * 3 / 5;
    for (int32_t i = 0; i < cell->length; i++) {
      tokens[i] = i < shared ? cell->tokens[i] : cell->tokens[i] ^ 1;
    }
    request.tokens = tokens;
    exact_engine_run(engine, &request, NULL);
    free(tokens);
  } else if (cell->source == EXACT_ABANDONED) {
    struct quire_engine_event event = {0};
    struct quire_error error = {0};
    expect_ok(quire_engine_start(engine, &request, NULL, &error), &error);
    for (int i = 0; i < 1 + cell->slack_pages % 2 && event.kind != QUIRE_EVENT_DONE; i++) {
      expect_ok(quire_engine_step(engine, &event, &error), &error);
    }
    shared = event.prefilled;
    quire_engine_finish(engine);
  }
  int32_t pages = shared / QUIRE_PAGE_TOKENS;
  return (pages < longest ? pages : longest) * QUIRE_PAGE_TOKENS;
}

/* --- company --- */

/* Events that are there: those of the request into result. */
static void take_events(struct quire_engine *engine, uint64_t id, struct exact_result *result) {
  struct quire_engine_event event;
  while (quire_engine_poll(engine, &event, 1) == 1) {
    if (event.id != id) {
      continue;
    }
    if (event.kind == QUIRE_EVENT_FAILED) {
      fail_msg("%s", quire_engine_error(engine, id)->text);
    }
    assert_false(result->ended);
    result->ended = event.kind == QUIRE_EVENT_DONE;
    if (event.kind == QUIRE_EVENT_TOKEN) {
      keep_token(result, &event);
    }
  }
}

void exact_engine_serve(struct quire_engine *engine, uint64_t id, struct exact_result *result) {
  struct quire_error error = {0};
  take_events(engine, id, result);
  while (!result->ended) {
    expect_ok(quire_engine_tick(engine, 0, &error), &error);
    take_events(engine, id, result);
  }
}

/* Others: those that are even begin like the request, as far as it goes. */
static void submit_others(const struct exact_cell *cell, struct quire_engine *engine, uint64_t ids_out[OTHERS]) {
  struct quire_error error = {0};
  for (int32_t i = 0; i < OTHERS; i++) {
    int32_t tokens[OTHER_TOKENS];
    quire_tiny_tokens(200 + (uint64_t)i, OTHER_TOKENS, tokens);
    int32_t same = i % 2 == 0 ? (cell->length < OTHER_TOKENS ? cell->length : OTHER_TOKENS) : 0;
    for (int32_t t = 0; t < same - i; t++) {
      tokens[t] = cell->tokens[t];
    }
    struct quire_engine_request request = exact_request(cell);
    request.sampling.prompt_logprobs = false;
    request.stop_count = 0;
    request.tokens = tokens;
    request.count = cell->company == EXACT_PREEMPTED ? OTHER_TOKENS : 1 + (i * 17 + cell->length) % OTHER_TOKENS;
    request.new_max = cell->company == EXACT_PREEMPTED ? OTHER_NEW : 1 + i % OTHER_NEW;
    request.priority = 1;
    expect_ok(quire_engine_submit(engine, &request, &ids_out[i], &error), &error);
  }
}

static void serve_among(const struct exact_cell *cell, struct quire_engine *engine, uint64_t id,
                        struct exact_result *result) {
  uint64_t others[OTHERS];
  struct quire_error error = {0};
  submit_others(cell, engine, others);
  for (int32_t i = 0; i < 2; i++) { /* one of them goes in the middle of it */
    expect_ok(quire_engine_tick(engine, 0, &error), &error);
    take_events(engine, id, result);
  }
  quire_engine_cancel(engine, others[3]);
  exact_engine_serve(engine, id, result);
}

/* The request stands still after a few ticks while others take its pages; then it goes on. */
static void serve_preempted(const struct exact_cell *cell, struct quire_engine *engine, uint64_t id,
                            struct exact_result *result) {
  uint64_t others[OTHERS];
  struct quire_error error = {0};
  struct quire_engine_stats stats = {0};
  for (int32_t i = 0; i <= cell->slack_pages % 4; i++) {
    expect_ok(quire_engine_tick(engine, 0, &error), &error);
    take_events(engine, id, result);
  }
  quire_engine_stats(engine, &stats);
  bool runs = stats.prefilling + stats.decoding > 0;
  submit_others(cell, engine, others);
  if (runs) {
    assert_true(quire_engine_pause(engine, id, true));
  }
  for (int32_t i = 0; quire_engine_stats(engine, &stats), stats.preempted == 0 && runs; i++) {
    assert_true(i < 2000); /* nobody gives way */
    expect_ok(quire_engine_tick(engine, 0, &error), &error);
    take_events(engine, id, result);
  }
  quire_engine_pause(engine, id, false);
  exact_engine_serve(engine, id, result);
}

/* All that is left comes to its end. */
static void serve_rest(struct quire_engine *engine) {
  struct quire_engine_event event;
  struct quire_error error = {0};
  while (quire_engine_active(engine) > 0) {
    expect_ok(quire_engine_tick(engine, 0, &error), &error);
    while (quire_engine_poll(engine, &event, 1) == 1) {
    }
  }
}

static void run_in_company(const struct exact_cell *cell, struct quire_engine *engine, struct exact_result *result) {
  struct quire_engine_request plain = exact_request(cell), request = with_rows(&plain, result);
  struct quire_error error = {0};
  uint64_t id = 0;
  request.hold = true;
  expect_ok(quire_engine_submit(engine, &request, &id, &error), &error);
  if (cell->company == EXACT_AMONG) {
    serve_among(cell, engine, id, result);
  } else {
    serve_preempted(cell, engine, id, result);
  }
  assert_true(quire_engine_watch(engine, id));
  exact_engine_collect(engine, result);
  assert_true(quire_engine_cancel(engine, id));
  serve_rest(engine);
}

void exact_cell_run(const struct exact_cell *cell, struct exact_result *result_out) {
  int32_t ctx =
      cell->length + cell->new_max > WARM_TOKENS + WARM_NEW ? cell->length + cell->new_max : WARM_TOKENS + WARM_NEW;
  int32_t cache = 2 * ctx + WARM_TOKENS + (cell->slack_pages + 4) * QUIRE_PAGE_TOKENS;
  if (cell->company == EXACT_PREEMPTED) { /* as the request needs, or the one before it, and few more */
    int32_t pages = (cell->length + cell->new_max + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS + OTHER_PAGES;
    cache = pages * QUIRE_PAGE_TOKENS;
  }
  struct quire_engine *engine = exact_engine_open(cell, ctx, cache);
  if (cell->warm) {
    int32_t tokens[WARM_TOKENS];
    quire_tiny_tokens(99, WARM_TOKENS, tokens);
    struct exact_cell other = *cell;
    other.tokens = tokens;
    other.length = WARM_TOKENS;
    other.new_max = WARM_NEW;
    struct quire_engine_request request = exact_request(&other);
    exact_engine_run(engine, &request, NULL);
  }
  int32_t hit = prepare(cell, engine);
  if (cell->company == EXACT_ALONE) {
    struct quire_engine_request request = exact_request(cell);
    exact_engine_run(engine, &request, result_out);
    assert_int_equal(result_out->hit, hit);
  } else {
    run_in_company(cell, engine, result_out);
  }
  exact_engine_check_idle(engine);
  quire_engine_destroy(engine);
}

static bool rows_equal(const struct exact_result *reference, const struct exact_result *got, int32_t part,
                       char text_out[EXACT_TEXT_BYTES]) {
  if (reference->row_bytes[part] != got->row_bytes[part]) {
    snprintf(text_out, EXACT_TEXT_BYTES, "part %d: %d bytes a row, not %d", part, got->row_bytes[part],
             reference->row_bytes[part]);
    return false;
  }
  int64_t bytes = (int64_t)got->count * got->row_bytes[part];
  if (memcmp(reference->rows[part], got->rows[part], (size_t)bytes) == 0) {
    return true;
  }
  int64_t first = 0, rows = 0;
  while (reference->rows[part][first] == got->rows[part][first]) {
    first++;
  }
  for (int32_t i = 0; i < got->count; i++) {
    int64_t at = (int64_t)i * got->row_bytes[part];
    rows += memcmp(reference->rows[part] + at, got->rows[part] + at, (size_t)got->row_bytes[part]) != 0;
  }
  snprintf(text_out, EXACT_TEXT_BYTES, "part %d: position %lld byte %lld is %02x, not %02x; %lld of %d rows differ",
           part, (long long)(first / got->row_bytes[part]), (long long)(first % got->row_bytes[part]),
           got->rows[part][first], reference->rows[part][first], (long long)rows, got->count);
  return false;
}

static bool scores_equal(const struct exact_result *reference, const struct exact_result *got,
                         char text_out[EXACT_TEXT_BYTES]) {
  for (int32_t p = got->scored_begin; p < got->scored_end; p++) {
    const struct quire_step_row *a = &reference->scored[p], *b = &got->scored[p];
    size_t at = (size_t)p * EXACT_PROMPT_TOPS;
    if (a->argmax != b->argmax || memcmp(&a->logprob, &b->logprob, sizeof a->logprob) != 0 ||
        memcmp(reference->scored_top + at, got->scored_top + at, EXACT_PROMPT_TOPS * sizeof(struct quire_top)) != 0) {
      snprintf(text_out, EXACT_TEXT_BYTES,
               "prompt position %d: %a, then %d; expected %a, %d, or other likeliest tokens", p, (double)b->logprob,
               b->argmax, (double)a->logprob, a->argmax);
      return false;
    }
    if (b->argmax == QUIRE_TOKEN_ABSENT || got->scored_top[at].token != b->argmax) {
      snprintf(text_out, EXACT_TEXT_BYTES, "prompt position %d has not been scored", p);
      return false;
    }
  }
  return true;
}

bool exact_results_equal(const struct exact_result *reference, const struct exact_result *got,
                         char text_out[EXACT_TEXT_BYTES]) {
  if (got->drawn != reference->drawn || got->count != reference->count || got->parts > reference->parts) {
    snprintf(text_out, EXACT_TEXT_BYTES, "%d tokens, %d rows, %d parts; expected %d, %d, %d", got->drawn, got->count,
             got->parts, reference->drawn, reference->count, reference->parts);
    return false;
  }
  for (int32_t part = 0; part < got->parts; part++) {
    if (!rows_equal(reference, got, part, text_out)) {
      return false;
    }
  }
  if (!scores_equal(reference, got, text_out)) {
    return false;
  }
  for (int32_t i = 0; i < got->drawn; i++) {
    if (got->top_count[i] != reference->top_count[i] ||
        memcmp(got->top[i], reference->top[i], (size_t)got->top_count[i] * sizeof *got->top[i]) != 0) {
      snprintf(text_out, EXACT_TEXT_BYTES, "token %d: other likeliest tokens", i);
      return false;
    }
    if (got->token[i] != reference->token[i] || memcmp(&got->logprob[i], &reference->logprob[i], sizeof(float)) != 0) {
      snprintf(text_out, EXACT_TEXT_BYTES, "token %d is %d (%a), expected %d (%a)", i, got->token[i],
               (double)got->logprob[i], reference->token[i], (double)reference->logprob[i]);
      return false;
    }
  }
  return true;
}

void exact_result_free(struct exact_result *result) {
  for (int32_t i = 0; i < result->parts; i++) {
    free(result->rows[i]);
  }
  free(result->scored);
  free(result->scored_top);
  memset(result, 0, sizeof *result);
}
