/* What the executors of this folder share: the front of an executor, and the objects all ranks hang on. */
#ifndef QUIRE_STEP_STEP_PRIVATE_H
#define QUIRE_STEP_STEP_PRIVATE_H

#include "step/rank.h"
#include "step/step.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct quire_step_ops quire_step_threads_ops;
extern const struct quire_step_ops quire_step_proc_ops;
extern const struct quire_step_ops quire_step_sim_ops;

/* The commands' slots of executors whose ranks have banks. */
enum quire_status quire_step_bank_submit(struct quire_step_executor *executor, int32_t rank,
                                         const struct quire_command *command, struct quire_error *error_out);
int32_t quire_step_bank_poll(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out,
                             int32_t max);
int32_t quire_step_bank_open_commands(struct quire_step_executor *executor, int32_t rank);
void quire_step_bank_drain(struct quire_step_executor *executor, int32_t rank);

/* First member of every executor. */
struct quire_step_executor {
  const struct quire_step_ops *ops;
};

/* The ranks of a worker and what they have in common, in memory of one environment: private to the process, or shared
 * with ranks that are forked later. No thread but the banks' runs after create. */
struct quire_step_group {
  const struct quire_env *env;
  struct quire_step_config config;
  struct quire_collective *collective;
  struct quire_bank *banks[QUIRE_RANKS_MAX];
  struct quire_peer_map *peers;
  struct quire_view **views; /* [ranks] */
  struct quire_rank *ranks[QUIRE_RANKS_MAX];
  float *rope;
  size_t rope_count;
  struct quire_step_ack *merged;
};

/* Fills *group, which is zeroed; on failure quire_step_group_fini gives back what was made. */
enum quire_status quire_step_group_init(struct quire_step_group *group, const struct quire_env *env,
                                        const struct quire_step_config *config, struct quire_error *error_out);
void quire_step_group_fini(struct quire_step_group *group);
/* Threads that compute while a plan runs: to be declared then (base/futex.h). */
int32_t quire_step_group_threads(const struct quire_step_group *group);
/* Merges the ranks' acks of a plan. */
struct quire_step_ack *quire_step_group_merge(struct quire_step_group *group, const struct quire_step_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
