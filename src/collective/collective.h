/* What the ranks of a worker do together: fence, exchange, agree on a maximum. Stream-ordered and abortable.
 *
 * A group has R ranks. Every rank calls the same operations in the same order; the n-th operation of one rank joins the
 * n-th of the others (a different kind, or bytes where none are due, is a bug of ours and asserts). An operation starts
 * after what the rank enqueued on its stream before (quire_collective_attach) and completes when every rank has joined.
 * Everything a rank wrote before it joined is visible to every rank after.
 *
 *     rank 0   .. write A0 .. exchange(A0) -- read A0 A1 -- write B0 .. exchange(B0) -- read B0 B1 -- write A0 again
 *     rank 1   .. write A1 .. exchange(A1) -- read A0 A1 -- write B1 .. exchange(B1) -- read B0 B1 -- write A1 again
 *
 * Two buffers a rank are enough and one barrier an exchange: who has completed exchange n + 1 knows that every rank has
 * joined it, hence has done with the blocks of exchange n. So
 *   - what was offered in an operation must not change before its producer has completed a later operation of any kind;
 *   - a reader is done with the bytes before it joins its next operation, or, where the producers rotate N buffers,
 *     before its (N - 1)-th next exchange;
 *   - the array of blocks itself stays valid until the reader joins its second next exchange.
 *
 * Implementations. All need the ranks' hosts to meet; they differ in what a rank's device does.
 *
 *   local   the rank waits for its stream, then meets; blocks are read in place. Threads, or processes that share
 *           memory
 *   peer    streams wait for each other's events, hosts run ahead; blocks are read in place. Threads whose memory the
 *           others reach: GPUs of one process
 *   nccl    NCCL copies the blocks into receive buffers of the group's. Threads with a GPU each
 *
 * With peer and nccl (quire_collective_stream_ordered) an operation completes in the order of the rank's stream: what
 * is enqueued after the call sees what the others wrote; a host that looks needs an event sync first. A rank without a
 * stream waits in the call (nccl refuses it by assertion).
 *
 * Aborts. A rank that cannot go on calls quire_collective_abort once and leaves. Every operation that was not complete
 * then, and every later one, answers QUIRE_ERR_ABORTED on all ranks: an operation ends the same way for all of them.
 * The state is sticky until the controller, with no rank inside, calls quire_collective_reset.
 *
 * Memory: the group's, allocated at creation, nothing after. Blocks are read in place, where the implementation can
 * reach them ("local"), or in a receive buffer of the group's. Threads: a rank's operations come from one thread at a
 * time; abort and aborted from any; create, destroy and reset from the controller while no rank is inside. With more
 * runnable threads than cores waiting sleeps, it never spins. */
#ifndef QUIRE_COLLECTIVE_COLLECTIVE_H
#define QUIRE_COLLECTIVE_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_COLLECTIVE_RANKS_MAX 16
#define QUIRE_COLLECTIVE_VERSION 1

/* Bytes one rank offers to the others in an exchange. */
struct quire_block {
  const void *base; /* NULL when bytes is 0 */
  size_t bytes;
};

struct quire_collective;

struct quire_collective_config {
  int32_t ranks;                                           /* 1 to QUIRE_COLLECTIVE_RANKS_MAX */
  struct quire_device *device[QUIRE_COLLECTIVE_RANKS_MAX]; /* of each rank, or NULL; nccl: a GPU. Outlive the group */
  size_t exchange_bytes_max;                               /* nccl: of one rank's block */
};

/* One implementation. Slots are never NULL. */
struct quire_collective_ops {
  uint32_t size;
  uint32_t version; /* QUIRE_COLLECTIVE_VERSION */
  const char *name; /* "local", "peer", "nccl" */
  bool stream_ordered;
  enum quire_status (*create)(const struct quire_env *env, const struct quire_collective_config *config,
                              struct quire_collective **collective_out, struct quire_error *error_out);
  void (*destroy)(struct quire_collective *collective);
  void (*attach)(struct quire_collective *collective, int32_t rank, struct quire_stream *stream);
  enum quire_status (*fence)(struct quire_collective *collective, int32_t rank);
  enum quire_status (*exchange)(struct quire_collective *collective, int32_t rank, const void *mine, size_t bytes,
                                const struct quire_block **blocks_out);
  enum quire_status (*max_i32)(struct quire_collective *collective, int32_t rank, int32_t value, int32_t *max_out);
  void (*abort)(struct quire_collective *collective, int32_t rank);
  bool (*aborted)(const struct quire_collective *collective, int32_t *rank_out);
  enum quire_status (*reset)(struct quire_collective *collective);
};

/* Implementations by index, best first; NULL past the end. */
const struct quire_collective_ops *quire_collective_ops_at(int index);

/* The NCCL that `nccl` would open, for `quire info`. */
struct quire_nccl_info {
  int32_t version; /* 10,000 * major + 100 * minor + patch; 0: none */
  char why[200];   /* version is 0: the loader's or our own words */
};
/* info_out->version != 0. Any thread. */
bool quire_nccl_describe(struct quire_nccl_info *info_out);

/* A group of config->ranks ranks of the named implementation. QUIRE_ERR_UNSUPPORTED for an unknown name, a library that
 * is not there, ranks without a GPU (nccl), or devices that do not reach each other's memory (peer, where they are
 * given); QUIRE_ERR_ARGUMENT for a number out of bounds, QUIRE_ERR_MEMORY. */
enum quire_status quire_collective_create(const struct quire_env *env, const char *name,
                                          const struct quire_collective_config *config,
                                          struct quire_collective **collective_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_collective_destroy(struct quire_collective *collective);
int32_t quire_collective_ranks(const struct quire_collective *collective);
const char *quire_collective_name(const struct quire_collective *collective);
/* Does an operation complete on the stream, and not when the call returns? */
bool quire_collective_stream_ordered(const struct quire_collective *collective);

/* Operations of rank start after everything enqueued on stream; NULL (as after creation): nothing to wait for. The
 * stream must live until another is attached and every rank has completed an operation after that (others may be
 * waiting for its events), or the group is destroyed. */
void quire_collective_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream);

/* Barrier of all ranks. QUIRE_OK or QUIRE_ERR_ABORTED, like all operations. */
enum quire_status quire_collective_fence(struct quire_collective *collective, int32_t rank);

/* Offers mine[0 .. bytes) and gets every rank's: (*blocks_out)[r] is what rank r offered, the caller's own included.
 * Sizes may differ from rank to rank and be 0. blocks_out is untouched on failure. */
enum quire_status quire_collective_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                            size_t bytes, const struct quire_block **blocks_out);

/* *max_out = the largest value any rank gave. How ranks agree whether a step failed. */
enum quire_status quire_collective_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                           int32_t *max_out);

/* Poisons the epoch: wakes all. The first caller is remembered. */
void quire_collective_abort(struct quire_collective *collective, int32_t rank);
/* True while poisoned; *rank_out (may be NULL) is who did it first. */
bool quire_collective_aborted(const struct quire_collective *collective, int32_t *rank_out);
/* Makes the group usable again, every rank at the same operation. QUIRE_ERR_STATE while a rank is inside, and for ever
 * once a rank of nccl has failed in the middle of an operation: such a group can only be destroyed, which ends what
 * waits. */
enum quire_status quire_collective_reset(struct quire_collective *collective);

#ifdef __cplusplus
}
#endif
#endif
