// ctest: timeout=120
/* --debug-shared-kv: quiet when all is well, and each of the three faults is found within one step of the one it was
 * put into, by either executor and view, and its place is named; without the switch nothing is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_run.h"

#define PROMPT 400
#define CHUNK 128 /* whole pages: a swapped page then holds no poison that would give it away */

static struct exact_model model;
static int32_t tokens[PROMPT];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_FP8);
  quire_tiny_tokens(41, PROMPT, tokens);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

struct fault {
  enum quire_view_fault what;
  uint64_t epoch;
  bool debug;
};

struct ran {
  int steps; /* that were begun */
  enum quire_status verdict;
  struct quire_error why; /* of the verdict */
};

/* Steps until the end or the first error. */
static enum quire_status run(const struct exact_cell *cell, struct fault fault, struct ran *ran_out,
                             struct quire_error *error) {
  struct quire_engine_config config = exact_engine_config(cell, PROMPT + 16, 1000);
  config.debug_shared_kv = fault.debug;
  config.fault = fault.what;
  config.fault_epoch = fault.epoch;
  struct quire_engine *engine = NULL;
  assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, error), QUIRE_OK);
  struct quire_engine_request request = exact_request(cell);
  struct quire_engine_event event = {0};
  enum quire_status status = quire_engine_start(engine, &request, NULL, error);
  *ran_out = (struct ran){0};
  for (; status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE; ran_out->steps++) {
    status = quire_engine_step(engine, &event, error);
  }
  struct quire_engine_stats stats;
  quire_engine_stats(engine, &stats);
  ran_out->verdict = quire_engine_judge_fault(&config, &stats, &ran_out->why);
  quire_engine_finish(engine);
  quire_engine_destroy(engine);
  return status;
}

static struct exact_cell shared_cell(enum quire_view_mode view, const char *executor) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, PROMPT);
  cell.ranks = 3;
  cell.sharing = QUIRE_SHARING_SHARED;
  cell.view = view;
  cell.chunk = CHUNK;
  cell.mtp = true;
  cell.new_max = 8;
  cell.executor = executor;
  return cell;
}

/* "..: rank R, page P (owner O), target|draft latent|index key layer L, row W": all of it, and true where it can be
 * known here. */
static void expect_place(const struct exact_cell *cell, const char *text, enum quire_view_fault fault) {
  int rank = -1, page = -1, owner = -1, layer = -1, row = -1;
  char model_name[16] = "", kind[24] = "";
  const char *place = strstr(text, ": rank ");
  if (place == NULL || sscanf(place, ": rank %d, page %d (owner %d), %15s %23[a-z ]%d, row %d", &rank, &page, &owner,
                              model_name, kind, &layer, &row) != 7) {
    fail_msg("no place in: %s", text);
  }
  assert_in_range(rank, 0, cell->ranks - 1);
  assert_true(page >= 0);
  assert_int_equal(owner, page % cell->ranks);
  assert_in_range(row, 0, 63);
  /* the earliest layer is the one to name: all layers of a step lack the fence, and all pages are swapped; the write by
   * another rank goes to the first part, the target's first latents */
  assert_string_equal(model_name, "target");
  assert_string_equal(kind, fault == QUIRE_VIEW_FAULT_FOREIGN_WRITE ? "latent layer " : "index key layer ");
  assert_int_equal(layer, 0);
  if (fault == QUIRE_VIEW_FAULT_FOREIGN_WRITE) {
    assert_int_equal(owner, rank); /* an owner finds it in its own page */
    assert_int_equal(row, 0);
  }
}

static const struct {
  enum quire_view_fault fault;
  const char *says;
} faults[] = {
    {QUIRE_VIEW_FAULT_SKIP_FENCE, "without a fence behind it"},
    {QUIRE_VIEW_FAULT_FOREIGN_WRITE, "not what its owner wrote"},
    {QUIRE_VIEW_FAULT_SWAP_PAGES, "differs from the owner's page"},
};

/* faults[i], put in at this step, ends the next one at the latest, with its place. */
static void expect_found(const struct exact_cell *cell, int i, int epoch) {
  struct quire_error error = {0};
  struct ran ran;
  struct fault fault = {faults[i].fault, (uint64_t)epoch, true};
  enum quire_status status = run(cell, fault, &ran, &error);
  if (status != QUIRE_ERR_RANK || ran.steps > epoch + 1 || strstr(error.text, faults[i].says) == NULL) {
    fail_msg("fault %d, %d ranks, chunk %d: status %d after %d steps: %s", (int)fault.what, cell->ranks, cell->chunk,
             (int)status, ran.steps, error.text);
  }
  expect_place(cell, error.text, fault.what);
}

