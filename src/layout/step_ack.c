#include "layout/step_ack.h"

#include <string.h>

#include "base/assert.h"

static int64_t results_bytes(const struct quire_step_limits *limits) {
  return (int64_t)limits->entries_max * (int64_t)sizeof(struct quire_step_result);
}

static int64_t tops_offset(const struct quire_step_limits *limits) {
  return (int64_t)sizeof(struct quire_step_ack) + results_bytes(limits) +
         (int64_t)limits->tokens_max * (int64_t)sizeof(struct quire_step_row);
}

int64_t quire_step_ack_bytes(const struct quire_step_limits *limits) {
  return tops_offset(limits) + (int64_t)limits->tops_max * (int64_t)sizeof(struct quire_top);
}

struct quire_step_result *quire_step_ack_results(struct quire_step_ack *ack) {
  return (struct quire_step_result *)(void *)((uint8_t *)ack + sizeof *ack);
}

struct quire_step_row *quire_step_ack_rows(struct quire_step_ack *ack, const struct quire_step_limits *limits) {
  return (struct quire_step_row *)(void *)((uint8_t *)ack + sizeof *ack + results_bytes(limits));
}

struct quire_top *quire_step_ack_tops(struct quire_step_ack *ack, const struct quire_step_limits *limits) {
  return (struct quire_top *)(void *)((uint8_t *)ack + tops_offset(limits));
}

void quire_step_ack_reset(struct quire_step_ack *ack, const struct quire_step_plan *plan,
                          const struct quire_step_limits *limits, int32_t rank) {
  QUIRE_ASSERT(plan->entry_count <= limits->entries_max && plan->token_count <= limits->tokens_max &&
               plan->top_count <= limits->tops_max);
  memset(ack, 0, sizeof *ack);
  ack->epoch = plan->epoch;
  ack->rank = rank;
  for (int32_t i = 0; i < plan->entry_count; i++) {
    quire_step_ack_results(ack)[i] = (struct quire_step_result){QUIRE_TOKEN_ABSENT, 0.0f, 0};
  }
  for (int32_t i = 0; i < plan->token_count; i++) {
    quire_step_ack_rows(ack, limits)[i] = (struct quire_step_row){0.0f, QUIRE_TOKEN_ABSENT, QUIRE_TOKEN_ABSENT};
  }
  for (int32_t i = 0; i < plan->top_count; i++) {
    quire_step_ack_tops(ack, limits)[i] = (struct quire_top){QUIRE_TOKEN_ABSENT, 0.0f};
  }
}

void quire_step_ack_merge(struct quire_step_ack *into, struct quire_step_ack *from, const struct quire_step_plan *plan,
                          const struct quire_step_limits *limits) {
  QUIRE_ASSERT(into->epoch == from->epoch);
  if (from->status != QUIRE_OK && (into->status == QUIRE_OK || into->status == QUIRE_ERR_ABORTED)) {
    into->status = from->status;
    into->error = from->error;
    into->rank = from->rank;
  }
  into->fault |= from->fault;
  for (int32_t i = 0; i < plan->entry_count; i++) {
    struct quire_step_result *a = quire_step_ack_results(into) + i, *b = quire_step_ack_results(from) + i;
    if (b->token != QUIRE_TOKEN_ABSENT) {
      a->token = b->token;
      a->logprob = b->logprob;
    }
    a->nonfinite |= b->nonfinite;
  }
  for (int32_t i = 0; i < plan->token_count; i++) {
    struct quire_step_row *a = quire_step_ack_rows(into, limits) + i, *b = quire_step_ack_rows(from, limits) + i;
    if (b->argmax != QUIRE_TOKEN_ABSENT) {
      a->argmax = b->argmax;
      a->logprob = b->logprob;
    }
    if (b->draft_argmax != QUIRE_TOKEN_ABSENT) {
      a->draft_argmax = b->draft_argmax;
    }
  }
  for (int32_t i = 0; i < plan->top_count; i++) {
    const struct quire_top *b = quire_step_ack_tops(from, limits) + i;
    if (b->token != QUIRE_TOKEN_ABSENT) {
      quire_step_ack_tops(into, limits)[i] = *b;
    }
  }
}
