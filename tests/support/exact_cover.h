/* Pairwise covers: a short list of rows of levels in which every pair of levels of two factors occurs, except pairs
 * that are not allowed together. Greedy and seeded; the same seed gives the same list. Threads: any, on different
 * objects. */
#ifndef QUIRE_TESTS_EXACT_COVER_H
#define QUIRE_TESTS_EXACT_COVER_H

#include <stdbool.h>
#include <stdint.h>

#define EXACT_FACTORS_MAX 21
#define EXACT_LEVELS_MAX 40
#define EXACT_ROWS_MAX 4000

struct exact_cover {
  int factors;
  int levels[EXACT_FACTORS_MAX];
  /* May a row have these levels? -1: not chosen yet. Must be monotonous: what is refused stays refused when more is
   * chosen. NULL: everything is allowed. */
  bool (*allowed)(const int *row);
};

/* Fills rows_out, returns their number; asserts that it does not exceed rows_max. *impossible_out (may be NULL): pairs
 * that no allowed row holds, those that `allowed` refuses at once not counted. */
int exact_cover_rows(const struct exact_cover *cover, uint64_t seed, int (*rows_out)[EXACT_FACTORS_MAX], int rows_max,
                     int *impossible_out);
/* One row drawn at random, false when no allowed one was found in many tries. */
bool exact_cover_random(const struct exact_cover *cover, uint64_t *state, int row_out[EXACT_FACTORS_MAX]);

/* splitmix64. */
uint64_t exact_random(uint64_t *state);

#endif
