// ctest: timeout=120
/* Plans executed by threads: several requests in one plan do not feel each other, ranks without rows take part, a plan
 * that must not run ends on every rank without a hang, and nothing is allocated while plans run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_step.h"
#include "support/fail_env.h"

static struct exact_model model;
static int32_t prompts[EXACT_SLOTS][512];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  for (int i = 0; i < EXACT_SLOTS; i++) {
    quire_tiny_tokens((uint64_t)(31 + i), 512, prompts[i]);
  }
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell worker(int32_t ranks, enum quire_view_mode view) {
  struct exact_cell cell = exact_cell_defaults(&model, prompts[0], 512);
  cell.ranks = ranks;
  cell.sharing = ranks > 1 && view != QUIRE_VIEW_LOCAL ? QUIRE_SHARING_SHARED : QUIRE_SHARING_REPLICATED;
  cell.view = view;
  cell.mtp = true;
  cell.kv = QUIRE_KV_FP8;
  return cell;
}

static void open_step(struct exact_step *step, const struct quire_env *env, const struct exact_cell *cell) {
  exact_step_open(step, env, cell);
  for (int i = 0; i < EXACT_SLOTS; i++) {
    step->slot[i].tokens = prompts[i];
  }
}

static void expect_rows_equal(const struct exact_step *a, const struct exact_step *b, int32_t slot, int32_t end) {
  uint8_t one[4096], two[4096];
  for (int32_t part = 0; part < a->parts.count; part++) {
    for (int32_t position = 0; position < end; position++) {
      exact_step_row(a, slot, part, position, one);
      exact_step_row(b, slot, part, position, two);
      if (memcmp(one, two, (size_t)a->parts.part[part].row_bytes) != 0) {
        fail_msg("slot %d part %d position %d differs", slot, part, position);
      }
    }
  }
}

/* What each slot does in each of the mixed steps: rows of prefill, or decode. */
struct move {
  int32_t prefill;
  bool decode;
};

static const struct move moves[][EXACT_SLOTS] = {
    {{100, false}, {0, false}, {30, false}}, {{0, true}, {130, false}, {70, false}},
    {{0, true}, {70, false}, {0, true}},     {{0, true}, {0, true}, {0, true}},
    {{0, true}, {0, true}, {0, true}},
};
#define MOVES (int)(sizeof moves / sizeof moves[0])

/* Three requests in one plan: prefill beside decode, all with draft layers, in one exchange. */
static void a_plan_of_many_equals_plans_of_one(int32_t ranks, enum quire_view_mode view, enum quire_split split,
                                               const char *executor) {
  struct exact_cell many = worker(ranks, view), one = worker(1, QUIRE_VIEW_LOCAL);
  many.split = split;
  many.executor = executor;
  many.threads = 2;
  struct exact_step mixed, single;
  open_step(&mixed, quire_env_default(), &many);
  open_step(&single, quire_env_default(), &one);
  for (int m = 0; m < MOVES; m++) {
    exact_step_begin(&mixed);
    int32_t tokens[EXACT_SLOTS], entries = 0;
    for (int32_t s = 0; s < EXACT_SLOTS; s++) {
      const struct move *move = &moves[m][s];
      if (move->prefill == 0 && !move->decode) {
        continue;
      }
      struct quire_step_entry entry = move->decode ? exact_step_decode(&single, s, 1, QUIRE_ENTRY_SAMPLE)
                                                   : exact_step_prefill(&single, s, move->prefill, QUIRE_ENTRY_SAMPLE);
      tokens[entries++] = quire_step_ack_results(exact_step_one(&single, &entry))[0].token;
      entry = move->decode ? exact_step_decode(&mixed, s, 1, QUIRE_ENTRY_SAMPLE)
                           : exact_step_prefill(&mixed, s, move->prefill, QUIRE_ENTRY_SAMPLE);
      exact_step_add(&mixed, &entry);
    }
    struct quire_step_ack *ack = exact_step_run(&mixed);
    assert_int_equal(ack->status, QUIRE_OK);
    for (int32_t e = 0; e < entries; e++) {
      assert_int_equal(quire_step_ack_results(ack)[e].token, tokens[e]);
      assert_int_equal(quire_step_ack_results(ack)[e].nonfinite, 0);
    }
  }
  for (int32_t s = 0; s < EXACT_SLOTS; s++) {
    assert_int_equal(mixed.slot[s].paged, single.slot[s].paged);
    expect_rows_equal(&mixed, &single, s, single.slot[s].paged);
  }
  exact_step_close(&mixed);
  exact_step_close(&single);
}

