/* The part of a rank that turns logits into tokens: draws, scores, and the token counts behind penalties.
 *
 * What a draw depends on arrives with the plan, except for the counts: one table of u16 a request slot, to which each
 * plan appends (layout/step_plan.h says why). Every rank keeps all of them, since any may hold the row that is drawn
 * from.
 *
 * Memory: reserved by create; the tables take requests_max * vocab * 2 bytes and exist where plans may carry lists.
 * Threads: created and destroyed by the controller, run by the rank's thread (or process). */
#ifndef QUIRE_STEP_SAMPLER_H
#define QUIRE_STEP_SAMPLER_H

#include "step/step.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_sampler;

int64_t quire_sampler_bytes(const struct quire_step_config *config);
/* config must outlive it. QUIRE_ERR_MEMORY. */
enum quire_status quire_sampler_create(const struct quire_env *env, const struct quire_step_config *config,
                                       struct quire_sampler **sampler_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_sampler_destroy(struct quire_sampler *sampler);

/* What one step draws with: its plan, where results go, and the rank's parts that have the rows. */
struct quire_sampler_step {
  const struct quire_step_plan *plan;
  struct quire_step_ack *ack;
  struct quire_stream *stream;
  struct quire_view *view;
  struct quire_forward *forward;
};

/* Counts the list tokens of every entry; then draws the token after the last row of the entries that ask for one, where
 * this rank has that row, and scores the rows that are to be scored. draft_full: of the draft layer too. Returns with
 * all of it done and in the ack. */
void quire_sampler_run(struct quire_sampler *sampler, const struct quire_sampler_step *step, bool draft_full);

#ifdef __cplusplus
}
#endif
#endif
