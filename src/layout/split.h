/* Which rank computes which rows of a chunk [begin, end).
 *
 *   zigzag      2R blocks in order; rank r takes blocks r and 2R-1-r, so that early (cheap) and late (dear) rows pair
 *               up. The first (length mod 2R) blocks are one row longer.
 *   interleave  position t belongs to rank t mod R, whatever the chunk's begin, so that a row's rank does not depend on
 *               how the prompt was cut.
 *
 *               R = 2, zigzag, 10 rows:   | 0 0 0 | 1 1 1 | 1 1 | 0 0 |
 *
 * A rank's rows are numbered from 0 in ascending position: its local index, the row of its matrices. An empty share is
 * legal everywhere. Attention without a mask for padded rows needs no more than this: there are none.
 *
 * Pure; compiles for host and device. Nothing fails; ranks in [1, QUIRE_RANKS_MAX] and begin <= end are the caller's
 * duty. */
#ifndef QUIRE_LAYOUT_SPLIT_H
#define QUIRE_LAYOUT_SPLIT_H

#include <stdint.h>

#include "layout/geometry.h"
#include "layout/step_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_split_chunk {
  enum quire_split split;
  int32_t ranks;
  int32_t begin, end;
};

/* count rows at positions first, first + stride, ... */
struct quire_split_run {
  int32_t first;
  int32_t stride;
  int32_t count;
};

#define QUIRE_SPLIT_RUNS_MAX 2

/* First position of zigzag block `block` in [0, 2R]; block 2R starts at end. */
static inline QUIRE_HOST_DEVICE int32_t quire_split_block_begin(const struct quire_split_chunk *chunk, int32_t block) {
  int32_t base = (chunk->end - chunk->begin) / (2 * chunk->ranks);
  int32_t longer = (chunk->end - chunk->begin) % (2 * chunk->ranks);
  return chunk->begin + block * base + (block < longer ? block : longer);
}

/* The zigzag block of a position in [begin, end). */
static inline QUIRE_HOST_DEVICE int32_t quire_split_block(const struct quire_split_chunk *chunk, int32_t position) {
  int32_t base = (chunk->end - chunk->begin) / (2 * chunk->ranks);
  int32_t longer = (chunk->end - chunk->begin) % (2 * chunk->ranks);
  int32_t row = position - chunk->begin;
  int32_t in_longer = longer * (base + 1);
  return row < in_longer ? row / (base + 1) : longer + (row - in_longer) / base;
}

/* The rank that computes a position in [begin, end). */
static inline QUIRE_HOST_DEVICE int32_t quire_split_rank(const struct quire_split_chunk *chunk, int32_t position) {
  if (chunk->split == QUIRE_SPLIT_INTERLEAVE) {
    return position % chunk->ranks;
  }
  int32_t block = quire_split_block(chunk, position);
  return block < chunk->ranks ? block : 2 * chunk->ranks - 1 - block;
}

/* A rank's rows as runs, ascending; returns their number, 0 to QUIRE_SPLIT_RUNS_MAX. No run is empty. */
static inline QUIRE_HOST_DEVICE int32_t quire_split_runs(const struct quire_split_chunk *chunk, int32_t rank,
                                                         struct quire_split_run runs_out[QUIRE_SPLIT_RUNS_MAX]) {
  int32_t runs = 0;
  if (chunk->split == QUIRE_SPLIT_INTERLEAVE) {
    int32_t ahead = (rank - chunk->begin % chunk->ranks + chunk->ranks) % chunk->ranks;
    int32_t rows = chunk->end - chunk->begin - ahead;
    if (rows > 0) {
      struct quire_split_run run = {chunk->begin + ahead, chunk->ranks, (rows + chunk->ranks - 1) / chunk->ranks};
      runs_out[runs++] = run;
    }
    return runs;
  }
  for (int32_t half = 0; half < 2; half++) {
    int32_t block = half == 0 ? rank : 2 * chunk->ranks - 1 - rank;
    int32_t first = quire_split_block_begin(chunk, block);
    int32_t count = quire_split_block_begin(chunk, block + 1) - first;
    if (count > 0) {
      struct quire_split_run run = {first, 1, count};
      runs_out[runs++] = run;
    }
  }
  return runs;
}

/* Number of a rank's rows. */
int32_t quire_split_count(const struct quire_split_chunk *chunk, int32_t rank);

/* Largest share of any rank: the rows an exchange buffer needs a rank. */
int32_t quire_split_count_max(const struct quire_split_chunk *chunk);

/* Position of a rank's row `index`, in [0, quire_split_count). */
int32_t quire_split_position(const struct quire_split_chunk *chunk, int32_t rank, int32_t index);

/* Local index, at its rank, of a position in [begin, end): inverse of quire_split_position. */
int32_t quire_split_index(const struct quire_split_chunk *chunk, int32_t position);

#ifdef __cplusplus
}
#endif
#endif
