#include "layout/step_plan.h"

#include <string.h>

#include "base/assert.h"
#include "layout/geometry.h"
#include "layout/split.h"

/* The arrays lie behind the header at offsets that depend on the limits alone. */
static int64_t entries_offset(void) { return (int64_t)sizeof(struct quire_step_plan); }

static int64_t samplings_offset(const struct quire_step_limits *limits) {
  return entries_offset() + (int64_t)limits->entries_max * (int64_t)sizeof(struct quire_step_entry);
}

static int64_t tokens_offset(const struct quire_step_limits *limits) {
  return samplings_offset(limits) + (int64_t)limits->entries_max * (int64_t)sizeof(struct quire_step_sampling);
}

static int64_t lists_offset(const struct quire_step_limits *limits) {
  return tokens_offset(limits) + (int64_t)limits->tokens_max * (int64_t)sizeof(int32_t);
}

static int64_t pages_offset(const struct quire_step_limits *limits) {
  return lists_offset(limits) + (int64_t)limits->lists_max * (int64_t)sizeof(int32_t);
}

static int64_t biases_offset(const struct quire_step_limits *limits) {
  return pages_offset(limits) + (int64_t)limits->pages_max * (int64_t)sizeof(quire_page);
}

int64_t quire_step_plan_bytes(const struct quire_step_limits *limits) {
  QUIRE_ASSERT(limits->entries_max >= 0 && limits->tokens_max >= 0 && limits->pages_max >= 0 &&
               limits->lists_max >= 0 && limits->biases_max >= 0 && limits->tops_max >= 0);
  return biases_offset(limits) + (int64_t)limits->biases_max * (int64_t)sizeof(struct quire_bias);
}

void quire_step_plan_reset(struct quire_step_plan *plan, uint64_t epoch, int32_t ranks, enum quire_split split) {
  QUIRE_ASSERT(ranks >= 1 && ranks <= QUIRE_RANKS_MAX);
  memset(plan, 0, sizeof *plan);
  plan->epoch = epoch;
  plan->ranks = ranks;
  plan->split = (int32_t)split;
}

static int32_t first_token_position(const struct quire_step_entry *entry) {
  return entry->begin > 0 ? entry->begin - 1 : 0;
}

static int32_t entry_tokens(const struct quire_step_entry *entry) {
  return entry->end > entry->begin ? entry->end - first_token_position(entry) : 0;
}

bool quire_step_plan_extend(struct quire_step_plan *plan, const struct quire_step_limits *limits, int32_t token_count,
                            int32_t page_count, struct quire_step_room *room_out) {
  QUIRE_ASSERT(token_count >= 0 && page_count >= 0);
  if (plan->entry_count >= limits->entries_max || plan->token_count + token_count > limits->tokens_max ||
      plan->page_count + page_count > limits->pages_max) {
    return false;
  }
  uint8_t *base = (uint8_t *)plan;
  room_out->entry = (struct quire_step_entry *)(base + entries_offset()) + plan->entry_count++;
  room_out->tokens = (int32_t *)(base + tokens_offset(limits)) + plan->token_count;
  room_out->pages = (quire_page *)(base + pages_offset(limits)) + plan->page_count;
  room_out->token_first = plan->token_count;
  room_out->append_first = plan->page_count;
  plan->token_count += token_count;
  plan->page_count += page_count;
  return true;
}

bool quire_step_plan_add(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                         const struct quire_step_entry *entry, const int32_t *tokens, const quire_page *pages) {
  QUIRE_ASSERT(plan != NULL && entry != NULL);
  struct quire_step_room room;
  int32_t count = entry_tokens(entry);
  if (!quire_step_plan_extend(plan, limits, count, entry->append_count, &room)) {
    return false;
  }
  *room.entry = *entry;
  room.entry->token_first = room.token_first;
  room.entry->sampling = -1;
  room.entry->append_first = room.append_first;
  if (count > 0) {
    memcpy(room.tokens, tokens, (size_t)count * sizeof *tokens);
  }
  if (entry->append_count > 0) {
    memcpy(room.pages, pages, (size_t)entry->append_count * sizeof *pages);
  }
  return true;
}

bool quire_step_draws_plainly(const struct quire_sampling *sampling) {
  return !quire_sampling_penalises(sampling) && sampling->bias_count == 0 && sampling->top_logprobs == 0;
}

/* Which tokens of its list a request has to append with this entry. Rows that may be drafts stay out of it; without a
 * repetition penalty so does the prompt. */
