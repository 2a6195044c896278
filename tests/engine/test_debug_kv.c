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

/* Steps until the end or the first error; *steps_out counts steps that were begun. */
struct fault {
  enum quire_view_fault what;
  uint64_t epoch;
  bool debug;
};

static enum quire_status run(const struct exact_cell *cell, struct fault fault, int *steps_out,
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
  for (*steps_out = 0; status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE; ++*steps_out) {
    status = quire_engine_step(engine, &event, error);
  }
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
  int steps = 0;
  struct fault fault = {faults[i].fault, (uint64_t)epoch, true};
  enum quire_status status = run(cell, fault, &steps, &error);
  if (status != QUIRE_ERR_RANK || steps > epoch + 1 || strstr(error.text, faults[i].says) == NULL) {
    fail_msg("fault %d, %d ranks, chunk %d: status %d after %d steps: %s", (int)fault.what, cell->ranks, cell->chunk,
             (int)status, steps, error.text);
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
    int steps = 0;
    if (run(&cell, (struct fault){QUIRE_VIEW_FAULT_NONE, 2, true}, &steps, &error) != QUIRE_OK) {
      fail_msg("%s", error.text);
    }
  }
}

/* The write marks are always on; the comparisons are not: a swapped page goes unnoticed without the switch, which shows
 * that it is the switch that finds it. */
static void the_switch_finds_it(void **unused) {
  (void)unused;
  struct exact_cell cell = shared_cell(QUIRE_VIEW_PEER, "threads");
  struct quire_error error = {0};
  int steps = 0;
  assert_int_equal(run(&cell, (struct fault){QUIRE_VIEW_FAULT_SWAP_PAGES, 2, false}, &steps, &error), QUIRE_OK);
  assert_int_equal(run(&cell, (struct fault){QUIRE_VIEW_FAULT_SKIP_FENCE, 2, false}, &steps, &error), QUIRE_ERR_RANK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_fault_is_found),
      cmocka_unit_test(any_number_of_ranks_finds_it),
      cmocka_unit_test(all_is_quiet_without_a_fault),
      cmocka_unit_test(the_switch_finds_it),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