static void many_by_peer(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(3, QUIRE_VIEW_PEER, QUIRE_SPLIT_ZIGZAG, "threads");
}

static void many_in_processes(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(3, QUIRE_VIEW_GATHER, QUIRE_SPLIT_ZIGZAG, "proc");
}

static void many_by_gather(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(4, QUIRE_VIEW_GATHER, QUIRE_SPLIT_INTERLEAVE, "threads");
}

static void many_replicated(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(2, QUIRE_VIEW_LOCAL, QUIRE_SPLIT_ZIGZAG, "threads");
}

/* One token on eight ranks: seven have no rows, in prefill, in decode and in a step that only commits. */
static void empty_ranks_take_part(void **unused) {
  (void)unused;
  struct exact_cell eight = worker(8, QUIRE_VIEW_PEER), one = worker(1, QUIRE_VIEW_LOCAL);
  struct exact_step step, single;
  open_step(&step, quire_env_default(), &eight);
  open_step(&single, quire_env_default(), &one);
  struct exact_step *both[2] = {&step, &single};
  int32_t tokens[2];
  for (int i = 0; i < 2; i++) {
    struct quire_step_entry entry = exact_step_prefill(both[i], 0, 1, 0);
    exact_step_one(both[i], &entry);
    entry = exact_step_decode(both[i], 0, 1, QUIRE_ENTRY_SAMPLE);
    tokens[i] = quire_step_ack_results(exact_step_one(both[i], &entry))[0].token;
    entry = exact_step_decode(both[i], 0, 0, 0);
    exact_step_one(both[i], &entry);
    assert_int_equal(both[i]->slot[0].paged, 2);
    /* a plan without entries is legal, too */
    exact_step_begin(both[i]);
    assert_int_equal(exact_step_run(both[i])->status, QUIRE_OK);
  }
  assert_int_equal(tokens[0], tokens[1]);
  expect_rows_equal(&step, &single, 0, 2);
  exact_step_close(&step);
  exact_step_close(&single);
}

static void expect_worker_is_over(struct exact_step *step) {
  struct quire_error error = {0};
  exact_step_begin(step);
  assert_int_equal(quire_step_post(step->executor, step->plan, &error), QUIRE_ERR_STATE);
  assert_int_equal(error.status, QUIRE_ERR_STATE);
}

/* One rank of replicated KV has a page that is still being written in this epoch: it alone fails, the others end the
 * step as aborted, the controller hears the reason, and the executor takes no further plan. */
static void one_failing_rank_ends_the_step(void **unused) {
  (void)unused;
  for (int i = 0; i < 6; i++) {
    int32_t bad = i / 2;
    struct exact_cell cell = worker(3, QUIRE_VIEW_LOCAL);
    cell.executor = i % 2 == 0 ? "threads" : "proc";
    struct exact_step step;
    open_step(&step, quire_env_default(), &cell);
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 100, 0);
    exact_step_one(&step, &entry);
    quire_page page = step.slot[0].table[0];
    assert_int_equal(quire_bank_mark_written(quire_step_bank(step.executor, bad),
                                             quire_page_local(&step.config.geometry, page), (int64_t)step.epoch + 1, 5),
                     QUIRE_OK);
    exact_step_begin(&step);
    entry = exact_step_prefill(&step, 0, 50, QUIRE_ENTRY_SAMPLE);
    exact_step_add(&step, &entry);
    struct quire_step_ack *ack = exact_step_run(&step);
    assert_int_equal(ack->status, QUIRE_ERR_RANK);
    assert_int_equal(ack->rank, bad);
    char named[64];
    snprintf(named, sizeof named, "page %d (request 0, request page 0)", page.v);
    assert_non_null(strstr(ack->error.text, named));
    assert_int_equal(quire_step_ack_results(ack)[0].token, QUIRE_TOKEN_ABSENT);
    expect_worker_is_over(&step);
    exact_step_close(&step);
  }
}