static const char *const executors[] = {"threads", "proc"};
static const enum quire_view_mode views[] = {QUIRE_VIEW_PEER, QUIRE_VIEW_GATHER};

/* Prefill under way, and decode: the draft's rows wait there in the home's local segment, and commits bring them. */
static void each_fault_is_found(void **unused) {
  (void)unused;
  static const int epochs[] = {2, 6};
  for (int i = 0; i < 3 * 2 * 2 * 2; i++) {
    struct exact_cell cell = shared_cell(views[i / 3 % 2], executors[i / 6 % 2]);
    expect_found(&cell, i % 3, epochs[i / 12]);
  }
}

/* However many ranks there are, and be it one page they have to read, whole or begun; pages can be swapped from two. */
static void any_number_of_ranks_finds_it(void **unused) {
  (void)unused;
  static const int chunks[] = {50, 64};
  for (int ranks = 2; ranks <= 8; ranks++) {
    for (int i = 0; i < 3 * 2; i++) {
      struct exact_cell cell = shared_cell(views[(ranks + i) % 2], executors[(ranks / 2 + i) % 2]);
      cell.ranks = ranks;
      cell.chunk = chunks[i / 3];
      expect_found(&cell, i % 3, faults[i % 3].fault == QUIRE_VIEW_FAULT_SWAP_PAGES ? 3 : 2);
    }
  }
}

static void all_is_quiet_without_a_fault(void **unused) {
  (void)unused;
  for (int i = 0; i < 2; i++) {
    struct exact_cell cell = shared_cell(i == 0 ? QUIRE_VIEW_PEER : QUIRE_VIEW_GATHER, "threads");
    struct quire_error error = {0};
    struct ran ran;
    if (run(&cell, (struct fault){QUIRE_VIEW_FAULT_NONE, 2, true}, &ran, &error) != QUIRE_OK) {
      fail_msg("%s", error.text);
    }
    assert_int_equal(ran.verdict, QUIRE_OK);
  }
}

/* The write marks are always on; the comparisons are not: a swapped page goes unnoticed without the switch, which shows
 * that it is the switch that finds it. */
static void the_switch_finds_it(void **unused) {
  (void)unused;
  struct exact_cell cell = shared_cell(QUIRE_VIEW_PEER, "threads");
  struct quire_error error = {0};
  struct ran ran;
  assert_int_equal(run(&cell, (struct fault){QUIRE_VIEW_FAULT_SWAP_PAGES, 2, false}, &ran, &error), QUIRE_OK);
  assert_int_equal(run(&cell, (struct fault){QUIRE_VIEW_FAULT_SKIP_FENCE, 2, false}, &ran, &error), QUIRE_ERR_RANK);
}

#define LAST 0 /* the step that is its run's last: of prefill, where no rank ends before all have begun */

/* A fault that ends no step: whether it was put in, and whether anybody could have found it. */
static void what_was_not_found_says_why(void **unused) {
  (void)unused;
  static const struct {
    enum quire_view_fault fault;
    int epoch;
    bool debug;
    int ranks;
    const char *says;
  } rows[] = {
      {QUIRE_VIEW_FAULT_SKIP_FENCE, 99, true, 3, "not placed: there was no step 99, "},
      {QUIRE_VIEW_FAULT_SWAP_PAGES, 99, false, 3, "not placed: there was no step 99, "},
      {QUIRE_VIEW_FAULT_SWAP_PAGES, 1, true, 3, "not placed: nothing to act on at step 1; it takes a request with two"},
      {QUIRE_VIEW_FAULT_FOREIGN_WRITE, 1, true, 3, "not placed: nothing to act on at step 1; it takes a page"},
      {QUIRE_VIEW_FAULT_FOREIGN_WRITE, 3, true, 1, "not placed: nothing to act on at step 3; it takes a page"},
      {QUIRE_VIEW_FAULT_SKIP_FENCE, LAST, true, 3, ", and nobody could find it: no step right behind read"},
      {QUIRE_VIEW_FAULT_FOREIGN_WRITE, LAST, true, 3, ", and nobody could find it: no step right behind read"},
      {QUIRE_VIEW_FAULT_SWAP_PAGES, 3, false, 3, "placed at step 3 and not looked for, which takes --debug-shared-kv"},
      {QUIRE_VIEW_FAULT_FOREIGN_WRITE, 3, false, 3, "placed at step 3 and not looked for, which takes --debug-sha"},
      {QUIRE_VIEW_FAULT_FOREIGN_WRITE, 7, false, 3, "placed at step 7 and not looked for, which takes --debug-sha"},
  };
  for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
    struct exact_cell cell = shared_cell(views[i % 2], executors[i % 2]);
    struct quire_error error = {0};
    struct ran ran;
    cell.ranks = rows[i / 2].ranks;
    cell.view = cell.ranks == 1 ? QUIRE_VIEW_LOCAL : cell.view;
    cell.new_max = rows[i / 2].epoch == LAST ? 0 : cell.new_max;
    assert_int_equal(run(&cell, (struct fault){QUIRE_VIEW_FAULT_NONE, 1, true}, &ran, &error), QUIRE_OK);
    struct fault fault = {rows[i / 2].fault, (uint64_t)rows[i / 2].epoch, rows[i / 2].debug};
    fault.epoch = fault.epoch == LAST ? (uint64_t)ran.steps : fault.epoch;
    if (run(&cell, fault, &ran, &error) != QUIRE_OK) {
      fail_msg("%s, %s: %s", rows[i / 2].says, cell.executor, error.text);
    }
    if (ran.verdict != QUIRE_ERR_STATE || strstr(ran.why.text, rows[i / 2].says) == NULL) {
      fail_msg("%s, %s: %d, %s", rows[i / 2].says, cell.executor, (int)ran.verdict, ran.why.text);
    }
  }
}