static void list_range(const struct quire_step_entry *entry, const struct quire_step_draw *draw,
                       struct quire_step_sampling *record) {
  QUIRE_ASSERT(entry->begin <= entry->end);
  bool whole = record->repetition_penalty != 1.0f;
  int32_t known = entry->begin + 1 > draw->prompt_end ? entry->begin + 1 : draw->prompt_end;
  int32_t end = entry->kind == QUIRE_ENTRY_PREFILL || known > entry->end ? entry->end : known;
  record->flags |= draw->listed < 0 ? QUIRE_SAMPLING_LIST_RESET : 0;
  record->list_begin = draw->listed >= 0 ? draw->listed : whole ? 0 : draw->prompt_end;
  record->list_end = end > record->list_begin ? end : record->list_begin;
}

/* The record without its places in the plan. */
static struct quire_step_sampling record_of(const struct quire_step_entry *entry, const struct quire_step_draw *draw) {
  QUIRE_ASSERT(draw->sampling != NULL);
  const struct quire_sampling *s = draw->sampling;
  bool draws = (entry->flags & QUIRE_ENTRY_SAMPLE) != 0, scores = (entry->flags & QUIRE_ENTRY_SCORE) != 0;
  return (struct quire_step_sampling){
      .seed = s->seed,
      .temperature = s->temperature,
      .top_p = s->top_p,
      .min_p = s->min_p,
      .top_k = s->top_k > 0 ? s->top_k : 0,
      .presence_penalty = s->presence_penalty,
      .frequency_penalty = s->frequency_penalty,
      .repetition_penalty = s->repetition_penalty != 0.0f ? s->repetition_penalty : 1.0f,
      .prompt_end = draw->prompt_end,
      .flags = draws && (s->logprobs || s->top_logprobs > 0) ? QUIRE_SAMPLING_LOGPROB : 0,
      .bias_count = draws ? s->bias_count + draw->ban_count : 0,
      .top_count = draws ? s->top_logprobs : 0,
      .row_top_count = scores && s->prompt_logprobs ? s->prompt_top_logprobs : 0,
  };
}

static void copy_biases(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                        const struct quire_step_draw *draw) {
  QUIRE_ASSERT(plan->bias_count + draw->sampling->bias_count + draw->ban_count <= limits->biases_max);
  struct quire_bias *out = (struct quire_bias *)((uint8_t *)plan + biases_offset(limits)) + plan->bias_count;
  for (int32_t i = 0; i < draw->sampling->bias_count; i++) {
    *out++ = draw->sampling->bias[i];
  }
  for (int32_t i = 0; i < draw->ban_count; i++) {
    *out++ = (struct quire_bias){draw->bans[i], quire_bias_forbids()};
  }
}

bool quire_step_plan_add_drawn(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                               const struct quire_step_entry *entry, const quire_page *pages,
                               struct quire_step_draw *draw) {
  QUIRE_ASSERT(entry->end > entry->begin && draw->prompt_end >= 0 && draw->ban_count >= 0);
  struct quire_step_sampling record = record_of(entry, draw);
  int64_t row_tops = (int64_t)record.row_top_count * (entry->end - entry->begin);
  if (plan->sampling_count >= limits->entries_max || plan->bias_count + record.bias_count > limits->biases_max ||
      plan->top_count + record.top_count + row_tops > limits->tops_max) {
    return false;
  }
  if (quire_step_sampling_penalises(&record)) {
    list_range(entry, draw, &record);
    int32_t room = limits->lists_max - plan->list_count;
    if (record.list_end - record.list_begin > room) {
      if ((entry->flags & QUIRE_ENTRY_SAMPLE) != 0) {
        return false;
      }
      record.list_end = record.list_begin + room;
    }
  }
  if (!quire_step_plan_add(plan, limits, entry, draw->tokens + first_token_position(entry), pages)) {
    return false;
  }
  uint8_t *base = (uint8_t *)plan;
  int32_t listed = record.list_end - record.list_begin;
  record.list_first = plan->list_count;
  record.bias_first = plan->bias_count;
  record.top_first = plan->top_count;
  record.row_top_first = plan->top_count + record.top_count;
  if (listed > 0) {
    memcpy((int32_t *)(base + lists_offset(limits)) + plan->list_count, draw->tokens + record.list_begin,
           (size_t)listed * sizeof *draw->tokens);
  }
  if (record.bias_count > 0) {
    copy_biases(plan, limits, draw);
  }
  ((struct quire_step_entry *)(base + entries_offset()))[plan->entry_count - 1].sampling = plan->sampling_count;
  ((struct quire_step_sampling *)(base + samplings_offset(limits)))[plan->sampling_count++] = record;
  plan->list_count += listed;
  plan->bias_count += record.bias_count;
  plan->top_count += record.top_count + (int32_t)row_tops;
  draw->listed = quire_step_sampling_penalises(&record) ? record.list_end : draw->listed;
  return true;
}

