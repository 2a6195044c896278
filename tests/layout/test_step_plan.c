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

static const struct quire_step_limits limits = {
    .entries_max = 3, .tokens_max = 12, .pages_max = 4, .lists_max = 10, .biases_max = 5, .tops_max = 6};

static const struct quire_bias biases[] = {{40, 1.5f}, {41, -2.5f}};
/* Request 0 has the tokens 10, 11, 12, ...; request 1 has 20, 21, ... */
static const int32_t tokens[2][10] = {{10, 11, 12, 13, 14, 15, 16, 17, 18, 19},
                                      {20, 21, 22, 23, 24, 25, 26, 27, 28, 29}};
static const struct quire_sampling everything = {.temperature = 0.5f,
                                                 .top_p = 0.9f,
                                                 .min_p = 0.1f,
                                                 .top_k = 7,
                                                 .presence_penalty = 0.5f,
                                                 .frequency_penalty = -0.5f,
                                                 .repetition_penalty = 1.25f,
                                                 .top_logprobs = 3,
                                                 .seed = 99,
                                                 .bias = biases,
                                                 .bias_count = 2},
                                   scored = {.prompt_logprobs = true, .prompt_top_logprobs = 2};

/* Entry 0: a second chunk, positions 4..7, split over three ranks, row 3 run again by rank 1, one new page, and a
 * record with everything, the prompt ending at 6. Entry 1: decode of position 9 at rank 2, which commits 8 from there;
 * its row is scored. */
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
  const quire_page page[] = {{6}};
  const int32_t ban = 44;
  struct quire_step_draw draw = {
      .sampling = &everything, .tokens = tokens[0], .prompt_end = 6, .bans = &ban, .ban_count = 1, .listed = -1};
  assert_true(quire_step_plan_add_drawn(plan, &limits, &prefill, page, &draw));
  assert_int_equal(draw.listed, 8);
  draw = (struct quire_step_draw){.sampling = &scored, .tokens = tokens[1], .prompt_end = 9, .listed = -1};
  assert_true(quire_step_plan_add_drawn(plan, &limits, &decode, NULL, &draw));
  assert_int_equal(draw.listed, -1); /* no penalties, no list */
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

/* What a record says is what was asked, without pointers. */
static void records_are_found_again(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  const struct quire_step_entry *e = quire_step_plan_entries(plan);
  const struct quire_step_sampling *s = quire_step_entry_sampling(plan, &limits, &e[0]);
  assert_true(s->temperature == 0.5f && s->top_p == 0.9f && s->min_p == 0.1f && s->top_k == 7 && s->seed == 99);
  assert_true(s->presence_penalty == 0.5f && s->frequency_penalty == -0.5f && s->repetition_penalty == 1.25f);
  assert_true(quire_step_sampling_penalises(s) && s->prompt_end == 6 &&
              s->flags == (QUIRE_SAMPLING_LIST_RESET | QUIRE_SAMPLING_LOGPROB));
  assert_true(s->list_begin == 0 && s->list_end == 8 && plan->list_count == 8);
  assert_memory_equal(quire_step_sampling_list(plan, &limits, s), tokens[0], 8 * sizeof(int32_t));
  const struct quire_bias *b = quire_step_sampling_biases(plan, &limits, s);
  assert_true(s->bias_count == 3 && plan->bias_count == 3);
  assert_true(b[0].token == 40 && b[0].value == 1.5f && b[1].token == 41 && b[1].value == -2.5f);
  assert_true(b[2].token == 44 && b[2].value == quire_bias_forbids());
  assert_true(s->top_first == 0 && s->top_count == 3 && s->row_top_count == 0);
  s = quire_step_entry_sampling(plan, &limits, &e[1]);
  assert_true(s->temperature == 0 && s->repetition_penalty == 1 && !quire_step_sampling_penalises(s));
  assert_true(s->list_begin == s->list_end && s->flags == 0 && s->bias_count == 0 && s->top_count == 0);
  assert_true(s->row_top_first == 3 && s->row_top_count == 2 && plan->top_count == 5 && plan->sampling_count == 2);
  struct quire_step_entry without = {.sampling = -1};
  assert_null(quire_step_entry_sampling(plan, &limits, &without));
  free(plan);
}

