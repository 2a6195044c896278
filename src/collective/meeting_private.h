/* Where ranks meet on the host: the part that all collectives of one process, or of forked ones, share.
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
 * spinning on flags a rank (with more threads than cores each spin costs a time slice).
 *
 * Memory: the implementation's, which holds the struct. Threads and aborts as collective.h says. */
#ifndef QUIRE_COLLECTIVE_MEETING_PRIVATE_H
#define QUIRE_COLLECTIVE_MEETING_PRIVATE_H

#include <stdatomic.h>

#include "base/barrier.h"
#include "collective/collective_private.h"

#define QUIRE_MEETING_SETS 3
#define QUIRE_MEETING_LINE_BYTES 64

enum quire_operation { QUIRE_OPERATION_FENCE, QUIRE_OPERATION_EXCHANGE, QUIRE_OPERATION_MAX };

/* What a rank says when it joins. */
struct quire_meeting_cell {
  _Alignas(QUIRE_MEETING_LINE_BYTES) enum quire_operation operation;
  int32_t value;
  struct quire_event event; /* what the others' streams wait for; none: stream NULL */
};

/* A rank's own counters, touched by its thread alone. */
struct quire_meeting_member {
  _Alignas(QUIRE_MEETING_LINE_BYTES) uint64_t operations;
  uint64_t exchanges;
  struct quire_stream *stream;
};

struct quire_meeting {
  int32_t ranks;
  struct quire_barrier *barrier;
  atomic_int inside;  /* ranks in an operation */
  atomic_int aborter; /* first rank that aborted, or none */
  struct quire_meeting_member member[QUIRE_COLLECTIVE_RANKS_MAX];
  struct quire_meeting_cell cell[QUIRE_MEETING_SETS][QUIRE_COLLECTIVE_RANKS_MAX];
  struct quire_block block[QUIRE_MEETING_SETS][QUIRE_COLLECTIVE_RANKS_MAX];
};

/* On zeroed memory. QUIRE_ERR_MEMORY leaves nothing to close. */
enum quire_status quire_meeting_open(const struct quire_env *env, int32_t ranks, struct quire_meeting *meeting,
                                     struct quire_error *error_out);
void quire_meeting_close(struct quire_meeting *meeting);

/* Joins the rank's next operation with `mine` and waits for all. The cells of all ranks are at *cells_out (may be
 * NULL). That the kinds agree is checked after the meeting, when every cell has been written. */
enum quire_status quire_meeting_join(struct quire_meeting *meeting, int32_t rank, struct quire_meeting_cell mine,
                                     const struct quire_meeting_cell **cells_out);
/* The same for an exchange: offers block and shows all ranks' in *blocks_out. */
enum quire_status quire_meeting_exchange(struct quire_meeting *meeting, int32_t rank, struct quire_meeting_cell mine,
                                         struct quire_block block, const struct quire_block **blocks_out,
                                         const struct quire_meeting_cell **cells_out);
/* Largest value of all cells. */
int32_t quire_meeting_max(const struct quire_meeting *meeting, const struct quire_meeting_cell *cells);

void quire_meeting_abort(struct quire_meeting *meeting, int32_t rank);
bool quire_meeting_aborted(const struct quire_meeting *meeting, int32_t *rank_out);
enum quire_status quire_meeting_reset(struct quire_meeting *meeting);

#endif
