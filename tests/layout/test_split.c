#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layout/split.h"

#define ROWS_MAX 200

/* The slow obvious version: deals every position in turn. */
static void deal(const struct quire_split_chunk *chunk, int32_t rank_out[ROWS_MAX]) {
  int32_t rows = chunk->end - chunk->begin;
  if (chunk->split == QUIRE_SPLIT_INTERLEAVE) {
    for (int32_t i = 0; i < rows; i++) {
      rank_out[i] = (chunk->begin + i) % chunk->ranks;
    }
    return;
  }
  int32_t at = 0;
  for (int32_t block = 0; block < 2 * chunk->ranks; block++) {
    int32_t size = rows / (2 * chunk->ranks) + (block < rows % (2 * chunk->ranks));
    for (int32_t i = 0; i < size; i++) {
      rank_out[at++] = block < chunk->ranks ? block : 2 * chunk->ranks - 1 - block;
    }
  }
  assert_int_equal(at, rows);
}

static void check_chunk(const struct quire_split_chunk *chunk) {
  int32_t rank_of[ROWS_MAX];
  int32_t index[QUIRE_RANKS_MAX] = {0};
  deal(chunk, rank_of);
  for (int32_t i = 0; i < chunk->end - chunk->begin; i++) {
    int32_t rank = rank_of[i];
    assert_int_equal(quire_split_rank(chunk, chunk->begin + i), rank);
    assert_int_equal(quire_split_index(chunk, chunk->begin + i), index[rank]);
    assert_int_equal(quire_split_position(chunk, rank, index[rank]), chunk->begin + i);
    index[rank]++;
  }
  int32_t most = 0;
  for (int32_t rank = 0; rank < chunk->ranks; rank++) {
    struct quire_split_run runs[QUIRE_SPLIT_RUNS_MAX];
    int32_t rows = 0;
    int32_t last = -1;
    int32_t count = quire_split_runs(chunk, rank, runs);
    for (int32_t r = 0; r < count; r++) {
      assert_true(runs[r].count > 0 && runs[r].first > last);
      last = runs[r].first + (runs[r].count - 1) * runs[r].stride;
      rows += runs[r].count;
    }
    assert_int_equal(quire_split_count(chunk, rank), index[rank]);
    assert_int_equal(rows, index[rank]);
    most = rows > most ? rows : most;
  }
  assert_int_equal(quire_split_count_max(chunk), most);
}

static void all_small_chunks(void **state) {
  (void)state;
  for (int32_t split = QUIRE_SPLIT_ZIGZAG; split <= QUIRE_SPLIT_INTERLEAVE; split++) {
    for (int32_t ranks = 1; ranks <= QUIRE_RANKS_MAX; ranks++) {
      for (int32_t rows = 0; rows < 70; rows++) {
        for (int32_t begin = 0; begin < 3 * ranks; begin += 1 + ranks / 3) {
          struct quire_split_chunk chunk = {(enum quire_split)split, ranks, begin, begin + rows};
          check_chunk(&chunk);
        }
      }
    }
  }
}

static void zigzag_of_two_ranks(void **state) {
  (void)state;
  static const int32_t ranks[] = {0, 0, 0, 1, 1, 1, 1, 1, 0, 0};
  struct quire_split_chunk chunk = {QUIRE_SPLIT_ZIGZAG, 2, 100, 110};
  for (int32_t i = 0; i < 10; i++) {
    assert_int_equal(quire_split_rank(&chunk, 100 + i), ranks[i]);
  }
}

/* A row's rank under interleave does not depend on the cut. */
static void interleave_feels_no_cut(void **state) {
  (void)state;
  struct quire_split_chunk whole = {QUIRE_SPLIT_INTERLEAVE, 4, 0, 150};
  for (int32_t begin = 0; begin < 150; begin += 7) {
    struct quire_split_chunk part = {QUIRE_SPLIT_INTERLEAVE, 4, begin, 150};
    for (int32_t position = begin; position < 150; position++) {
      assert_int_equal(quire_split_rank(&whole, position), quire_split_rank(&part, position));
    }
  }
}

/* Far positions and long chunks stay within 32 bits. */
static void long_chunks(void **state) {
  (void)state;
  for (int32_t split = QUIRE_SPLIT_ZIGZAG; split <= QUIRE_SPLIT_INTERLEAVE; split++) {
    struct quire_split_chunk chunk = {(enum quire_split)split, 16, 1 << 20, INT32_MAX - 64};
    int64_t sum = 0;
    for (int32_t rank = 0; rank < 16; rank++) {
      int32_t count = quire_split_count(&chunk, rank);
      sum += count;
      int32_t last = quire_split_position(&chunk, rank, count - 1);
      assert_int_equal(quire_split_rank(&chunk, last), rank);
      assert_int_equal(quire_split_index(&chunk, last), count - 1);
    }
    assert_true(sum == (int64_t)chunk.end - chunk.begin);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_small_chunks),
      cmocka_unit_test(zigzag_of_two_ranks),
      cmocka_unit_test(interleave_feels_no_cut),
      cmocka_unit_test(long_chunks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
