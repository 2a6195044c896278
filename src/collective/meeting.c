#include "collective/meeting_private.h"

#include "base/assert.h"

#define RANK_NONE (-1)

enum quire_status quire_meeting_open(const struct quire_env *env, int32_t ranks, struct quire_meeting *meeting,
                                     struct quire_error *error_out) {
  QUIRE_ASSERT(ranks > 0 && ranks <= QUIRE_COLLECTIVE_RANKS_MAX);
  enum quire_status status = quire_barrier_create(env, ranks, &meeting->barrier, error_out);
  if (status == QUIRE_OK) {
    meeting->ranks = ranks;
    atomic_store(&meeting->aborter, RANK_NONE);
  }
  return status;
}

void quire_meeting_close(struct quire_meeting *meeting) {
  /* a rank that was a process and died inside stays counted; the abort that followed is the proof */
  QUIRE_ASSERT(atomic_load(&meeting->inside) == 0 || quire_barrier_aborted(meeting->barrier));
  quire_barrier_destroy(meeting->barrier);
}

enum quire_status quire_meeting_join(struct quire_meeting *meeting, int32_t rank, struct quire_meeting_cell mine,
                                     const struct quire_meeting_cell **cells_out) {
  struct quire_meeting_member *member = &meeting->member[rank];
  struct quire_meeting_cell *cells = meeting->cell[member->operations % QUIRE_MEETING_SETS];
  (void)atomic_fetch_add(&meeting->inside, 1);
  cells[rank] = mine;
  enum quire_status status = quire_barrier_wait(meeting->barrier);
  if (status == QUIRE_OK) {
    member->operations++;
    for (int32_t r = 0; r < meeting->ranks; r++) {
      QUIRE_ASSERT(cells[r].operation == mine.operation);
    }
    if (cells_out != NULL) {
      *cells_out = cells;
    }
  }
  (void)atomic_fetch_sub(&meeting->inside, 1);
  return status;
}

enum quire_status quire_meeting_exchange(struct quire_meeting *meeting, int32_t rank, struct quire_meeting_cell mine,
                                         struct quire_block block, const struct quire_block **blocks_out,
                                         const struct quire_meeting_cell **cells_out) {
  struct quire_meeting_member *member = &meeting->member[rank];
  struct quire_block *blocks = meeting->block[member->exchanges % QUIRE_MEETING_SETS];
  QUIRE_ASSERT(mine.operation == QUIRE_OPERATION_EXCHANGE);
  blocks[rank] = (struct quire_block){.base = block.bytes == 0 ? NULL : block.base, .bytes = block.bytes};
  enum quire_status status = quire_meeting_join(meeting, rank, mine, cells_out);
  if (status == QUIRE_OK) {
    member->exchanges++;
    *blocks_out = blocks;
  }
  return status;
}

int32_t quire_meeting_max(const struct quire_meeting *meeting, const struct quire_meeting_cell *cells) {
  int32_t max = cells[0].value;
  QUIRE_ASSERT(meeting->ranks > 0);
  for (int32_t r = 1; r < meeting->ranks; r++) {
    max = cells[r].value > max ? cells[r].value : max;
  }
  return max;
}

void quire_meeting_abort(struct quire_meeting *meeting, int32_t rank) {
  int none = RANK_NONE;
  QUIRE_ASSERT(rank >= 0 && rank < meeting->ranks);
  (void)atomic_compare_exchange_strong(&meeting->aborter, &none, (int)rank);
  quire_barrier_abort(meeting->barrier);
}

bool quire_meeting_aborted(const struct quire_meeting *meeting, int32_t *rank_out) {
  QUIRE_ASSERT(meeting->barrier != NULL);
  bool aborted = quire_barrier_aborted(meeting->barrier);
  if (aborted && rank_out != NULL) {
    *rank_out = atomic_load(&meeting->aborter);
  }
  return aborted;
}

/* An operation completes for all ranks or for none, so wherever they left, their counters agree. */
enum quire_status quire_meeting_reset(struct quire_meeting *meeting) {
  if (atomic_load(&meeting->inside) != 0) {
    return QUIRE_ERR_STATE;
  }
  for (int32_t r = 0; r < meeting->ranks; r++) {
    QUIRE_ASSERT(meeting->member[r].operations == meeting->member[0].operations);
    QUIRE_ASSERT(meeting->member[r].exchanges == meeting->member[0].exchanges);
  }
  atomic_store(&meeting->aborter, RANK_NONE);
  quire_barrier_reset(meeting->barrier);
  return QUIRE_OK;
}