static const struct quire_sampling repeated = {.repetition_penalty = 2}, frequent = {.frequency_penalty = 1};

/* What is appended to a request's list, by what it has and what it asks for. */
static const struct {
  const struct quire_sampling *sampling;
  int32_t kind, flags, begin, end, prompt_end, listed, used; /* used: list room taken by others */
  int32_t list_begin, list_end, reset;
} lists_told[] = {
    {&repeated, QUIRE_ENTRY_PREFILL, 0, 0, 4, 8, -1, 0, 0, 4, 1},
    {&repeated, QUIRE_ENTRY_PREFILL, 0, 4, 8, 8, 4, 0, 4, 8, 0},
    {&repeated, QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_SAMPLE, 6, 8, 8, -1, 0, 0, 8, 1},  /* found in the cache */
    {&repeated, QUIRE_ENTRY_PREFILL, 0, 6, 8, 9, -1, 5, 0, 5, 1},                   /* no room for more */
    {&repeated, QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_SAMPLE, 6, 8, 8, -1, 3, -1, 0, 0}, /* and it would draw */
    {&repeated, QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_SAMPLE, 6, 8, 8, 5, 7, 5, 8, 0},
    {&frequent, QUIRE_ENTRY_PREFILL, 0, 0, 4, 8, -1, 0, 8, 8, 1}, /* the prompt does not count */
    {&frequent, QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_SAMPLE, 4, 8, 8, 8, 0, 8, 8, 0},
    {&frequent, QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_SAMPLE, 4, 8, 3, -1, 0, 3, 8, 1}, /* resumed: answer since 3 */
    {&frequent, QUIRE_ENTRY_DECODE, QUIRE_ENTRY_SAMPLE, 8, 9, 3, 8, 0, 8, 9, 0},
    {&frequent, QUIRE_ENTRY_DECODE, QUIRE_ENTRY_SAMPLE, 6, 9, 3, 6, 0, 6, 7, 0}, /* two drafts: not in the list */
    {&repeated, QUIRE_ENTRY_DECODE, QUIRE_ENTRY_SAMPLE, 6, 9, 8, 6, 0, 6, 8, 0}, /* of the prompt: no drafts */
};

static void lists_are_appended_to(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof lists_told / sizeof lists_told[0]; i++) {
    struct quire_step_plan *plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
    assert_non_null(plan);
    quire_step_plan_reset(plan, 1, 1, QUIRE_SPLIT_ZIGZAG);
    bool decode = lists_told[i].kind == QUIRE_ENTRY_DECODE;
    struct quire_step_entry entry = {.kind = lists_told[i].kind,
                                     .flags = lists_told[i].flags,
                                     .begin = lists_told[i].begin,
                                     .end = lists_told[i].end,
                                     .prefix_end = lists_told[i].begin,
                                     .home = decode ? 0 : -1,
                                     .carry_rank = -1,
                                     .recompute_rank = -1,
                                     .commit_rank = -1};
    struct quire_step_draw draw = {.sampling = lists_told[i].sampling,
                                   .tokens = tokens[0],
                                   .prompt_end = lists_told[i].prompt_end,
                                   .listed = lists_told[i].listed};
    plan->list_count = lists_told[i].used;
    bool added = quire_step_plan_add_drawn(plan, &limits, &entry, NULL, &draw);
    if (lists_told[i].list_begin < 0) {
      assert_false(added);
      assert_true(plan->entry_count == 0 && plan->sampling_count == 0 && draw.listed == lists_told[i].listed);
      free(plan);
      continue;
    }
    assert_true(added);
    const struct quire_step_sampling *s = quire_step_entry_sampling(plan, &limits, quire_step_plan_entries(plan));
    if (s->list_begin != lists_told[i].list_begin || s->list_end != lists_told[i].list_end ||
        s->flags != lists_told[i].reset || draw.listed != s->list_end) {
      fail_msg("row %zu: list %d to %d, flags %d", i, s->list_begin, s->list_end, s->flags);
    }
    for (int32_t p = s->list_begin; p < s->list_end; p++) {
      assert_int_equal(quire_step_sampling_list(plan, &limits, s)[p - s->list_begin], 10 + p);
    }
    const char *why = NULL;
    if (!quire_step_plan_check(plan, &limits, &why)) {
      fail_msg("row %zu: %s", i, why);
    }
    free(plan);
  }
}

