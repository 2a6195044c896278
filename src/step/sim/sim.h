/* The executor "sim": runs step plans without a model, in no time, on ranks that exist on paper.
 *
 * A token is a function of what a model would have read: each row has a state, chained from row to row,
 *
 *   state(p) = quire_sim_state(state(p - 1), token(p))
 *   token drawn at p = quire_sim_token(state(p - 1), seed, p, vocab)
 *
 * (the next that no bias forbids, where one does), and with `verify` a row's state is where its bytes would be: in its
 * page, or in the local segment of its home, found through the page tables that the plans announced. So a page that is
 * missing, stale, another request's, written twice or read before its fence gives other tokens than the request alone
 * has, or stops the step with QUIRE_ERR_RANK and a text that names it; so does an entry that draws without a record
 * after one that it may not go on with. Without `verify` the state of the row before is taken as 0 and nothing is kept:
 * for benches and as the stub model of the server, where only the token before and the position decide.
 *
 * Faults come from the seed: rows that are not finite, a rank that fails, commands that are late or fail. Time is the
 * caller's: *clock_ns advances by what a step would take.
 *
 * Threads: the controller's; post does the work. Memory at creation only. */
#ifndef QUIRE_STEP_SIM_SIM_H
#define QUIRE_STEP_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"
#include "model/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_sim_config {
  uint64_t seed;
  bool verify;
  int32_t nonfinite_per_million; /* of entries */
  uint64_t fail_epoch;           /* the step in which rank 0 fails; 0: none */
  int32_t command_steps_max;     /* a command is answered up to so many steps late */
  int32_t command_failures_per_million;
  const int *hang;          /* atomic, the caller's: steps from this epoch on do not end; 0 or NULL: all do */
  const int *dead;          /* atomic, the caller's: not 0 once rank 0 has died; NULL: it lives */
  uint64_t step_ns, row_ns; /* what a step and each of its rows take */
  uint64_t *clock_ns;       /* NULL: nobody looks */
  uint64_t *spent_ns;       /* grows by the time in post, measured in every 16th step; NULL: not read */
  uint64_t (*spent_clock)(const void *context); /* for spent_ns */
  const void *spent_context;
};

/* A model of no weights, one layer and a draft layer, for an engine with this executor. */
void quire_sim_model(int32_t vocab, int32_t positions, struct quire_model_config *config_out,
                     struct quire_model_weights *weights_out);

uint64_t quire_sim_state(uint64_t before, int32_t token);
int32_t quire_sim_token(uint64_t state, uint64_t seed, int32_t position, int32_t vocab);
/* The state of the row before the first. */
#define QUIRE_SIM_START UINT64_C(0x9e3779b97f4a7c15)

#ifdef __cplusplus
}
#endif
#endif
