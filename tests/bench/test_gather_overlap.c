// ctest: timeout=120 labels=quick
/* The gather of a layer runs beside the layer before it, and no attend starts ahead of its gather, whichever side is
 * slow: copies with random delays, layers that sleep, neither. By the trace, and by the bytes, which stay the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/trace.h"
#include "support/exact_run.h"

#define PROMPT 400
#define CHUNK 64
#define RANKS 2
#define LAYERS 4
#define EVENTS (1 << 14)

static struct exact_model model;
static int32_t tokens[PROMPT];

static int open_model(void **unused) {
  (void)unused;
  struct quire_tiny_options options = quire_tiny_defaults();
  options.layers = LAYERS;
  options.heads = 4;
  options.dtype = QUIRE_TINY_BF16;
  exact_model_tiny(&model, &options);
  quire_tiny_tokens(43, PROMPT, tokens);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

/* Behind put_rows, so that the gather of the next layer has been ordered. */
static void sleep_in_layer(void *context, const struct quire_tap_value *value) {
  (void)context;
  if (value->point == QUIRE_TAP_INDEX_Q) {
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
  }
}

static void run(enum quire_stream_mode copies, bool slow_layers, struct quire_trace *trace,
                struct exact_result *result) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, PROMPT);
  cell.ranks = RANKS;
  cell.sharing = QUIRE_SHARING_SHARED;
  cell.view = QUIRE_VIEW_GATHER;
  cell.chunk = CHUNK;
  cell.copy_mode = copies;
  cell.copy_seed = 7;
  struct quire_engine_config config = exact_engine_config(&cell, PROMPT + 1, 1024);
  struct quire_error error = {0};
  struct quire_engine *engine = NULL;
  config.trace = trace;
  if (quire_engine_create(quire_env_default(), &config, &engine, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  struct quire_tap tap = {sleep_in_layer, NULL};
  for (int32_t r = 0; slow_layers && r < RANKS; r++) {
    assert_true(quire_engine_tap(engine, r, &tap));
  }
  struct quire_engine_request request = exact_request(&cell);
  request.new_max = 0;
  exact_engine_run(engine, &request, result);
  quire_engine_destroy(engine);
}

/* The number-th interval of a kind, rank and layer; false past the last. */
static bool find(const struct quire_trace *trace, struct quire_trace_span span, int number,
                 struct quire_trace_event *out) {
  for (size_t i = 0; i < quire_trace_count(trace); i++) {
    struct quire_trace_event e = quire_trace_at(trace, i);
    if (e.span.kind == span.kind && e.span.rank == span.rank && e.span.layer == span.layer && number-- == 0) {
      *out = e;
      return true;
    }
  }
  return false;
}

/* When the rank was last seen to have waited for the gather of the layer, within the layer. */
static uint64_t last_wait(const struct quire_trace *trace, const struct quire_trace_event *layer) {
  uint64_t last = 0;
  for (size_t i = 0; i < quire_trace_count(trace); i++) {
    struct quire_trace_event e = quire_trace_at(trace, i);
    bool inside = e.begin_ns >= layer->begin_ns && e.end_ns <= layer->end_ns;
    if (e.span.kind == QUIRE_TRACE_WAIT && e.span.rank == layer->span.rank && e.span.layer == layer->span.layer &&
        inside && e.end_ns > last) {
      last = e.end_ns;
    }
  }
  return last;
}

/* Walks every layer of every step; *beside_out: gathers that ran beside the layer before theirs, of *all_out. */
static void check_order(const struct quire_trace *trace, int *beside_out, int *all_out) {
  struct quire_trace_event layer = {0}, gather = {0}, before = {0};
  *beside_out = *all_out = 0;
  for (int32_t rank = 0; rank < RANKS; rank++) {
    for (int32_t l = 0; l < LAYERS; l++) {
      int step = 0;
      for (; find(trace, (struct quire_trace_span){QUIRE_TRACE_LAYER, rank, l}, step, &layer); step++) {
        assert_true(find(trace, (struct quire_trace_span){QUIRE_TRACE_GATHER, rank, l}, step, &gather));
        assert_true(gather.end_ns <= last_wait(trace, &layer));
        if (l > 0) {
          assert_true(find(trace, (struct quire_trace_span){QUIRE_TRACE_LAYER, rank, l - 1}, step, &before));
          assert_true(gather.begin_ns >= before.begin_ns);
          *beside_out += gather.begin_ns < before.end_ns ? 1 : 0;
          ++*all_out;
        }
      }
      assert_int_equal(step, (PROMPT + CHUNK - 1) / CHUNK);
    }
  }
}

static void either_side_may_be_slow(void **unused) {
  (void)unused;
  static const struct {
    enum quire_stream_mode copies;
    bool slow_layers;
  } rows[] = {{QUIRE_STREAM_THREAD, false}, {QUIRE_STREAM_DEFERRED, false}, {QUIRE_STREAM_THREAD, true}};
  struct exact_result reference = {0}, result = {0};
  struct quire_trace *trace = NULL;
  char text[EXACT_TEXT_BYTES];
  assert_int_equal(quire_trace_create(quire_env_default(), EVENTS, &trace, NULL), QUIRE_OK);
  run(QUIRE_STREAM_THREAD, false, NULL, &reference);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    int beside, all;
    quire_trace_reset(trace);
    run(rows[i].copies, rows[i].slow_layers, trace, &result);
    if (!exact_results_equal(&reference, &result, text)) {
      fail_msg("row %zu: %s", i, text);
    }
    exact_result_free(&result);
    check_order(trace, &beside, &all);
    assert_true(all > 0);
    if (rows[i].slow_layers && 4 * beside < 3 * all) { /* a layer of 3 ms leaves a copy time to start */
      fail_msg("%d of %d gathers ran beside the layer before theirs", beside, all);
    }
  }
  quire_trace_destroy(trace);
  exact_result_free(&reference);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(either_side_may_be_slow)};
  return cmocka_run_group_tests(tests, open_model, close_model);
}
