/* Executes step plans on the ranks of a worker. One interface, several executors:
 *
 *   threads   a thread per rank in this process; the first rank's is the one that waits for the plan
 *   proc      a forked process per rank over shared memory, which proves that plans and acks are plain data
 *   sim       no model: ranks on paper, with faults (sim/sim.h)
 *
 * The controller posts a plan; every rank executes it in the same order and answers with an ack. One plan is in flight.
 * An executor owns what a rank needs to run: its streams, team, bank, view and forward pass, all reserved at creation;
 * nothing is allocated while a plan runs. threads and proc give the same bytes.
 *
 * A rank that fails poisons the epoch: every other rank ends the step as a no-op with QUIRE_ERR_ABORTED, and the worker
 * must be created anew. A rank process that dies is seen within QUIRE_STEP_WATCH_NS and counts as one that failed;
 * processes that then do not answer within QUIRE_STEP_GRACE_NS, or do not end within it in destroy, are killed.
 *
 * Threads: create, post, wait, destroy from the controller; wait runs kernels on it, for which create sees to the stack
 * (base/thread.h); banks are the controller's between steps (poll and submit may go on during a step). */
#ifndef QUIRE_STEP_STEP_H
#define QUIRE_STEP_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "bank/bank.h"
#include "base/env.h"
#include "base/status.h"
#include "layout/geometry.h"
#include "layout/parts.h"
#include "layout/step_ack.h"
#include "layout/step_plan.h"
#include "model/forward.h"
#include "view/view.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_sim_config;

struct quire_step_config {
  struct quire_geometry geometry;
  const struct quire_parts *parts;
  struct quire_hash128 fingerprint;
  enum quire_view_mode view;
  const struct quire_kernels *kernels;
  const struct quire_model_config *model;
  const struct quire_model_weights *weights;
  struct quire_model_options options;
  struct quire_step_limits limits;
  int32_t requests_max;
  int32_t request_pages_max;
  int32_t rows_max;   /* of one rank in one step */
  int32_t fresh_max;  /* of all prefill entries in one step */
  int32_t local_rows; /* ring of the local segment */
  int32_t gather_pages_max;
  int32_t logits_max; /* rows of logits at a time */
  int threads_per_rank;
  enum quire_stream_mode copy_mode; /* of gather's and the banks' streams: THREAD, DEFERRED in tests */
  uint64_t copy_seed;
  bool debug; /* of the views */
  enum quire_view_fault fault;
  uint64_t fault_epoch;
  struct quire_trace *trace;          /* of layers and gather jobs, all ranks; NULL: off */
  const struct quire_sim_config *sim; /* of the executor "sim"; NULL: its defaults */
};

/* Bytes one rank reserves, by purpose; the KV pages of the rank with most of them. */
struct quire_step_memory {
  int64_t pages;
  struct quire_view_memory view;
  int64_t forward;
  int64_t shared;   /* of all ranks together: the RoPE table */
  int64_t sampling; /* token counts behind penalties, scratch of drawing */
};

struct quire_step_executor;

#define QUIRE_STEP_OPS_VERSION 3
#define QUIRE_STEP_WATCH_NS 20000000
#define QUIRE_STEP_GRACE_NS 2000000000

/* One executor. Slots are never NULL. */
struct quire_step_ops {
  uint32_t size;
  uint32_t version; /* QUIRE_STEP_OPS_VERSION */
  const char *name; /* "threads", "proc", "sim" */
  struct quire_step_memory (*bytes)(const struct quire_step_config *config);
  enum quire_status (*create)(const struct quire_env *env, const struct quire_step_config *config,
                              struct quire_step_executor **executor_out, struct quire_error *error_out);
  void (*destroy)(struct quire_step_executor *executor);
  enum quire_status (*post)(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                            struct quire_error *error_out);
  struct quire_step_ack *(*wait)(struct quire_step_executor *executor);
  bool (*alive)(struct quire_step_executor *executor, struct quire_error *why_out);
  enum quire_status (*submit)(struct quire_step_executor *executor, int32_t rank, const struct quire_command *command,
                              struct quire_error *error_out);
  int32_t (*poll)(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out, int32_t max);
  int32_t (*open_commands)(struct quire_step_executor *executor, int32_t rank);
  void (*drain)(struct quire_step_executor *executor, int32_t rank);
  struct quire_bank *(*bank)(struct quire_step_executor *executor, int32_t rank);
  bool (*tap)(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap);
};

/* Executors by index, the default first; NULL past the end. */
const struct quire_step_ops *quire_step_ops_at(int index);

/* Of the executor of that name; all 0 for a name there is none of. */
struct quire_step_memory quire_step_bytes(const char *name, const struct quire_step_config *config);

/* Creates the ranks of a worker. QUIRE_ERR_UNSUPPORTED for an unknown name, QUIRE_ERR_MEMORY. */
enum quire_status quire_step_create(const struct quire_env *env, const char *name,
                                    const struct quire_step_config *config, struct quire_step_executor **executor_out,
                                    struct quire_error *error_out);
/* Ends the ranks. NULL is allowed. */
void quire_step_destroy(struct quire_step_executor *executor);

/* Hands the plan to all ranks; the block must stay untouched until wait returns. QUIRE_ERR_STATE while one is in
 * flight or after a failed step. */
enum quire_status quire_step_post(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                                  struct quire_error *error_out);
/* Waits for all ranks and merges their acks. The block is the executor's, valid until the next post. */
struct quire_step_ack *quire_step_wait(struct quire_step_executor *executor);

/* Between steps: whether every rank is still there. False with the first that is not; the executor has failed then. A
 * rank that is there may hang: only a step shows that. */
bool quire_step_alive(struct quire_step_executor *executor, struct quire_error *why_out);

/* Commands of the cache to one rank's memory: what the bank's calls of these names do (bank.h). */
enum quire_status quire_step_submit(struct quire_step_executor *executor, int32_t rank,
                                    const struct quire_command *command, struct quire_error *error_out);
int32_t quire_step_poll(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out, int32_t max);
int32_t quire_step_open_commands(struct quire_step_executor *executor, int32_t rank);
void quire_step_drain(struct quire_step_executor *executor, int32_t rank);
/* The ranks' banks, for whoever looks at rows; NULL where there is no memory (sim). */
struct quire_bank *quire_step_bank(struct quire_step_executor *executor, int32_t rank);
/* Shows values of one rank's forward pass; between steps only. False where ranks do not share the caller's memory. */
bool quire_step_tap(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap);

#ifdef __cplusplus
}
#endif
#endif