/* A refusal changes nothing: not the counts, not a byte behind them. */
/* A decode row of request r at rank 1, which commits the one before. */
static struct quire_step_entry decode_row(int32_t r, int32_t position) {
  return (struct quire_step_entry){.request = r,
                                   .kind = QUIRE_ENTRY_DECODE,
                                   .flags = QUIRE_ENTRY_SAMPLE,
                                   .begin = position,
                                   .end = position + 1,
                                   .prefix_end = position - 1,
                                   .home = 1,
                                   .carry_rank = 1,
                                   .recompute_rank = -1,
                                   .commit_rank = 1,
                                   .commit_begin = position - 1,
                                   .commit_end = position,
                                   .append_begin = 1,
                                   .next_token = -1,
                                   .sampling = -1};
}

static struct quire_step_plan *two_rows(uint64_t epoch, int32_t first, int32_t second) {
  struct quire_step_plan *plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
  assert_non_null(plan);
  quire_step_plan_reset(plan, epoch, 2, QUIRE_SPLIT_ZIGZAG);
  struct quire_step_entry rows[2] = {decode_row(0, first), decode_row(1, second)};
  assert_true(quire_step_plan_add(plan, &limits, &rows[0], tokens[0] + first - 1, NULL));
  assert_true(quire_step_plan_add(plan, &limits, &rows[1], tokens[1] + second - 1, NULL));
  return plan;
}

/* Rows that are moved on and taken over make the same block, byte by byte, as rows that are written anew; also when the
 * one in front is written anew between. */
static void rows_that_stay(void **state) {
  (void)state;
  for (int first_stays = 0; first_stays < 2; first_stays++) {
    struct quire_step_plan *plan = two_rows(5, 3, 6), *anew = two_rows(6, 4, 7);
    struct quire_step_kept kept = quire_step_plan_kept(plan, &limits);
    assert_ptr_equal(kept.entries, quire_step_plan_entries(plan));
    assert_ptr_equal(kept.tokens, quire_step_plan_tokens(plan, &limits));
    quire_step_kept_advance(&kept, 0, tokens[0][4]);
    quire_step_kept_advance(&kept, 1, tokens[1][7]);
    quire_step_plan_reset(plan, 6, 2, QUIRE_SPLIT_ZIGZAG);
    if (first_stays == 1) {
      quire_step_plan_keep(plan);
    } else {
      struct quire_step_entry row = decode_row(0, 4);
      assert_true(quire_step_plan_add(plan, &limits, &row, tokens[0] + 3, NULL));
    }
    quire_step_plan_keep(plan);
    assert_true(quire_step_plan_check(plan, &limits, NULL));
    assert_memory_equal(plan, anew, (size_t)quire_step_plan_bytes(&limits));
    free(plan);
    free(anew);
  }
}

