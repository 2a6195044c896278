/* The passes over a row of logits that sampling is made of; one table for AVX2, one for AVX-512, equal in bits.
 *
 * A row of z (scaled logits) lies in blocks of QUIRE_SAMPLE_BLOCK values, the last one filled up with -inf, with the
 * largest value of each block beside it: most of what is asked of a row concerns its few largest values, and is
 * answered by reading the blocks' maxima.
 *
 * Internal to the cpu kernels. Pure, FTZ and DAZ set. */
#ifndef QUIRE_KERNELS_CPU_SAMPLE_PASSES_H
#define QUIRE_KERNELS_CPU_SAMPLE_PASSES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/number.h"
#include "layout/sampling.h"

#define QUIRE_SAMPLE_BLOCK 128
#define QUIRE_SAMPLE_GUMBEL_MAX 23.0 /* -log(-log(1 - 2^-33)) is 22.87 */

struct quire_sample_z {
  float *z;         /* [blocks * QUIRE_SAMPLE_BLOCK] */
  float *block_max; /* [blocks] */
  int32_t blocks;
  float max;
};

/* The best of the noisy values so far, and what another needs to be worth a look. */
struct quire_sample_best {
  uint64_t seed;
  int32_t position;
  int32_t token;
  double value;
  float floor;  /* ids with a smaller z do not stay */
  int32_t last; /* nor do those with z = floor and a larger id */
  float least;  /* no noise lifts a smaller z to value */
  float reach;  /* see quire_sample_may_win */
};

struct quire_sample_above {
  int32_t count;
  uint64_t mass;
};

struct quire_sample_passes {
  /* Largest of n values, NaN passed over, and the first index that has it; -inf and 0 when none is above -inf. */
  float (*largest)(const float *x, int32_t n, int32_t *index_out);
  /* Sum of e^(x - max) in 16 lanes, NaN counting as -inf; max finite. */
  float (*exp_sum)(const float *x, int32_t n, float max);
  /* z = y * factor, NaN as -inf; fills blocks and maxima. y may be row->z. */
  void (*scale)(const float *y, int32_t n, float factor, struct quire_sample_z *row);
  /* weight_out[id] = e^(z - max) for every id of the blocks that reach `least`; what lies above `least`, as the
   * next. */
  struct quire_sample_above (*weigh)(const struct quire_sample_z *row, float least, float *weight_out);
  /* Number of ids with z >= least, and the sum of their integer masses if weight is not NULL. */
  struct quire_sample_above (*above)(const struct quire_sample_z *row, const float *weight, float least);
  /* Ids with low <= z < high, ascending; their number. */
  int32_t (*gather)(const struct quire_sample_z *row, float low, float high, int32_t *ids_out);
  /* Draws over the whole row: best has a first candidate. */
  void (*draw)(const struct quire_sample_z *row, struct quire_sample_best *best);
  /* The k largest values above -inf with their ids, largest first, ties to the lower id; logprob holds the value. The
   * rest of the k are {-1, 0}. */
  void (*top)(const float *x, int32_t n, int32_t k, struct quire_top *top_out);
};

extern const struct quire_sample_passes quire_sample_passes_avx2;
extern const struct quire_sample_passes quire_sample_passes_avx512;

/* The integer mass of a weight in top-p (arithmetic.md 12). */
static inline uint64_t quire_sample_mass(float weight) { return (uint64_t)(weight * 0x1p40f); }

/* z plus Gumbel noise of a uniform word (arithmetic.md 12). */
static inline double quire_sample_noisy(float z, uint32_t word) {
  double u = ((double)word + 0.5) * 0x1p-32;
  return (double)z - quire_log(-quire_log(u));
}

/* Takes value as the best of id, and sets the bounds. They are loose by more than their rounding. */
static inline void quire_sample_take(struct quire_sample_best *best, double value, int32_t id) {
  double slack = 0.02 + 1e-6 * (value < 0 ? -value : value);
  best->value = value;
  best->token = id;
  best->reach = (float)(value - slack);
  best->least = (float)(value - slack - QUIRE_SAMPLE_GUMBEL_MAX);
}

/* Could z with the noise of this word reach the best? The noise -log(-log(u)) is at most -log(1 - u), so it must be
 * that log(1 - u) <= z - value; and a float's bits read as an integer lie below its logarithm. Says yes too often,
 * never no where yes is right. */
static inline bool quire_sample_may_win(const struct quire_sample_best *best, float z, uint32_t word) {
  float half = (float)(int32_t)(~word >> 1); /* at most (1 - u) * 2^31 */
  float log2_low = (float)(int32_t)quire_bits_of(half) * 0x1p-23f - 158.0f;
  return log2_low * 0x1.62e43p-1f + best->reach <= z;
}

/* An id that may win: decides. */
static inline void quire_sample_try(struct quire_sample_best *best, float z, uint32_t word, int32_t id) {
  if (z > best->floor || (z == best->floor && id <= best->last)) {
    double value = quire_sample_noisy(z, word);
    if (value > best->value || (value == best->value && id < best->token)) {
      quire_sample_take(best, value, id);
    }
  }
}

#endif
