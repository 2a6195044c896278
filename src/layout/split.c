#include "layout/split.h"

#include "base/assert.h"

int32_t quire_split_count(const struct quire_split_chunk *chunk, int32_t rank) {
  QUIRE_ASSERT(rank >= 0 && rank < chunk->ranks && chunk->begin >= 0 && chunk->begin <= chunk->end);
  struct quire_split_run runs[QUIRE_SPLIT_RUNS_MAX];
  int32_t count = quire_split_runs(chunk, rank, runs);
  int32_t rows = 0;
  for (int32_t i = 0; i < count; i++) {
    rows += runs[i].count;
  }
  return rows;
}

int32_t quire_split_count_max(const struct quire_split_chunk *chunk) {
  QUIRE_ASSERT(chunk->ranks >= 1 && chunk->ranks <= QUIRE_RANKS_MAX);
  int32_t most = 0;
  for (int32_t rank = 0; rank < chunk->ranks; rank++) {
    int32_t rows = quire_split_count(chunk, rank);
    most = rows > most ? rows : most;
  }
  return most;
}

int32_t quire_split_position(const struct quire_split_chunk *chunk, int32_t rank, int32_t index) {
  QUIRE_ASSERT(index >= 0);
  struct quire_split_run runs[QUIRE_SPLIT_RUNS_MAX];
  int32_t count = quire_split_runs(chunk, rank, runs);
  int32_t run = 0;
  while (run < count && index >= runs[run].count) {
    index -= runs[run++].count;
  }
  QUIRE_ASSERT(run < count);
  return runs[run].first + index * runs[run].stride;
}

int32_t quire_split_index(const struct quire_split_chunk *chunk, int32_t position) {
  QUIRE_ASSERT(position >= chunk->begin && position < chunk->end);
  struct quire_split_run runs[QUIRE_SPLIT_RUNS_MAX];
  int32_t count = quire_split_runs(chunk, quire_split_rank(chunk, position), runs);
  int32_t before = 0;
  for (int32_t i = 0; i + 1 < count; i++) {
    if (position < runs[i].first + runs[i].count) { /* only zigzag has two runs, and their stride is 1 */
      break;
    }
    before += runs[i].count;
  }
  int32_t run = before == 0 ? 0 : count - 1;
  return before + (position - runs[run].first) / runs[run].stride;
}
