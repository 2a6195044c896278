// ctest: timeout=120
/* The comparison itself: it must fail when a byte of a page is wrong, and does. And what the matrix does not reach:
 * rows that decode wrote equal rows that prefill writes; a second turn finds the pages of the first answer; one engine
 * serves many requests without one feeling another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_private.h"
#include "support/exact_cover.h"
#include "support/exact_run.h"

static struct exact_model model;
static int32_t tokens[400];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_FP8);
  quire_tiny_tokens(23, 400, tokens);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell four_ranks(int32_t length) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, length);
  cell.ranks = 4;
  cell.sharing = QUIRE_SHARING_SHARED;
  cell.view = QUIRE_VIEW_PEER;
  cell.chunk = 100;
  cell.mtp = true;
  cell.kv = QUIRE_KV_FP8;
  return cell;
}

static void expect_equal(const struct exact_result *expected, const struct exact_result *got) {
  char text[EXACT_TEXT_BYTES];
  if (!exact_results_equal(expected, got, text)) {
    fail_msg("%s", text);
  }
}

/* One byte of one part of a cached page is flipped: a hit must then give other bytes, and the comparison must say so.
 */
static void a_flipped_byte_is_noticed(void **unused) {
  (void)unused;
  struct exact_cell cell = four_ranks(300);
  cell.new_max = 2;
  struct quire_engine *engine = exact_engine_open(&cell, 320, 900);
  struct quire_engine_request request = exact_request(&cell);
  struct exact_result expected = {0}, got = {0};
  char text[EXACT_TEXT_BYTES];
  exact_engine_run(engine, &request, &expected);
  exact_engine_run(engine, &request, &got);
  assert_int_equal(got.hit, 256);
  expect_equal(&expected, &got);
  exact_result_free(&got);
  const struct quire_parts *parts = quire_engine_parts_of(engine);
  for (int32_t part = 0; part < parts->count; part++) {
    struct quire_error error;
    assert_int_equal(quire_engine_start(engine, &request, NULL, &error), QUIRE_OK);
    int32_t pages = 0;
    quire_page page =
        quire_cache_request_pages(engine->cache, quire_engine_find(engine, engine->solo)->handle, &pages)[1];
    struct quire_bank *bank = quire_step_bank(engine->executor, quire_page_sender(&engine->geometry, page).v);
    uint8_t *byte = quire_bank_page(bank, part, quire_page_local(&engine->geometry, page)) + 77;
    quire_engine_finish(engine);
    *byte ^= 0x10;
    exact_engine_run(engine, &request, &got);
    assert_false(exact_results_equal(&expected, &got, text));
    exact_result_free(&got);
    *byte ^= 0x10;
  }
  exact_engine_run(engine, &request, &got);
  expect_equal(&expected, &got);
  exact_result_free(&got);
  exact_result_free(&expected);
  quire_engine_destroy(engine);
}

/* The controls of the evaluation change what is computed from the pages, not only the pages. */
static void controls_change_what_follows(void **unused) {
  (void)unused;
  for (int control = 0; control < 2; control++) {
    struct exact_cell cell = four_ranks(300);
    cell.new_max = 2;
    int32_t others[400];
    quire_tiny_tokens(5, 400, others);
    struct exact_cell other = cell;
    other.tokens = others;
    struct quire_engine *engine = exact_engine_open(&cell, 320, 1200);
    struct quire_engine_request request = exact_request(&cell), second = exact_request(&other);
    struct exact_result expected = {0}, got = {0};
    exact_engine_run(engine, &request, &expected);
    exact_engine_run(engine, &second, NULL);
    int32_t changed = control == 0 ? quire_engine_mispair(engine, tokens, 300, 1)
                                   : quire_engine_replace(engine, tokens, 300, others, 300);
    assert_int_equal(changed, 4);
    exact_engine_check_idle(engine);
    exact_engine_run(engine, &request, &got);
    assert_int_equal(got.hit, 256);
    const struct quire_parts *parts = quire_engine_parts_of(engine);
    for (int32_t part = 0; part < parts->count; part++) {
      size_t row = (size_t)parts->part[part].row_bytes;
      bool index = parts->part[part].kind == QUIRE_PART_INDEX_KEY;
      bool pages_differ = memcmp(expected.rows[part] + row, got.rows[part] + row, 255 * row) != 0;
      assert_int_equal(pages_differ, control == 1 || index);
      /* rows computed after the hit see wrong pages from the second layer on; the first puts what depends on tokens */
      bool deeper = parts->part[part].model == QUIRE_PART_DRAFT || parts->part[part].layer > 0;
      bool tail_differs = memcmp(expected.rows[part] + 256 * row, got.rows[part] + 256 * row, 44 * row) != 0;
      assert_int_equal(tail_differs, deeper);
    }
    exact_result_free(&expected);
    exact_result_free(&got);
    quire_engine_destroy(engine);
  }
}