/* The same while gather's copies are on their way in a slow stream: the step ends, and nothing is used after it is
 * gone. */
static void failure_with_copies_in_flight(void **unused) {
  (void)unused;
  struct exact_cell cell = worker(3, QUIRE_VIEW_GATHER);
  cell.copy_mode = QUIRE_STREAM_DEFERRED;
  for (uint64_t seed = 0; seed < 6; seed++) {
    cell.copy_seed = seed;
    struct exact_step step;
    open_step(&step, quire_env_default(), &cell);
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 200, 0);
    exact_step_one(&step, &entry);
    /* a plan with an entry that asks for an unknown flag is refused by every rank before anything runs */
    exact_step_begin(&step);
    entry = exact_step_prefill(&step, 0, 100, seed % 2 == 0 ? 1 << 20 : 0);
    if (seed % 2 != 0) {
      quire_page page = step.slot[0].table[2];
      assert_int_equal(quire_bank_mark_written(exact_step_bank(&step, page),
                                               quire_page_local(&step.config.geometry, page), (int64_t)step.epoch, 0),
                       QUIRE_OK);
    }
    exact_step_add(&step, &entry);
    struct quire_step_ack *ack = exact_step_run(&step);
    assert_int_equal(ack->status, QUIRE_ERR_RANK);
    expect_worker_is_over(&step);
    exact_step_close(&step);
  }
}

/* Everything is reserved at creation. */
static void nothing_is_allocated_in_a_step(void **unused) {
  (void)unused;
  static const enum quire_view_mode views[] = {QUIRE_VIEW_LOCAL, QUIRE_VIEW_GATHER, QUIRE_VIEW_PEER};
  for (int v = 0; v < 3; v++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct exact_cell cell = worker(2, views[v]);
    cell.threads = 2;
    struct exact_step step;
    open_step(&step, &fail.env, &cell);
    uint64_t before = fail.allocations;
    fail.fail_from = 0;
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 150, QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL);
    exact_step_one(&step, &entry);
    for (int i = 0; i < 3; i++) {
      entry = exact_step_prefill(&step, 0, 1 + i * 20, QUIRE_ENTRY_SAMPLE);
      exact_step_one(&step, &entry);
      entry = exact_step_decode(&step, 0, 1, QUIRE_ENTRY_SAMPLE);
      exact_step_one(&step, &entry);
      entry = exact_step_decode(&step, 0, 0, 0);
      exact_step_one(&step, &entry);
    }
    assert_int_equal(fail.allocations, before);
    fail.fail_from = FAIL_ENV_NEVER;
    exact_step_close(&step);
    fail_env_fini(&fail);
  }
}

static void an_executor_in_use_refuses_plans(void **unused) {
  (void)unused;
  struct exact_cell cell = worker(2, QUIRE_VIEW_PEER);
  struct exact_step step;
  struct quire_error error = {0};
  open_step(&step, quire_env_default(), &cell);
  exact_step_begin(&step);
  struct quire_step_entry entry = exact_step_prefill(&step, 0, 10, 0);
  exact_step_add(&step, &entry);
  assert_int_equal(quire_step_post(step.executor, step.plan, &error), QUIRE_OK);
  assert_int_equal(quire_step_post(step.executor, step.plan, &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_step_wait(step.executor)->status, QUIRE_OK);
  exact_step_close(&step);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_by_peer),
      cmocka_unit_test(many_by_gather),
      cmocka_unit_test(many_in_processes),
      cmocka_unit_test(many_replicated),
      cmocka_unit_test(empty_ranks_take_part),
      cmocka_unit_test(one_failing_rank_ends_the_step),
      cmocka_unit_test(failure_with_copies_in_flight),
      cmocka_unit_test(nothing_is_allocated_in_a_step),
      cmocka_unit_test(an_executor_in_use_refuses_plans),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
