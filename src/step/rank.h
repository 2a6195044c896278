/* One rank of a worker and what it runs on: the part of executing a plan that every executor shares.
 *
 * Memory: all of it reserved by quire_rank_create, but for streams and team (quire_rank_start). Threads: created and
 * destroyed by the controller, run by the rank's thread (or process). */
#ifndef QUIRE_STEP_RANK_H
#define QUIRE_STEP_RANK_H

#include "collective/collective.h"
#include "step/sampler.h"
#include "step/step.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_rank {
  const struct quire_env *env;
  struct quire_step_config config;
  int32_t rank;
  struct quire_team *team;
  struct quire_stream *stream, *copy_stream;
  struct quire_collective *collective;
  struct quire_view *view;
  struct quire_forward *forward;
  struct quire_step_ack *ack;
  struct quire_sampler *sampler;
};

/* What the ranks of a worker have in common. views is an array [ranks], complete before the first step. */
struct quire_rank_shared {
  struct quire_collective *collective;
  const struct quire_peer_map *peers;
  struct quire_view *const *views;
  const float *rope;
};

enum quire_status quire_rank_create(const struct quire_env *env, const struct quire_step_config *config, int32_t rank,
                                    const struct quire_rank_shared *shared, struct quire_rank **rank_out,
                                    struct quire_error *error_out);
void quire_rank_destroy(struct quire_rank *rank);
/* A rank's bank with its memory. Banks come first: the peer map of all of them is what views are made of. */
enum quire_status quire_rank_bank_create(const struct quire_env *env, const struct quire_step_config *config,
                                         int32_t rank, struct quire_bank **bank_out, struct quire_error *error_out);

/* Makes the rank's team and streams; in the process that will run it, before its first step. Its memory is there since
 * create, so that ranks in other processes know it. */
enum quire_status quire_rank_start(struct quire_rank *rank, struct quire_error *error_out);
/* Ends them, in the process that started them, whatever start had made. */
void quire_rank_stop(struct quire_rank *rank);

/* Executes one plan and fills rank->ack. FTZ and DAZ must be set (quire_kernels_enter). */
void quire_rank_step(struct quire_rank *rank, const struct quire_step_plan *plan);

/* quire_step_bytes of executors that run these ranks. */
struct quire_step_memory quire_rank_bytes(const struct quire_step_config *config);
struct quire_view_config quire_rank_view_config(const struct quire_step_config *config, int32_t rank);
struct quire_forward_config quire_rank_forward_config(const struct quire_step_config *config);

#ifdef __cplusplus
}
#endif
#endif
