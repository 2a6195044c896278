/* Step plans: what is added is found again, a plan over its limits is refused whole, who computes which row, and every
 * fault that the check names, from a plan of which one number was changed. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/step_plan.h"

static const struct quire_step_limits limits = {.entries_max = 3, .tokens_max = 12, .pages_max = 4};

/* Entry 0: a second chunk, positions 4..7, split over three ranks, row 3 run again by rank 1, one new page. Entry 1:
 * decode of position 9 at rank 2, which commits 8 from there. */
static struct quire_step_plan *good_plan(void) {
  struct quire_step_plan *plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
  assert_non_null(plan);
  quire_step_plan_reset(plan, 5, 3, QUIRE_SPLIT_INTERLEAVE);
  struct quire_step_entry prefill = {.request = 0,
                                     .kind = QUIRE_ENTRY_PREFILL,
                                     .flags = QUIRE_ENTRY_SAMPLE,
                                     .begin = 4,
                                     .end = 8,
                                     .prefix_end = 4,
                                     .home = -1,
                                     .carry_rank = -1,
                                     .recompute_rank = 1,
                                     .commit_rank = -1,
                                     .append_begin = 1,
                                     .append_count = 1,
                                     .next_token = -1};
  struct quire_step_entry decode = {.request = 1,
                                    .kind = QUIRE_ENTRY_DECODE,
                                    .flags = QUIRE_ENTRY_SAMPLE | QUIRE_ENTRY_SCORE,
                                    .begin = 9,
                                    .end = 10,
                                    .prefix_end = 9,
                                    .home = 2,
                                    .carry_rank = 2,
                                    .recompute_rank = -1,
                                    .commit_rank = 2,
                                    .commit_begin = 8,
                                    .commit_end = 9,
                                    .next_token = -1};
  const int32_t first[] = {13, 14, 15, 16, 17}, second[] = {28, 29};
  const quire_page page[] = {{6}};
  assert_true(quire_step_plan_add(plan, &limits, &prefill, first, page));
  assert_true(quire_step_plan_add(plan, &limits, &decode, second, NULL));
  return plan;
}

static void added_is_found_again(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  const char *why = "untouched";
  assert_true(quire_step_plan_check(plan, &limits, &why));
  assert_string_equal(why, "untouched");
  assert_true(quire_step_plan_check(plan, &limits, NULL));
  assert_true(plan->epoch == 5 && plan->entry_count == 2 && plan->token_count == 7 && plan->page_count == 1);
  const struct quire_step_entry *e = quire_step_plan_entries(plan);
  assert_true(e[0].token_first == 0 && e[1].token_first == 5 && e[0].append_first == 0 && e[1].append_first == 1);
  for (int32_t position = 3; position < 8; position++) {
    assert_int_equal(quire_step_entry_token(plan, &limits, &e[0], position), 10 + position);
  }
  assert_int_equal(quire_step_entry_token(plan, &limits, &e[1], 8), 28);
  assert_int_equal(quire_step_entry_token(plan, &limits, &e[1], 9), 29);
  assert_int_equal(quire_step_plan_pages(plan, &limits)[0].v, 6);
  quire_step_plan_reset(plan, 6, 2, QUIRE_SPLIT_ZIGZAG);
  assert_true(plan->epoch == 6 && plan->entry_count == 0 && plan->token_count == 0 && plan->page_count == 0);
  assert_true(quire_step_plan_check(plan, &limits, NULL));
  free(plan);
}

/* A refusal changes nothing: not the counts, not a byte behind them. */
static void limits_refuse_whole_entries(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  size_t bytes = (size_t)quire_step_plan_bytes(&limits);
  struct quire_step_plan *before = malloc(bytes);
  assert_non_null(before);
  memcpy(before, plan, bytes);
  int32_t tokens[12] = {0};
  quire_page pages[5] = {{0}};
  struct quire_step_entry entry = {.end = 6, .home = -1, .carry_rank = -1, .recompute_rank = -1, .commit_rank = -1};
  assert_false(quire_step_plan_add(plan, &limits, &entry, tokens, pages)); /* 7 + 6 tokens of 12 */
  entry.end = 5;
  entry.append_count = 4; /* 1 + 4 pages of 4 */
  assert_false(quire_step_plan_add(plan, &limits, &entry, tokens, pages));
  assert_memory_equal(plan, before, bytes);
  entry.append_count = 3;
  assert_true(quire_step_plan_add(plan, &limits, &entry, tokens, pages));
  assert_true(quire_step_plan_check(plan, &limits, NULL));
  memcpy(before, plan, bytes);
  entry.begin = entry.end = entry.append_count = 0; /* even an entry without rows: 3 of 3 */
  assert_false(quire_step_plan_add(plan, &limits, &entry, NULL, NULL));
  assert_memory_equal(plan, before, bytes);
  free(before);
  free(plan);
}

static void who_computes_what(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  const struct quire_step_entry *e = quire_step_plan_entries(plan);
  bool seen[3] = {false};
  for (int32_t position = 4; position < 8; position++) {
    int32_t rank = quire_step_entry_producer(plan, &e[0], position);
    assert_in_range(rank, 0, 2);
    seen[rank] = true;
    /* the hidden state of the position before: in this step, or the row that is run again */
    int32_t draft = position > 4 ? quire_step_entry_producer(plan, &e[0], position - 1) : 1;
    assert_int_equal(quire_step_entry_draft_producer(plan, &e[0], position), draft);
  }
  assert_true(seen[0] && seen[1] && seen[2]);
  assert_int_equal(quire_step_entry_producer(plan, &e[1], 9), 2);
  assert_int_equal(quire_step_entry_draft_producer(plan, &e[1], 9), 2);
  struct quire_step_entry first = {.end = 2, .home = -1, .carry_rank = -1, .recompute_rank = -1};
  assert_int_equal(quire_step_entry_draft_producer(plan, &first, 0), -1);
  free(plan);
}