bool quire_step_sampling_penalises(const struct quire_step_sampling *sampling) {
  return sampling->presence_penalty != 0.0f || sampling->frequency_penalty != 0.0f ||
         sampling->repetition_penalty != 1.0f;
}

const struct quire_step_sampling *quire_step_entry_sampling(const struct quire_step_plan *plan,
                                                            const struct quire_step_limits *limits,
                                                            const struct quire_step_entry *entry) {
  QUIRE_ASSERT(entry->sampling < plan->sampling_count);
  const uint8_t *base = (const uint8_t *)plan + samplings_offset(limits);
  return entry->sampling < 0 ? NULL : (const struct quire_step_sampling *)base + entry->sampling;
}

const int32_t *quire_step_sampling_list(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                                        const struct quire_step_sampling *sampling) {
  return (const int32_t *)((const uint8_t *)plan + lists_offset(limits)) + sampling->list_first;
}

const struct quire_bias *quire_step_sampling_biases(const struct quire_step_plan *plan,
                                                    const struct quire_step_limits *limits,
                                                    const struct quire_step_sampling *sampling) {
  return (const struct quire_bias *)((const uint8_t *)plan + biases_offset(limits)) + sampling->bias_first;
}

struct quire_step_kept quire_step_plan_kept(struct quire_step_plan *plan, const struct quire_step_limits *limits) {
  QUIRE_ASSERT(plan != NULL && limits->entries_max > 0);
  uint8_t *base = (uint8_t *)plan;
  return (struct quire_step_kept){(struct quire_step_entry *)(base + entries_offset()),
                                  (int32_t *)(base + tokens_offset(limits))};
}

const struct quire_step_entry *quire_step_plan_entries(const struct quire_step_plan *plan) {
  return (const struct quire_step_entry *)((const uint8_t *)plan + entries_offset());
}

const int32_t *quire_step_plan_tokens(const struct quire_step_plan *plan, const struct quire_step_limits *limits) {
  return (const int32_t *)((const uint8_t *)plan + tokens_offset(limits));
}

const quire_page *quire_step_plan_pages(const struct quire_step_plan *plan, const struct quire_step_limits *limits) {
  return (const quire_page *)((const uint8_t *)plan + pages_offset(limits));
}

int32_t quire_step_entry_token(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                               const struct quire_step_entry *entry, int32_t position) {
  int32_t first = first_token_position(entry);
  QUIRE_ASSERT(position >= first && position < entry->end);
  return quire_step_plan_tokens(plan, limits)[entry->token_first + position - first];
}

int32_t quire_step_entry_producer(const struct quire_step_plan *plan, const struct quire_step_entry *entry,
                                  int32_t position) {
  QUIRE_ASSERT(position >= entry->begin && position < entry->end);
  if (entry->kind == QUIRE_ENTRY_DECODE) {
    return entry->home;
  }
  struct quire_split_chunk chunk = {(enum quire_split)plan->split, plan->ranks, entry->begin, entry->end};
  return quire_split_rank(&chunk, position);
}

int32_t quire_step_entry_draft_producer(const struct quire_step_plan *plan, const struct quire_step_entry *entry,
                                        int32_t position) {
  QUIRE_ASSERT(position >= entry->begin && position < entry->end);
  if (position == 0) {
    return -1;
  }
  if (position > entry->begin) {
    return quire_step_entry_producer(plan, entry, position - 1);
  }
  return entry->carry_rank >= 0 ? entry->carry_rank : entry->recompute_rank;
}

static const char *entry_fault(const struct quire_step_plan *plan, const struct quire_step_entry *e) {
  QUIRE_ASSERT(plan->ranks > 0 && plan->token_count >= 0 && plan->page_count >= 0);
  if (e->kind != QUIRE_ENTRY_PREFILL && e->kind != QUIRE_ENTRY_DECODE) {
    return "unknown entry kind";
  }
  if ((e->flags & ~(QUIRE_ENTRY_SAMPLE | QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL)) != 0) {
    return "unknown entry flag";
  }
  if (e->request < 0 || e->begin < 0 || e->end < e->begin || e->prefix_end < 0 || e->prefix_end > e->begin) {
    return "positions out of order";
  }
  if (e->kind == QUIRE_ENTRY_PREFILL && (e->prefix_end != e->begin || e->home != -1)) {
    return "a prefill entry reads what is in pages up to its first row, and has no home";
  }
  if (e->kind == QUIRE_ENTRY_DECODE && (e->home < 0 || e->home >= plan->ranks)) {
    return "home is not a rank";
  }
  if (e->carry_rank >= plan->ranks || e->recompute_rank >= plan->ranks || e->carry_rank < -1 ||
      e->recompute_rank < -1 || (e->carry_rank >= 0 && e->recompute_rank >= 0)) {
    return "carry and recompute ranks contradict";
  }
  if (e->commit_begin < 0 || e->commit_end < e->commit_begin ||
      (e->commit_end > e->commit_begin && (e->commit_rank < 0 || e->commit_rank >= plan->ranks)) ||
      e->commit_rank < -1 || e->commit_end > e->begin) {
    return "commit out of range";
  }
  if (e->token_first < 0 || e->token_first + (int64_t)entry_tokens(e) > plan->token_count || e->append_begin < 0 ||
      e->append_count < 0 || e->append_first < 0 || e->append_first + (int64_t)e->append_count > plan->page_count) {
    return "token or page list out of bounds";
  }
  if (e->sampling < -1 || e->sampling >= plan->sampling_count) {
    return "no such sampling record";
  }
  return NULL;
}

