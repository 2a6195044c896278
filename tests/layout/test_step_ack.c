/* Acknowledgements of the ranks put together: each rank knows some of it, and the order of merging does not matter
 * except for which failure is reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/step_ack.h"

static const struct quire_step_limits limits = {.entries_max = 3, .tokens_max = 8, .pages_max = 2, .tops_max = 5};

struct fixture {
  struct quire_step_plan *plan;
  struct quire_step_ack *ack[3];
};

/* Two entries: four tokens of positions 0..3, then one decoded token with the one before it. */
static int open_fixture(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
  assert_non_null(f->plan);
  quire_step_plan_reset(f->plan, 7, 3, QUIRE_SPLIT_ZIGZAG);
  struct quire_step_entry prefill = {.end = 4, .home = -1, .carry_rank = -1, .recompute_rank = -1, .commit_rank = -1};
  struct quire_step_entry decode = prefill;
  decode.request = 1;
  decode.kind = QUIRE_ENTRY_DECODE;
  decode.begin = decode.prefix_end = 9;
  decode.end = 10;
  decode.home = 2;
  decode.carry_rank = 2;
  const int32_t tokens[] = {1, 2, 3, 4};
  assert_true(quire_step_plan_add(f->plan, &limits, &prefill, tokens, NULL));
  assert_true(quire_step_plan_add(f->plan, &limits, &decode, tokens, NULL));
  assert_int_equal(f->plan->token_count, 6);
  f->plan->top_count = 5;
  for (int i = 0; i < 3; i++) {
    /* exact size, so that a sanitizer sees a row too many; garbage, so that reset has something to do */
    size_t bytes = (size_t)quire_step_ack_bytes(&limits);
    f->ack[i] = malloc(bytes);
    assert_non_null(f->ack[i]);
    memset(f->ack[i], 0xA5, bytes);
    quire_step_ack_reset(f->ack[i], f->plan, &limits, i);
  }
  *state = f;
  return 0;
}

static int close_fixture(void **state) {
  struct fixture *f = *state;
  for (int i = 0; i < 3; i++) {
    free(f->ack[i]);
  }
  free(f->plan);
  free(f);
  return 0;
}

static void sizes(void **state) {
  (void)state;
  assert_int_equal(quire_step_ack_bytes(&limits), sizeof(struct quire_step_ack) + 3 * sizeof(struct quire_step_result) +
                                                      8 * sizeof(struct quire_step_row) + 5 * sizeof(struct quire_top));
}

static void reset_knows_nothing(void **state) {
  struct fixture *f = *state;
  for (int i = 0; i < 3; i++) {
    struct quire_step_ack *ack = f->ack[i];
    assert_int_equal(ack->epoch, 7);
    assert_int_equal(ack->rank, i);
    assert_int_equal(ack->status, QUIRE_OK);
    for (int32_t e = 0; e < f->plan->entry_count; e++) {
      const struct quire_step_result *result = quire_step_ack_results(ack) + e;
      assert_true(result->token == QUIRE_TOKEN_ABSENT && result->logprob == 0.0f && result->nonfinite == 0);
    }
    for (int32_t t = 0; t < f->plan->token_count; t++) {
      const struct quire_step_row *row = quire_step_ack_rows(ack, &limits) + t;
      assert_true(row->argmax == QUIRE_TOKEN_ABSENT && row->draft_argmax == QUIRE_TOKEN_ABSENT && row->logprob == 0.0f);
    }
    for (int32_t t = 0; t < f->plan->top_count; t++) {
      assert_int_equal(quire_step_ack_tops(ack, &limits)[t].token, QUIRE_TOKEN_ABSENT);
    }
  }
}

static void fill_parts(struct fixture *f) {
  quire_step_ack_results(f->ack[1])[0] = (struct quire_step_result){41, -0.5f, 0};
  quire_step_ack_results(f->ack[2])[1] = (struct quire_step_result){42, -1.5f, 0};
  for (int32_t t = 0; t < 6; t++) {
    /* main rows are dealt to the ranks in turn, and the draft row of a token to another one */
    quire_step_ack_rows(f->ack[t % 3], &limits)[t].argmax = 100 + t;
    quire_step_ack_rows(f->ack[t % 3], &limits)[t].logprob = -(float)t;
    quire_step_ack_rows(f->ack[(t + 1) % 3], &limits)[t].draft_argmax = 200 + t;
  }
  for (int32_t t = 0; t < f->plan->top_count; t++) {
    quire_step_ack_tops(f->ack[(t + 2) % 3], &limits)[t] = (struct quire_top){300 + t, -0.25f * (float)t};
  }
}

static void expect_whole(struct fixture *f, struct quire_step_ack *ack) {
  assert_true(quire_step_ack_results(ack)[0].token == 41 && quire_step_ack_results(ack)[0].logprob == -0.5f);
  assert_true(quire_step_ack_results(ack)[1].token == 42 && quire_step_ack_results(ack)[1].logprob == -1.5f);
  for (int32_t t = 0; t < f->plan->token_count; t++) {
    const struct quire_step_row *row = quire_step_ack_rows(ack, &limits) + t;
    assert_true(row->argmax == 100 + t && row->draft_argmax == 200 + t && row->logprob == -(float)t);
  }
  for (int32_t t = 0; t < f->plan->top_count; t++) {
    struct quire_top top = quire_step_ack_tops(ack, &limits)[t];
    assert_true(top.token == 300 + t && top.logprob == -0.25f * (float)t);
  }
}

