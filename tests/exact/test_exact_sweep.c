// ctest: timeout=300 labels=slow
/* Lengths around every edge, one by one, with two and three ranks: pages, pages x ranks, chunks, top-k. Cold, so that
 * each is a prefill of its own; the answer crosses the edge in decode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/exact_run.h"

#define SWEEP_NEW 3

struct sweep {
  int32_t ranks;
  enum quire_split split;
  enum quire_view_mode view;
  int32_t chunk;
  int32_t edges[8];
};

static const struct sweep sweeps[] = {
    {2, QUIRE_SPLIT_ZIGZAG, QUIRE_VIEW_PEER, 96, {64, 96, 128, 192}},
    {2, QUIRE_SPLIT_INTERLEAVE, QUIRE_VIEW_GATHER, 130, {64, 128, 130, 260}},
    {3, QUIRE_SPLIT_ZIGZAG, QUIRE_VIEW_GATHER, 64, {64, 128, 192, 256}},
    {3, QUIRE_SPLIT_INTERLEAVE, QUIRE_VIEW_PEER, 100, {100, 128, 192, 200}},
};
#define SWEEPS (int)(sizeof sweeps / sizeof sweeps[0])

static void sweep_edge(const struct exact_cell *base, struct quire_engine *reference, struct quire_engine *engine,
                       int32_t edge) {
  for (int32_t length = edge - 2; length <= edge + 2; length++) {
    struct exact_cell cell = *base;
    struct exact_result expected = {0}, got = {0};
    char what[EXACT_TEXT_BYTES], text[EXACT_TEXT_BYTES];
    cell.length = length;
    struct quire_engine_request request = exact_request(&cell);
    exact_engine_run(reference, &request, &expected);
    request.no_match = true;
    exact_engine_run(engine, &request, &got);
    assert_int_equal(got.hit, 0);
    if (!exact_results_equal(&expected, &got, text)) {
      exact_cell_text(&cell, what);
      fail_msg("%s: %s", what, text);
    }
    exact_result_free(&expected);
    exact_result_free(&got);
  }
}

static void lengths_around_every_edge(void **unused) {
  (void)unused;
  struct quire_tiny_options options = quire_tiny_defaults();
  options.layers = 2;
  options.heads = 4;
  options.dtype = QUIRE_TINY_BF16;
  struct exact_model model;
  exact_model_tiny(&model, &options);
  int32_t tokens[300];
  quire_tiny_tokens(17, 300, tokens);
  struct exact_cell plain = exact_cell_defaults(&model, tokens, 300);
  plain.mtp = true;
  plain.kv = QUIRE_KV_FP8;
  plain.new_max = SWEEP_NEW;
  struct quire_engine *reference = exact_engine_open(&plain, 320, 700);
  struct quire_engine_request request = exact_request(&plain);
  exact_engine_run(reference, &request, NULL);
  for (int i = 0; i < SWEEPS; i++) {
    struct exact_cell cell = plain;
    cell.ranks = sweeps[i].ranks;
    cell.split = sweeps[i].split;
    cell.sharing = QUIRE_SHARING_SHARED;
    cell.view = sweeps[i].view;
    cell.chunk = sweeps[i].chunk;
    struct quire_engine *engine = exact_engine_open(&cell, 320, 700);
    for (int e = 0; e < 8 && sweeps[i].edges[e] > 0; e++) {
      sweep_edge(&cell, reference, engine, sweeps[i].edges[e]);
    }
    exact_engine_check_idle(engine);
    quire_engine_destroy(engine);
  }
  quire_engine_destroy(reference);
  exact_model_close(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lengths_around_every_edge)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
