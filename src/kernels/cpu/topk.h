/* The k best of a stream of scored positions, exactly (arithmetic.md 9): larger score, then lower position.
 *
 * Candidates arrive by ascending position into a list that is kept in that order. Once k have been seen, a newcomer
 * must beat the worst of them strictly, for a tie goes to the lower position. When the list is full it is cut back to
 * its k best by a radix search for the k-th key. Cost: a compare a position and rarely a cut.
 *
 * Memory: the caller's arrays of `capacity` entries. Internal to the cpu kernels; one thread at a time. */
#ifndef QUIRE_KERNELS_CPU_TOPK_H
#define QUIRE_KERNELS_CPU_TOPK_H

#include <stdint.h>

struct quire_topk {
  uint32_t *key;     /* quire_score_key: larger is better, never 0 */
  int32_t *position; /* ascending */
  int32_t count;
  int32_t capacity;
  int32_t k;
  uint32_t threshold; /* a newcomer's key must be larger */
};

/* Room for k and for as many newcomers that cutting is rare. */
static inline int32_t quire_topk_capacity(int32_t k) { return k + 1024; }

/* Cuts the list to its k best. */
void quire_topk_cut(struct quire_topk *top);

/* count <= 64 newcomers at consecutive positions. */
void quire_topk_push(struct quire_topk *top, const float *scores, int32_t position, int32_t count);

/* All of another list, whose positions lie behind this one's. */
void quire_topk_merge(struct quire_topk *top, const struct quire_topk *other);

#endif