static void every_order_gives_the_whole(void **state) {
  struct fixture *f = *state;
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int o = 0; o < 6; o++) {
    for (int i = 0; i < 3; i++) {
      quire_step_ack_reset(f->ack[i], f->plan, &limits, i);
    }
    fill_parts(f);
    for (int i = 1; i < 3; i++) {
      quire_step_ack_merge(f->ack[orders[o][0]], f->ack[orders[o][i]], f->plan, &limits);
    }
    expect_whole(f, f->ack[orders[o][0]]);
    assert_int_equal(f->ack[orders[o][0]]->status, QUIRE_OK);
    assert_int_equal(f->ack[orders[o][0]]->rank, orders[o][0]);
  }
}

static void nothing_erases_what_is_known(void **state) {
  struct fixture *f = *state;
  fill_parts(f);
  quire_step_ack_merge(f->ack[0], f->ack[1], f->plan, &limits);
  quire_step_ack_merge(f->ack[0], f->ack[2], f->plan, &limits);
  quire_step_ack_reset(f->ack[1], f->plan, &limits, 1);
  quire_step_ack_merge(f->ack[0], f->ack[1], f->plan, &limits);
  expect_whole(f, f->ack[0]);
}

static void one_nonfinite_row_is_enough(void **state) {
  struct fixture *f = *state;
  quire_step_ack_results(f->ack[1])[1].nonfinite = 1;
  quire_step_ack_merge(f->ack[0], f->ack[1], f->plan, &limits);
  quire_step_ack_merge(f->ack[0], f->ack[2], f->plan, &limits);
  assert_int_equal(quire_step_ack_results(f->ack[0])[1].nonfinite, 1);
  assert_int_equal(quire_step_ack_results(f->ack[0])[0].nonfinite, 0);
}

static void a_fault_is_of_any_rank(void **state) {
  struct fixture *f = *state;
  f->ack[1]->fault = QUIRE_STEP_FAULT_PLACED;
  f->ack[2]->fault = QUIRE_STEP_FAULT_READ;
  quire_step_ack_merge(f->ack[0], f->ack[1], f->plan, &limits);
  assert_int_equal(f->ack[0]->fault, QUIRE_STEP_FAULT_PLACED);
  quire_step_ack_merge(f->ack[0], f->ack[2], f->plan, &limits);
  assert_int_equal(f->ack[0]->fault, QUIRE_STEP_FAULT_PLACED | QUIRE_STEP_FAULT_READ);
  quire_step_ack_reset(f->ack[0], f->plan, &limits, 0);
  assert_int_equal(f->ack[0]->fault, 0);
}

static void fail_with(struct quire_step_ack *ack, enum quire_status status, const char *text) {
  ack->status = status;
  quire_error_set(&ack->error, status, "rank", "%s", text);
}

/* The cause is reported with its rank, not the ranks that stopped because of it; the first of two causes wins. */
static void the_cause_wins(void **state) {
  struct fixture *f = *state;
  static const struct {
    enum quire_status status[3];
    enum quire_status merged;
    int32_t rank;
  } rows[] = {
      {{QUIRE_OK, QUIRE_OK, QUIRE_OK}, QUIRE_OK, 0},
      {{QUIRE_OK, QUIRE_OK, QUIRE_ERR_RANK}, QUIRE_ERR_RANK, 2},
      {{QUIRE_ERR_ABORTED, QUIRE_ERR_RANK, QUIRE_ERR_ABORTED}, QUIRE_ERR_RANK, 1},
      {{QUIRE_ERR_ABORTED, QUIRE_ERR_ABORTED, QUIRE_ERR_MEMORY}, QUIRE_ERR_MEMORY, 2},
      {{QUIRE_ERR_RANK, QUIRE_ERR_ABORTED, QUIRE_ERR_MEMORY}, QUIRE_ERR_RANK, 0},
      {{QUIRE_OK, QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY}, QUIRE_ERR_ARGUMENT, 1},
      {{QUIRE_ERR_ABORTED, QUIRE_OK, QUIRE_OK}, QUIRE_ERR_ABORTED, 0},
      {{QUIRE_OK, QUIRE_ERR_ABORTED, QUIRE_OK}, QUIRE_ERR_ABORTED, 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int r = 0; r < 3; r++) {
      char text[32];
      quire_step_ack_reset(f->ack[r], f->plan, &limits, r);
      snprintf(text, sizeof text, "fault of rank %d", r);
      if (rows[i].status[r] != QUIRE_OK) {
        fail_with(f->ack[r], rows[i].status[r], text);
      }
    }
    quire_step_ack_merge(f->ack[0], f->ack[1], f->plan, &limits);
    quire_step_ack_merge(f->ack[0], f->ack[2], f->plan, &limits);
    assert_int_equal(f->ack[0]->status, rows[i].merged);
    assert_int_equal(f->ack[0]->rank, rows[i].rank);
    if (rows[i].merged != QUIRE_OK) {
      char text[32];
      snprintf(text, sizeof text, "fault of rank %d", rows[i].rank);
      assert_string_equal(f->ack[0]->error.text, text);
      assert_int_equal(f->ack[0]->error.status, rows[i].merged);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes),
      cmocka_unit_test_setup_teardown(reset_knows_nothing, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(every_order_gives_the_whole, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(nothing_erases_what_is_known, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(one_nonfinite_row_is_enough, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(a_fault_is_of_any_rank, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(the_cause_wins, open_fixture, close_fixture),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