/* A row is the same whether it was a draw's (decode, commit) or a prompt's (prefill, exchange). */
static void decode_rows_equal_prefill_rows(void **unused) {
  (void)unused;
  struct exact_cell cell = four_ranks(120);
  cell.new_max = 20;
  struct quire_engine *engine = exact_engine_open(&cell, 320, 1200);
  struct quire_engine_request request = exact_request(&cell);
  struct exact_result decoded = {0}, prefilled = {0}, again = {0};
  exact_engine_run(engine, &request, &decoded);
  assert_int_equal(decoded.count, 139);
  int32_t whole[200];
  memcpy(whole, tokens, 120 * sizeof *whole);
  memcpy(whole + 120, decoded.token, 20 * sizeof *whole);
  struct quire_engine_request longer = request;
  longer.tokens = whole;
  longer.count = 139;
  longer.new_max = 1;
  longer.no_match = true;
  exact_engine_run(engine, &longer, &prefilled);
  for (int32_t part = 0; part < decoded.parts; part++) {
    assert_memory_equal(decoded.rows[part], prefilled.rows[part], 139 * (size_t)decoded.row_bytes[part]);
  }
  assert_int_equal(prefilled.token[0], decoded.token[19]);
  assert_memory_equal(&prefilled.logprob[0], &decoded.logprob[19], sizeof(float));
  /* second turn: the page that decode filled is found */
  longer.count = 140;
  longer.no_match = false;
  exact_engine_run(engine, &longer, &again);
  assert_int_equal(again.hit, 128);
  for (int32_t part = 0; part < decoded.parts; part++) {
    assert_memory_equal(decoded.rows[part], again.rows[part], 139 * (size_t)decoded.row_bytes[part]);
  }
  exact_engine_check_idle(engine);
  exact_result_free(&decoded);
  exact_result_free(&prefilled);
  exact_result_free(&again);
  quire_engine_destroy(engine);
}

/* Log-probabilities and guesses of the evaluation are results like tokens: the same bits for every worker and chunk. */
static void scores_do_not_depend_on_the_worker(void **unused) {
  (void)unused;
  static const struct {
    int32_t ranks, chunk;
    enum quire_split split;
    enum quire_view_mode view;
  } workers[] = {
      {1, 0, QUIRE_SPLIT_ZIGZAG, QUIRE_VIEW_PEER},
      {1, 64, QUIRE_SPLIT_ZIGZAG, QUIRE_VIEW_PEER},
      {3, 100, QUIRE_SPLIT_INTERLEAVE, QUIRE_VIEW_GATHER},
      {4, 37, QUIRE_SPLIT_ZIGZAG, QUIRE_VIEW_PEER},
  };
  struct quire_step_row rows[4][300];
  for (int i = 0; i < 4; i++) {
    struct exact_cell cell = four_ranks(300);
    cell.ranks = workers[i].ranks;
    cell.chunk = workers[i].chunk;
    cell.split = workers[i].split;
    cell.view = workers[i].view;
    struct quire_engine *engine = exact_engine_open(&cell, 320, 400);
    struct quire_engine_request request = exact_request(&cell);
    request.flags = QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL;
    request.rows = rows[i];
    exact_engine_run(engine, &request, NULL);
    for (int32_t p = 0; p < 300; p++) {
      if (memcmp(&rows[i][p], &rows[0][p], sizeof rows[0][p]) != 0) {
        fail_msg("worker %d position %d: %g %d %d, expected %g %d %d", i, p, (double)rows[i][p].logprob,
                 rows[i][p].argmax, rows[i][p].draft_argmax, (double)rows[0][p].logprob, rows[0][p].argmax,
                 rows[0][p].draft_argmax);
      }
      assert_true(rows[i][p].argmax >= 0 && (p == 299 || rows[i][p].logprob < 0.0f));
      assert_int_equal(rows[i][p].draft_argmax >= 0, p > 0);
    }
    quire_engine_destroy(engine);
  }
}

