/* The exactness matrix (docs/design.md, "Same bits"): cells of a pairwise cover over everything that must not change a
 * bit, and seeded random ones, each compared with a reference. A soak walks the full cross instead: every combination
 * of lengths, ranks, split, sharing and view, chunk, KV format, compute type, executor and source, in a seeded order,
 * with the other factors drawn at random, as long as there is time. Of the numbers of ranks (1 to 16) and threads a
 * rank (1 to 4) those that a worker is likely to have are levels of their own; one level stands for all others, and a
 * cell of it draws which.
 *
 * The reference of a length is answered by a worker of one rank, one thread and one chunk, kernels "portable": it runs
 * the longest prompt once, cold, for each arithmetic (weights, compute type, KV format), and then every shorter one on
 * top of the pages of that run; cold cells of one rank and one chunk confirm them.
 *
 * QUIRE_TEST_SEED seeds the cover, the random cells and the soak; QUIRE_TEST_CELL=n runs cell n alone. Threads: one. */
#ifndef QUIRE_TESTS_EXACT_MATRIX_H
#define QUIRE_TESTS_EXACT_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "support/exact_run.h"

#define EXACT_MODELS_MAX 3
#define EXACT_LENGTHS_MAX 32

struct exact_matrix {
  const char *name;
  struct exact_model *models[EXACT_MODELS_MAX];
  int model_count;
  const int32_t *lengths;
  int length_count;
  const int32_t *tokens; /* as long as the longest length */
  int random_cells;
  int cover_cells; /* first ones of the cover only; 0: all */
};

/* Runs all cells; fails the test at the first that differs. */
void exact_matrix_run(const struct exact_matrix *matrix);
/* Walks the full cross for so many seconds. */
void exact_matrix_soak(const struct exact_matrix *matrix, double seconds);
/* What QUIRE_TEST_SOAK_SECONDS says, or an hour. */
double exact_soak_seconds(void);
/* The matrix of three tiny models: bf16 weights, fp8 weights, and a GLM whose layers share lists; lengths around every
 * edge. */
void exact_matrix_tiny(const char *name, int random_cells);
void exact_matrix_tiny_soak(const char *name, double seconds);

#endif
