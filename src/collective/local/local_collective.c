/* Ranks are threads of one process: everything is addressable, so a collective is a barrier and a table.
 *
 * Each operation is: write my cell of the table, meet at the barrier, read the others' cells. One meeting is enough
 * because the cells rotate. A cell written for operation n is read between meeting n and the reader's join of meeting
 * n + 1, so the writer, who has left meeting n + 1, may write into the next but one. Two sets would do for what an
 * operation itself reads; the array of blocks is promised until the reader's second next exchange, which takes three:
 *
 *     rank 0   write set 0 | meet 0 | read set 0, write set 1 | meet 1 | write set 2 | meet 2 | write set 0
 *     rank 1                                                             joins 2: has given up what it got in 0
 *
 * Rejected: two meetings an operation and one set (twice the wake-ups, which on few cores are the whole cost), and
 * spinning on flags a rank (with more threads than cores each spin costs a time slice). */
#include <stdatomic.h>

#include "base/assert.h"
#include "base/barrier.h"
#include "collective/collective_private.h"

#define SETS 3
#define LINE_BYTES 64
#define RANK_NONE (-1)

enum operation { OPERATION_FENCE, OPERATION_EXCHANGE, OPERATION_MAX };

/* What a rank says when it joins. */
struct cell {
  _Alignas(LINE_BYTES) enum operation operation;
  int32_t value;
};

/* A rank's own counters, touched by its thread alone. */
struct member {
  _Alignas(LINE_BYTES) uint64_t operations;
  uint64_t exchanges;
  struct quire_stream *stream;
};

struct local {
  struct quire_collective front;
  const struct quire_env *env;
  struct quire_barrier *barrier;
  atomic_int inside;  /* ranks in an operation */
  atomic_int aborter; /* first rank that aborted, or RANK_NONE */
  struct member member[QUIRE_COLLECTIVE_RANKS_MAX];
  struct cell cell[SETS][QUIRE_COLLECTIVE_RANKS_MAX];
  struct quire_block block[SETS][QUIRE_COLLECTIVE_RANKS_MAX];
};

static struct local *local_of(struct quire_collective *collective) {
  QUIRE_ASSERT(collective->ops == &quire_collective_local_ops);
  return (struct local *)collective;
}

static enum quire_status local_create(const struct quire_env *env, const struct quire_collective_config *config,
                                      struct quire_collective **collective_out, struct quire_error *error_out) {
  struct local *local = quire_env_zalloc(env, 1, sizeof *local);
  if (local == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "collective", "no memory for a group of %d ranks",
                           (int)config->ranks);
  }
  enum quire_status status = quire_barrier_create(env, config->ranks, &local->barrier, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, local, 1, sizeof *local);
    return status;
  }
  local->front = (struct quire_collective){.ops = &quire_collective_local_ops, .ranks = config->ranks};
  local->env = env;
  atomic_store(&local->aborter, RANK_NONE);
  *collective_out = &local->front;
  return QUIRE_OK;
}

static void local_destroy(struct quire_collective *collective) {
  struct local *local = local_of(collective);
  /* a rank that was a process and died inside stays counted; the abort that followed is the proof */
  QUIRE_ASSERT(atomic_load(&local->inside) == 0 || quire_barrier_aborted(local->barrier));
  quire_barrier_destroy(local->barrier);
  quire_env_free(local->env, local, 1, sizeof *local);
}

static void local_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream) {
  local_of(collective)->member[rank].stream = stream;
}

/* Joins the rank's next operation and waits for all; set_out says where its cells are. That the kinds agree is checked
 * after the meeting, when every cell has been written. */
static enum quire_status meet(struct local *local, int32_t rank, enum operation operation, int32_t value,
                              const struct cell **cells_out) {
  struct member *member = &local->member[rank];
  struct cell *cells = local->cell[member->operations % SETS];
  (void)atomic_fetch_add(&local->inside, 1);
  if (member->stream != NULL) {
    quire_event_sync(quire_stream_record(member->stream));
  }
  cells[rank].operation = operation;
  cells[rank].value = value;
  enum quire_status status = quire_barrier_wait(local->barrier);
  if (status == QUIRE_OK) {
    member->operations++;
    for (int32_t r = 0; r < local->front.ranks; r++) {
      QUIRE_ASSERT(cells[r].operation == operation);
    }
    *cells_out = cells;
  }
  (void)atomic_fetch_sub(&local->inside, 1);
  return status;
}

static enum quire_status local_fence(struct quire_collective *collective, int32_t rank) {
  const struct cell *cells = NULL;
  return meet(local_of(collective), rank, OPERATION_FENCE, 0, &cells);
}

static enum quire_status local_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                        size_t bytes, const struct quire_block **blocks_out) {
  struct local *local = local_of(collective);
  struct member *member = &local->member[rank];
  struct quire_block *blocks = local->block[member->exchanges % SETS];
  const struct cell *cells = NULL;
  blocks[rank] = (struct quire_block){.base = bytes == 0 ? NULL : mine, .bytes = bytes};
  enum quire_status status = meet(local, rank, OPERATION_EXCHANGE, 0, &cells);
  if (status == QUIRE_OK) {
    member->exchanges++;
    *blocks_out = blocks;
  }
  return status;
}

static enum quire_status local_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                       int32_t *max_out) {
  struct local *local = local_of(collective);
  const struct cell *cells = NULL;
  enum quire_status status = meet(local, rank, OPERATION_MAX, value, &cells);
  if (status != QUIRE_OK) {
    return status;
  }
  int32_t max = cells[0].value;
  for (int32_t r = 1; r < local->front.ranks; r++) {
    max = cells[r].value > max ? cells[r].value : max;
  }
  *max_out = max;
  return QUIRE_OK;
}

static void local_abort(struct quire_collective *collective, int32_t rank) {
  struct local *local = local_of(collective);
  int none = RANK_NONE;
  (void)atomic_compare_exchange_strong(&local->aborter, &none, (int)rank);
  quire_barrier_abort(local->barrier);
}

static bool local_aborted(const struct quire_collective *collective, int32_t *rank_out) {
  const struct local *local = (const struct local *)collective;
  bool aborted = quire_barrier_aborted(local->barrier);
  if (aborted && rank_out != NULL) {
    *rank_out = atomic_load(&local->aborter);
  }
  return aborted;
}

/* An operation completes for all ranks or for none, so wherever they left, their counters agree. */
static enum quire_status local_reset(struct quire_collective *collective) {
  struct local *local = local_of(collective);
  if (atomic_load(&local->inside) != 0) {
    return QUIRE_ERR_STATE;
  }
  for (int32_t r = 0; r < local->front.ranks; r++) {
    QUIRE_ASSERT(local->member[r].operations == local->member[0].operations);
    QUIRE_ASSERT(local->member[r].exchanges == local->member[0].exchanges);
  }
  atomic_store(&local->aborter, RANK_NONE);
  quire_barrier_reset(local->barrier);
  return QUIRE_OK;
}

const struct quire_collective_ops quire_collective_local_ops = {
    .size = sizeof(struct quire_collective_ops),
    .version = QUIRE_COLLECTIVE_VERSION,
    .name = "local",
    .create = local_create,
    .destroy = local_destroy,
    .attach = local_attach,
    .fence = local_fence,
    .exchange = local_exchange,
    .max_i32 = local_max_i32,
    .abort = local_abort,
    .aborted = local_aborted,
    .reset = local_reset,
};
