#include "support/exact_cover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CANDIDATES 24

/* Which pairs still want a row: bit [factor a][level][factor b][level], a < b. */
typedef bool pairs_of[EXACT_FACTORS_MAX][EXACT_LEVELS_MAX][EXACT_FACTORS_MAX][EXACT_LEVELS_MAX];

uint64_t exact_random(uint64_t *state) {
  uint64_t x = *state += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

static bool is_allowed(const struct exact_cover *cover, const int *row) {
  return cover->allowed == NULL || cover->allowed(row);
}

static bool wanted(pairs_of *pairs, int a, int i, int b, int j) {
  return a < b ? (*pairs)[a][i][b][j] : (*pairs)[b][j][a][i];
}

/* Pairs that a level of a factor would add to what the row has. */
static int gain(const struct exact_cover *cover, pairs_of *pairs, const int *row, int factor, int level) {
  int n = 0;
  for (int other = 0; other < cover->factors; other++) {
    if (other != factor && row[other] >= 0) {
      n += wanted(pairs, factor, level, other, row[other]);
    }
  }
  return n;
}

static void shuffle(int *list, int n, uint64_t *state) {
  for (int i = n - 1; i > 0; i--) {
    int j = (int)(exact_random(state) % (uint64_t)(i + 1)), t = list[i];
    list[i] = list[j];
    list[j] = t;
  }
}

/* Chooses the rest of a row; returns its gain, -1 when it got stuck. */
static int complete(const struct exact_cover *cover, pairs_of *pairs, uint64_t *state, int *row) {
  int order[EXACT_FACTORS_MAX], total = 0;
  for (int f = 0; f < cover->factors; f++) {
    order[f] = f;
  }
  shuffle(order, cover->factors, state);
  for (int k = 0; k < cover->factors; k++) {
    int f = order[k], best = -1, best_gain = -1;
    if (row[f] >= 0) {
      continue;
    }
    int start = (int)(exact_random(state) % (uint64_t)cover->levels[f]);
    for (int i = 0; i < cover->levels[f]; i++) {
      int level = (start + i) % cover->levels[f];
      row[f] = level;
      int g = is_allowed(cover, row) ? gain(cover, pairs, row, f, level) : -1;
      if (g > best_gain) {
        best = level;
        best_gain = g;
      }
    }
    row[f] = best;
    if (best < 0) {
      return -1;
    }
    total += best_gain;
  }
  return total;
}

static int list_pairs(const struct exact_cover *cover, pairs_of *pairs) {
  int row[EXACT_FACTORS_MAX], count = 0;
  for (int f = 0; f < EXACT_FACTORS_MAX; f++) {
    row[f] = -1;
  }
  for (int a = 0; a < cover->factors; a++) {
    for (int b = a + 1; b < cover->factors; b++) {
      for (int i = 0; i < cover->levels[a]; i++) {
        for (int j = 0; j < cover->levels[b]; j++) {
          row[a] = i;
          row[b] = j;
          (*pairs)[a][i][b][j] = is_allowed(cover, row);
          count += (*pairs)[a][i][b][j];
        }
      }
      row[b] = -1;
    }
    row[a] = -1;
  }
  return count;
}

static void first_pair(const struct exact_cover *cover, pairs_of *pairs, uint64_t *state, int *row) {
  int start = (int)(exact_random(state) % (uint64_t)cover->factors);
  for (int f = 0; f < cover->factors; f++) {
    row[f] = -1;
  }
  for (int k = 0; k < cover->factors; k++) {
    int a = (start + k) % cover->factors;
    for (int i = 0; i < cover->levels[a]; i++) {
      for (int b = a + 1; b < cover->factors; b++) {
        for (int j = 0; j < cover->levels[b]; j++) {
          if ((*pairs)[a][i][b][j]) {
            row[a] = i;
            row[b] = j;
            return;
          }
        }
      }
    }
  }
}

static int strike(const struct exact_cover *cover, pairs_of *pairs, const int *row) {
  int struck = 0;
  for (int a = 0; a < cover->factors; a++) {
    for (int b = a + 1; b < cover->factors; b++) {
      if (row[a] >= 0 && row[b] >= 0) {
        struck += (*pairs)[a][row[a]][b][row[b]];
        (*pairs)[a][row[a]][b][row[b]] = false;
      }
    }
  }
  return struck;
}

int exact_cover_rows(const struct exact_cover *cover, uint64_t seed, int (*rows_out)[EXACT_FACTORS_MAX], int rows_max,
                     int *impossible_out) {
  assert_in_range(cover->factors, 2, EXACT_FACTORS_MAX);
  pairs_of *pairs = calloc(1, sizeof *pairs);
  assert_non_null(pairs);
  int left = list_pairs(cover, pairs), rows = 0, impossible = 0;
  while (left > 0) {
    int start[EXACT_FACTORS_MAX], best[EXACT_FACTORS_MAX], best_gain = -1;
    first_pair(cover, pairs, &seed, start);
    for (int k = 0; k < CANDIDATES; k++) {
      int row[EXACT_FACTORS_MAX];
      memcpy(row, start, sizeof row);
      int g = complete(cover, pairs, &seed, row);
      if (g > best_gain) {
        best_gain = g;
        memcpy(best, row, sizeof row);
      }
    }
    if (best_gain < 0) {
      impossible++;
      left -= strike(cover, pairs, start);
      continue;
    }
    assert_true(rows < rows_max);
    memcpy(rows_out[rows++], best, sizeof best);
    left -= strike(cover, pairs, best);
  }
  free(pairs);
  if (impossible_out != NULL) {
    *impossible_out = impossible;
  }
  return rows;
}

bool exact_cover_random(const struct exact_cover *cover, uint64_t *state, int row_out[EXACT_FACTORS_MAX]) {
  for (int tries = 0; tries < 1000; tries++) {
    for (int f = 0; f < cover->factors; f++) {
      row_out[f] = (int)(exact_random(state) % (uint64_t)cover->levels[f]);
    }
    if (is_allowed(cover, row_out)) {
      return true;
    }
  }
  return false;
}