/* Requests that follow each other on small pools: pages are evicted, poisoned and used again, and nobody notices. */
static void a_long_life_on_a_small_cache(void **unused) {
  (void)unused;
  struct exact_cell cell = four_ranks(200);
  cell.kv = QUIRE_KV_BF16;
  cell.copy_mode = QUIRE_STREAM_DEFERRED;
  cell.copy_seed = 3;
  cell.view = QUIRE_VIEW_GATHER;
  struct exact_cell plain = exact_cell_defaults(&model, tokens, 200);
  plain.mtp = true;
  struct quire_engine *engine = exact_engine_open(&cell, 260, 320);
  struct quire_engine *reference = exact_engine_open(&plain, 260, 4000);
  uint64_t state = 1;
  for (int i = 0; i < 24; i++) {
    int32_t prompt[260];
    quire_tiny_tokens(exact_random(&state) % 3, 260, prompt);
    struct exact_cell one = cell;
    one.tokens = prompt;
    one.length = 1 + (int32_t)(exact_random(&state) % 250);
    one.new_max = (int32_t)(exact_random(&state) % 10);
    one.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    struct quire_engine_request request = exact_request(&one);
    struct exact_result expected = {0}, got = {0};
    exact_engine_run(reference, &request, &expected);
    exact_engine_run(engine, &request, &got);
    expect_equal(&expected, &got);
    exact_engine_check_idle(engine);
    exact_result_free(&expected);
    exact_result_free(&got);
  }
  struct quire_cache_stats stats;
  quire_cache_stats(quire_engine_cache(engine), &stats);
  assert_true(stats.evicted_pages > 0 && stats.hit_tokens > 0);
  quire_engine_destroy(engine);
  quire_engine_destroy(reference);
}

static bool not_both_zero(const int *row) { return !(row[0] == 0 && row[1] == 0); }

/* The cover covers: every allowed pair is in some row, and no row holds a pair that is not. */
static void cover_covers(void **unused) {
  (void)unused;
  struct exact_cover cover = {.factors = 5, .levels = {7, 5, 3, 2, 2}, .allowed = not_both_zero};
  static int rows[200][EXACT_FACTORS_MAX];
  int impossible = -1, count = exact_cover_rows(&cover, 9, rows, 200, &impossible);
  assert_int_equal(impossible, 0);
  assert_in_range(count, 34, 60);
  for (int a = 0; a < 5; a++) {
    for (int b = a + 1; b < 5; b++) {
      for (int i = 0; i < cover.levels[a]; i++) {
        for (int j = 0; j < cover.levels[b]; j++) {
          bool found = false;
          for (int r = 0; r < count; r++) {
            found = found || (rows[r][a] == i && rows[r][b] == j);
          }
          assert_int_equal(found, !(a == 0 && b == 1 && i == 0 && j == 0));
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cover_covers),
      cmocka_unit_test(a_flipped_byte_is_noticed),
      cmocka_unit_test(controls_change_what_follows),
      cmocka_unit_test(decode_rows_equal_prefill_rows),
      cmocka_unit_test(scores_do_not_depend_on_the_worker),
      cmocka_unit_test(a_long_life_on_a_small_cache),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