/* A prompt to its end, in an engine that has had others. */
static void prefill(struct quire_engine *engine, const struct exact_cell *like, const int32_t *from, int32_t count) {
  struct exact_cell cell = *like;
  struct quire_error error = {0};
  struct quire_engine_event event = {0};
  cell.tokens = from;
  cell.length = count;
  cell.new_max = 0;
  struct quire_engine_request request = exact_request(&cell);
  enum quire_status status = quire_engine_start(engine, &request, NULL, &error);
  while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
    status = quire_engine_step(engine, &event, &error);
  }
  assert_int_equal(status, QUIRE_OK);
  quire_engine_finish(engine);
}

/* One rank writes into another's page in the last step of a request; the step behind it reads pages of another request,
 * the first of the pool among them. */
static void a_page_that_nobody_touched_is_no_trace(void **unused) {
  (void)unused;
  struct exact_cell cell = shared_cell(QUIRE_VIEW_PEER, "threads");
  struct quire_engine_config config = exact_engine_config(&cell, PROMPT + 16, 1000);
  config.debug_shared_kv = true;
  config.fault = QUIRE_VIEW_FAULT_FOREIGN_WRITE;
  struct quire_error error = {0};
  struct quire_engine_stats stats;
  for (int pass = 0; pass < 2; pass++) {
    struct quire_engine *engine = NULL;
    assert_int_equal(quire_engine_create(quire_env_default(), &config, &engine, &error), QUIRE_OK);
    prefill(engine, &cell, tokens, CHUNK);
    prefill(engine, &cell, tokens + CHUNK, CHUNK + 20);
    quire_engine_stats(engine, &stats);
    config.fault_epoch = (uint64_t)stats.steps;
    prefill(engine, &cell, tokens, CHUNK + 20);
    quire_engine_stats(engine, &stats);
    quire_engine_destroy(engine);
  }
  assert_int_equal(stats.fault, QUIRE_STEP_FAULT_PLACED);
  assert_int_equal(quire_engine_judge_fault(&config, &stats, &error), QUIRE_ERR_STATE);
}

/* Put in, read by a step that looked, and the step did not fail: that alone is a failure. */
static void what_should_have_been_found_is_a_failure(void **unused) {
  (void)unused;
  for (int i = 0; i < 3; i++) {
    struct exact_cell cell = shared_cell(QUIRE_VIEW_PEER, "threads");
    struct quire_engine_config config = exact_engine_config(&cell, PROMPT + 16, 1000);
    struct quire_engine_stats stats = {.steps = 9, .fault = QUIRE_STEP_FAULT_PLACED | QUIRE_STEP_FAULT_READ};
    struct quire_error error = {0};
    config.debug_shared_kv = true;
    config.fault = faults[i].fault;
    config.fault_epoch = 5;
    assert_int_equal(quire_engine_judge_fault(&config, &stats, &error), QUIRE_ERR_RANK);
    assert_string_equal(error.text, "placed at step 5 and not found");
    config.debug_shared_kv = false;
    assert_int_equal(quire_engine_judge_fault(&config, &stats, &error),
                     config.fault == QUIRE_VIEW_FAULT_SKIP_FENCE ? QUIRE_ERR_RANK : QUIRE_ERR_STATE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_fault_is_found),
      cmocka_unit_test(any_number_of_ranks_finds_it),
      cmocka_unit_test(all_is_quiet_without_a_fault),
      cmocka_unit_test(the_switch_finds_it),
      cmocka_unit_test(what_was_not_found_says_why),
      cmocka_unit_test(a_page_that_nobody_touched_is_no_trace),
      cmocka_unit_test(what_should_have_been_found_is_a_failure),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