static void limits_refuse_whole_entries(void **state) {
  (void)state;
  struct quire_step_plan *plan = good_plan();
  size_t bytes = (size_t)quire_step_plan_bytes(&limits);
  struct quire_step_plan *before = malloc(bytes);
  assert_non_null(before);
  memcpy(before, plan, bytes);
  int32_t many[12] = {0};
  quire_page pages[5] = {{0}};
  struct quire_step_entry entry = {.end = 6, .home = -1, .carry_rank = -1, .recompute_rank = -1, .commit_rank = -1};
  assert_false(quire_step_plan_add(plan, &limits, &entry, many, pages)); /* 7 + 6 tokens of 12 */
  entry.end = 5;
  entry.append_count = 4; /* 1 + 4 pages of 4 */
  assert_false(quire_step_plan_add(plan, &limits, &entry, many, pages));
  entry.append_count = 0;
  entry.flags = QUIRE_ENTRY_SAMPLE;
  struct quire_sampling sampling = {.top_logprobs = 2}; /* 5 + 2 of 6 */
  struct quire_step_draw draw = {.sampling = &sampling, .tokens = tokens[0], .prompt_end = 5, .listed = -1};
  assert_false(quire_step_plan_add_drawn(plan, &limits, &entry, NULL, &draw));
  sampling = (struct quire_sampling){.bias = biases, .bias_count = 2};
  draw.bans = many;
  draw.ban_count = 1; /* 3 + 3 of 5 */
  assert_false(quire_step_plan_add_drawn(plan, &limits, &entry, NULL, &draw));
  draw.ban_count = 0;
  sampling.repetition_penalty = 2; /* 8 + 5 of 10 */
  assert_false(quire_step_plan_add_drawn(plan, &limits, &entry, NULL, &draw));
  assert_int_equal(draw.listed, -1);
  assert_memory_equal(plan, before, bytes);
  entry.flags = 0;
  entry.append_count = 3;
  assert_true(quire_step_plan_add(plan, &limits, &entry, many, pages));
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
                  record[] = "no such sampling record", sampling[] = "sampling parameters out of bounds",
                  token_list[] = "token list of a sampling record out of bounds",
                  places[] = "biases or likeliest tokens of a sampling record out of bounds";

#define RECORD(index, field)                                                                                           \
  sizeof(struct quire_step_plan) + 3 * sizeof(struct quire_step_entry) +                                               \
      (index) * sizeof(struct quire_step_sampling) + offsetof(struct quire_step_sampling, field)
#define NOT_A_NUMBER 0x7fc00000
#define FLOAT_3 0x40400000
#define FLOAT_MINUS_3 ((int32_t)0xc0400000u)

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
    {HEADER(sampling_count), -1, over},
    {HEADER(sampling_count), 4, over},
    {HEADER(list_count), 11, over},
    {HEADER(list_count), -1, over},
    {HEADER(bias_count), 6, over},
    {HEADER(bias_count), -1, over},
    {HEADER(top_count), 7, over},
    {HEADER(top_count), -1, over},
    {ENTRY(0, sampling), -2, record},
    {ENTRY(0, sampling), 2, record},
    {ENTRY(0, sampling), INT32_MAX, record},
    {ENTRY(1, sampling), -3, record},
    {HEADER(sampling_count), 1, record},
    {RECORD(0, temperature), NOT_A_NUMBER, sampling},
    {RECORD(0, temperature), FLOAT_MINUS_3, sampling},
    {RECORD(1, top_p), FLOAT_3, sampling},
    {RECORD(1, top_p), NOT_A_NUMBER, sampling},
    {RECORD(0, min_p), FLOAT_MINUS_3, sampling},
    {RECORD(1, top_k), -1, sampling},
    {RECORD(0, presence_penalty), FLOAT_3, sampling},
    {RECORD(0, frequency_penalty), FLOAT_MINUS_3, sampling},
    {RECORD(0, repetition_penalty), 0, sampling},
    {RECORD(1, repetition_penalty), NOT_A_NUMBER, sampling},
    {RECORD(0, prompt_end), -1, token_list},
    {RECORD(0, flags), 4, token_list},
    {RECORD(0, list_begin), -1, token_list},
    {RECORD(0, list_begin), 9, token_list},
    {RECORD(0, list_end), 9, token_list},
    {RECORD(0, list_end), 2, token_list}, /* the draw needs more than the entry's own tokens */
    {RECORD(0, list_end), INT32_MAX, token_list},
    {RECORD(0, list_first), -1, token_list},
    {RECORD(0, list_first), 1, token_list},
    {RECORD(1, list_end), 1, token_list}, /* a list nobody asked for */
    {HEADER(list_count), 7, token_list},
    {RECORD(0, bias_first), -1, places},
    {RECORD(0, bias_first), 1, places},
    {RECORD(0, bias_count), -1, places},
    {RECORD(0, bias_count), INT32_MAX, places},
    {RECORD(0, top_first), -1, places},
    {RECORD(0, top_count), 21, places},
    {RECORD(0, top_count), -1, places},
    {RECORD(1, row_top_first), 4, places},
    {RECORD(1, row_top_count), 21, places},
    {RECORD(1, row_top_count), -1, places},
    {HEADER(top_count), 4, places},
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
      cmocka_unit_test(added_is_found_again),  cmocka_unit_test(records_are_found_again),
      cmocka_unit_test(lists_are_appended_to), cmocka_unit_test(limits_refuse_whole_entries),
      cmocka_unit_test(who_computes_what),     cmocka_unit_test(every_fault_is_named),
      cmocka_unit_test(odd_but_legal),         cmocka_unit_test(rows_that_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
