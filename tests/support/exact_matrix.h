/* The exactness matrix (docs/design.md, "Same bits"): cells of a pairwise cover over everything that must not change a
 * bit, and seeded random ones, each compared with a reference.
 *
 * The reference of a length is answered by a worker of one rank, one thread and one chunk, kernels "portable": it runs
 * the longest prompt once, cold, for each arithmetic (weights, compute type, KV format), and then every shorter one on
 * top of the pages of that run; cold cells of one rank and one chunk confirm them.
 *
 * QUIRE_TEST_SEED seeds the cover and the random cells; QUIRE_TEST_CELL=n runs cell n alone. Threads: one. */
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
};

/* Runs all cells; fails the test at the first that differs. */
void exact_matrix_run(const struct exact_matrix *matrix);
/* The matrix of three tiny models: bf16 weights, fp8 weights, and a GLM whose layers share lists; lengths around every
 * edge. */
void exact_matrix_tiny(const char *name, int random_cells);

#endif