#define HEADER(field) offsetof(struct quire_step_plan, field)
#define ENTRY(index, field)                                                                                            \
  sizeof(struct quire_step_plan) + (index) * sizeof(struct quire_step_entry) + offsetof(struct quire_step_entry, field)

static const char ranks_or_split[] = "ranks or split unknown", over[] = "more than the plan's limits",
                  kind[] = "unknown entry kind", flag[] = "unknown entry flag", order[] = "positions out of order",
                  prefill[] = "a prefill entry reads what is in pages up to its first row, and has no home",
                  home[] = "home is not a rank", carry[] = "carry and recompute ranks contradict",
                  commit[] = "commit out of range", lists[] = "token or page list out of bounds",
                  sampling[] = "sampling parameters are not numbers";

static const struct {
  size_t offset;
  int32_t value;
  const char *fault;
} faults[] = {
    {HEADER(ranks), 0, ranks_or_split},
    {HEADER(ranks), -3, ranks_or_split},
    {HEADER(ranks), QUIRE_RANKS_MAX + 1, ranks_or_split},
    {HEADER(split), 2, ranks_or_split},
    {HEADER(split), -1, ranks_or_split},
    {HEADER(entry_count), -1, over},
    {HEADER(entry_count), 4, over},
    {HEADER(entry_count), INT32_MAX, over},
    {HEADER(token_count), -1, over},
    {HEADER(token_count), 13, over},
    {HEADER(page_count), -1, over},
    {HEADER(page_count), 5, over},
    {ENTRY(0, kind), 2, kind},
    {ENTRY(1, kind), -1, kind},
    {ENTRY(0, flags), 8, flag},
    {ENTRY(1, flags), INT32_MIN, flag},
    {ENTRY(0, request), -1, order},
    {ENTRY(0, begin), -1, order},
    {ENTRY(0, end), 3, order},
    {ENTRY(1, begin), 11, order},
    {ENTRY(1, prefix_end), -1, order},
    {ENTRY(1, prefix_end), 10, order},
    {ENTRY(0, prefix_end), 3, prefill},
    {ENTRY(0, home), 0, prefill},
    {ENTRY(1, home), -1, home},
    {ENTRY(1, home), 3, home},
    {ENTRY(1, carry_rank), 3, carry},
    {ENTRY(1, carry_rank), -2, carry},
    {ENTRY(0, recompute_rank), 3, carry},
    {ENTRY(0, recompute_rank), -2, carry},
    {ENTRY(0, carry_rank), 0, carry}, /* beside a recompute rank */
    {ENTRY(1, commit_begin), -1, commit},
    {ENTRY(1, commit_end), 7, commit},
    {ENTRY(1, commit_rank), -1, commit},
    {ENTRY(1, commit_rank), 3, commit},
    {ENTRY(0, commit_end), 2, commit}, /* rows, but no rank */
    {ENTRY(0, commit_rank), -2, commit},
    {ENTRY(1, commit_end), 10, commit}, /* a row that this step computes */
    {ENTRY(1, token_first), -1, lists},
    {ENTRY(1, token_first), 6, lists},
    {ENTRY(1, token_first), INT32_MAX, lists},
    {HEADER(token_count), 6, lists},
    {ENTRY(0, end), 12, lists},
    {ENTRY(0, end), INT32_MAX, lists},
    {ENTRY(0, append_begin), -1, lists},
    {ENTRY(0, append_count), -1, lists},
    {ENTRY(0, append_count), 2, lists},
    {ENTRY(0, append_count), INT32_MAX, lists},
    {ENTRY(0, append_first), -1, lists},
    {ENTRY(0, append_first), 1, lists},
    {ENTRY(0, append_first), INT32_MAX, lists},
    {HEADER(page_count), 0, lists},
    {ENTRY(0, temperature), 0x7fc00000, sampling},
    {ENTRY(1, top_p), 0x7fc00000, sampling},
    {ENTRY(1, top_k), -1, sampling},
};

static void every_fault_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    struct quire_step_plan *plan = good_plan();
    const char *why = NULL;
    memcpy((char *)plan + faults[i].offset, &faults[i].value, sizeof faults[i].value);
    if (quire_step_plan_check(plan, &limits, &why)) {
      fail_msg("row %zu: passed, expected \"%s\"", i, faults[i].fault);
    }
    if (strcmp(why, faults[i].fault) != 0) {
      fail_msg("row %zu: \"%s\", expected \"%s\"", i, why, faults[i].fault);
    }
    assert_false(quire_step_plan_check(plan, &limits, NULL));
    free(plan);
  }
}

/* What looks odd and is legal: nothing to compute, only rows to commit; no tokens are needed for it. */
static void odd_but_legal(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  struct quire_step_entry entry = {.kind = QUIRE_ENTRY_DECODE,
                                   .begin = 20,
                                   .end = 20,
                                   .prefix_end = 18,
                                   .home = 0,
                                   .carry_rank = -1,
                                   .recompute_rank = -1,
                                   .commit_rank = 0,
                                   .commit_begin = 18,
                                   .commit_end = 20};
  assert_true(quire_step_plan_add(plan, &limits, &entry, NULL, NULL));
  assert_int_equal(plan->token_count, 7);
  const char *why = NULL;
  if (!quire_step_plan_check(plan, &limits, &why)) {
    fail_msg("%s", why);
  }
  free(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(added_is_found_again), cmocka_unit_test(limits_refuse_whole_entries),
      cmocka_unit_test(who_computes_what),    cmocka_unit_test(every_fault_is_named),
      cmocka_unit_test(odd_but_legal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