static bool within(float value, float min, float max) { return value >= min && value <= max; }

/* [first, first + count) inside [0, bound). */
static bool inside(int32_t first, int64_t count, int32_t bound) {
  return first >= 0 && count >= 0 && first + count <= bound;
}

static const char *sampling_fault(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                                  const struct quire_step_entry *e) {
  QUIRE_ASSERT(plan != NULL && limits != NULL);
  const struct quire_step_sampling *s = quire_step_entry_sampling(plan, limits, e);
  if (s == NULL) {
    return NULL;
  }
  if (!within(s->temperature, 0.0f, QUIRE_TEMPERATURE_MAX) || !within(s->top_p, 0.0f, 1.0f) ||
      !within(s->min_p, 0.0f, 1.0f) || s->top_k < 0 ||
      !within(s->presence_penalty, -QUIRE_PENALTY_MAX, QUIRE_PENALTY_MAX) ||
      !within(s->frequency_penalty, -QUIRE_PENALTY_MAX, QUIRE_PENALTY_MAX) ||
      !(within(s->repetition_penalty, 0.0f, QUIRE_REPETITION_MAX) && s->repetition_penalty > 0.0f)) {
    return "sampling parameters out of bounds";
  }
  bool draws_from_list = (e->flags & QUIRE_ENTRY_SAMPLE) != 0 && quire_step_sampling_penalises(s);
  if (s->prompt_end < 0 || s->list_begin < 0 || s->list_end < s->list_begin ||
      (s->flags & ~(QUIRE_SAMPLING_LIST_RESET | QUIRE_SAMPLING_LOGPROB)) != 0 ||
      !inside(s->list_first, s->list_end - s->list_begin, plan->list_count) ||
      (s->list_end > s->list_begin && (s->list_end > e->end || !quire_step_sampling_penalises(s))) ||
      (draws_from_list && s->list_end < first_token_position(e))) {
    return "token list of a sampling record out of bounds";
  }
  if (s->top_count < 0 || s->top_count > QUIRE_TOP_LOGPROBS_MAX || s->row_top_count < 0 ||
      s->row_top_count > QUIRE_TOP_LOGPROBS_MAX || !inside(s->bias_first, s->bias_count, plan->bias_count) ||
      !inside(s->top_first, s->top_count, plan->top_count) ||
      !inside(s->row_top_first, (int64_t)s->row_top_count * (e->end - e->begin), plan->top_count)) {
    return "biases or likeliest tokens of a sampling record out of bounds";
  }
  return NULL;
}

bool quire_step_plan_check(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                           const char **why_out) {
  QUIRE_ASSERT(plan != NULL && limits != NULL);
  const char *why = NULL;
  if (plan->ranks < 1 || plan->ranks > QUIRE_RANKS_MAX ||
      (plan->split != QUIRE_SPLIT_ZIGZAG && plan->split != QUIRE_SPLIT_INTERLEAVE)) {
    why = "ranks or split unknown";
  } else if (plan->entry_count < 0 || plan->entry_count > limits->entries_max || plan->token_count < 0 ||
             plan->token_count > limits->tokens_max || plan->page_count < 0 || plan->page_count > limits->pages_max ||
             plan->sampling_count < 0 || plan->sampling_count > limits->entries_max || plan->list_count < 0 ||
             plan->list_count > limits->lists_max || plan->bias_count < 0 || plan->bias_count > limits->biases_max ||
             plan->top_count < 0 || plan->top_count > limits->tops_max) {
    why = "more than the plan's limits";
  }
  for (int32_t i = 0; why == NULL && i < plan->entry_count; i++) {
    const struct quire_step_entry *entry = quire_step_plan_entries(plan) + i;
    why = entry_fault(plan, entry);
    why = why != NULL ? why : sampling_fault(plan, limits, entry);
  }
  if (why != NULL && why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}
