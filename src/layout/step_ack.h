/* What a rank says after a step: one block a rank, flat and without pointers, like the plan (step_plan.h).
 *
 *   | header | entries: one quire_step_result a plan entry | rows: one quire_step_row a plan token (evaluation) |
 *   | tops: likeliest tokens, where the plan's sampling records place them |
 *
 * Each rank fills in what it computed; quire_step_ack_merge puts the ranks' blocks together. The controller alone turns
 * the result into cache calls. Pure. */
#ifndef QUIRE_LAYOUT_STEP_ACK_H
#define QUIRE_LAYOUT_STEP_ACK_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/step_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_TOKEN_ABSENT (-1)

/* What a step says of the fault that was to be put in (view/view.h), bits. */
#define QUIRE_STEP_FAULT_PLACED 1 /* here it acted */
#define QUIRE_STEP_FAULT_READ 2   /* here what it acted on was read: who looks must find it */

struct quire_step_result {
  int32_t token;     /* drawn, or QUIRE_TOKEN_ABSENT */
  float logprob;     /* of the drawn token under the full softmax (sampling.h), where the plan asks for it; else 0 */
  int32_t nonfinite; /* 1: a row of this entry was not finite when it was put, or its logits when it was drawn from */
};

/* One row of an entry with QUIRE_ENTRY_SCORE, at the index of its token in the plan. */
struct quire_step_row {
  float logprob;        /* of the next token; 0 where the plan does not know it */
  int32_t argmax;       /* of the target after this position, or QUIRE_TOKEN_ABSENT */
  int32_t draft_argmax; /* of the draft layer, for two positions on, at its slot; or QUIRE_TOKEN_ABSENT */
};

struct quire_step_ack {
  uint64_t epoch;
  int32_t rank;
  enum quire_status status; /* QUIRE_ERR_ABORTED where another rank failed first */
  struct quire_error error;
  int32_t fault; /* QUIRE_STEP_FAULT_* of any rank */
  int32_t reserved;
};

static_assert(sizeof(struct quire_step_result) == 12, "step result of 12 bytes");
static_assert(offsetof(struct quire_step_result, logprob) == 4, "logprob at 4");
static_assert(offsetof(struct quire_step_result, nonfinite) == 8, "nonfinite at 8");
static_assert(sizeof(struct quire_step_row) == 12, "step row of 12 bytes");
static_assert(offsetof(struct quire_step_row, argmax) == 4, "argmax at 4");
static_assert(offsetof(struct quire_step_row, draft_argmax) == 8, "draft argmax at 8");
static_assert(sizeof(struct quire_step_ack) == 608, "step ack of 608 bytes");
static_assert(offsetof(struct quire_step_ack, rank) == 8, "rank at 8");
static_assert(offsetof(struct quire_step_ack, status) == 12, "status at 12");
static_assert(offsetof(struct quire_step_ack, error) == 16, "error at 16");
static_assert(offsetof(struct quire_step_ack, fault) == 596, "fault at 596");

int64_t quire_step_ack_bytes(const struct quire_step_limits *limits);
/* Empties an ack for a plan: no tokens, nothing scored. */
void quire_step_ack_reset(struct quire_step_ack *ack, const struct quire_step_plan *plan,
                          const struct quire_step_limits *limits, int32_t rank);
struct quire_step_result *quire_step_ack_results(struct quire_step_ack *ack);
struct quire_step_row *quire_step_ack_rows(struct quire_step_ack *ack, const struct quire_step_limits *limits);
/* [plan top_count]: a record's at its top_first, likeliest first; those of a scored position of its entry at
 * row_top_first + (position - begin) * row_top_count. They are of the full softmax. */
struct quire_top *quire_step_ack_tops(struct quire_step_ack *ack, const struct quire_step_limits *limits);
/* Adds what `from` knows to `into`. The first failure that is not QUIRE_ERR_ABORTED wins. */
void quire_step_ack_merge(struct quire_step_ack *into, struct quire_step_ack *from, const struct quire_step_plan *plan,
                          const struct quire_step_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
