#include "layout/step_plan.h"

#include <string.h>

#include "base/assert.h"
#include "layout/geometry.h"
#include "layout/split.h"

/* The three arrays lie behind the header at offsets that depend on the limits alone. */
static int64_t entries_offset(void) { return (int64_t)sizeof(struct quire_step_plan); }

static int64_t tokens_offset(const struct quire_step_limits *limits) {
  return entries_offset() + (int64_t)limits->entries_max * (int64_t)sizeof(struct quire_step_entry);
}

static int64_t pages_offset(const struct quire_step_limits *limits) {
  return tokens_offset(limits) + (int64_t)limits->tokens_max * (int64_t)sizeof(int32_t);
}

int64_t quire_step_plan_bytes(const struct quire_step_limits *limits) {
  QUIRE_ASSERT(limits->entries_max >= 0 && limits->tokens_max >= 0 && limits->pages_max >= 0);
  return pages_offset(limits) + (int64_t)limits->pages_max * (int64_t)sizeof(quire_page);
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

bool quire_step_plan_add(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                         const struct quire_step_entry *entry, const int32_t *tokens, const quire_page *pages) {
  int32_t count = entry_tokens(entry);
  if (plan->entry_count >= limits->entries_max || plan->token_count + count > limits->tokens_max ||
      plan->page_count + entry->append_count > limits->pages_max) {
    return false;
  }
  uint8_t *base = (uint8_t *)plan;
  struct quire_step_entry *slot = (struct quire_step_entry *)(base + entries_offset()) + plan->entry_count;
  *slot = *entry;
  slot->token_first = plan->token_count;
  slot->append_first = plan->page_count;
  if (count > 0) {
    memcpy((int32_t *)(base + tokens_offset(limits)) + plan->token_count, tokens, (size_t)count * sizeof *tokens);
  }
  if (entry->append_count > 0) {
    memcpy((quire_page *)(base + pages_offset(limits)) + plan->page_count, pages,
           (size_t)entry->append_count * sizeof *pages);
  }
  plan->entry_count++;
  plan->token_count += count;
  plan->page_count += entry->append_count;
  return true;
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
  if (e->temperature != e->temperature || e->top_p != e->top_p || e->top_k < 0) {
    return "sampling parameters are not numbers";
  }
  return NULL;
}

bool quire_step_plan_check(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                           const char **why_out) {
  const char *why = NULL;
  if (plan->ranks < 1 || plan->ranks > QUIRE_RANKS_MAX ||
      (plan->split != QUIRE_SPLIT_ZIGZAG && plan->split != QUIRE_SPLIT_INTERLEAVE)) {
    why = "ranks or split unknown";
  } else if (plan->entry_count < 0 || plan->entry_count > limits->entries_max || plan->token_count < 0 ||
             plan->token_count > limits->tokens_max || plan->page_count < 0 || plan->page_count > limits->pages_max) {
    why = "more than the plan's limits";
  }
  for (int32_t i = 0; why == NULL && i < plan->entry_count; i++) {
    why = entry_fault(plan, quire_step_plan_entries(plan) + i);
  }
  if (why != NULL && why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}
