/* The k best of a stream of scored positions, exactly (arithmetic.md 9): larger score, then lower position.
 *
 * Candidates arrive by ascending position into a list that is kept in that order. Once k have been seen, a newcomer
 * must beat the worst of them strictly, for a tie goes to the lower position. When the list is full it is cut back to
 * its k best around the k-th key, which a radix search finds, or with AVX-512 a partition around sampled pivots. Cost:
 * a compare a position and rarely a cut.
 *
 * Memory: the caller's arrays of `capacity` entries, quire_topk_capacity(k). Internal to the cpu kernels; one thread at
 * a time. */
#ifndef QUIRE_KERNELS_CPU_TOPK_H
#define QUIRE_KERNELS_CPU_TOPK_H

#include <stdbool.h>
#include <stdint.h>

struct quire_topk {
  uint32_t *key;     /* quire_score_key: larger is better, never 0 */
  int32_t *position; /* ascending */
  int32_t count;
  int32_t capacity;
  int32_t k;
  uint32_t threshold; /* a newcomer's key must be larger */
  bool wide;          /* the machine has AVX-512: same lists, faster */
};

#define QUIRE_TOPK_NEWCOMERS_MIN 512
#define QUIRE_TOPK_NEWCOMERS 7168
/* Room for k and for as many newcomers that cutting is rare, but not for so many that most of a context enters before
 * the first cut gives a threshold: 4 k of them, within bounds; whole registers of 16. */
static inline int32_t quire_topk_capacity(int32_t k) {
  int32_t newcomers = 4 * k > QUIRE_TOPK_NEWCOMERS_MIN ? 4 * k : QUIRE_TOPK_NEWCOMERS_MIN;
  newcomers = newcomers < QUIRE_TOPK_NEWCOMERS ? newcomers : QUIRE_TOPK_NEWCOMERS;
  return (k + newcomers + 15) / 16 * 16;
}

/* Cuts the list to its k best. */
void quire_topk_cut(struct quire_topk *top);

/* count <= 64 newcomers at consecutive positions. */
void quire_topk_push(struct quire_topk *top, const float *scores, int32_t position, int32_t count);

/* All of another list, whose positions lie behind this one's. */
void quire_topk_merge(struct quire_topk *top, const struct quire_topk *other);

/* topk_avx512.c, for lists that are wide. */
void quire_topk_cut_avx512(struct quire_topk *top);
void quire_topk_push_avx512(struct quire_topk *top, const float *scores, int32_t position, int32_t count);

/* The k-th largest of count keys, 1 <= k <= count; *ties_out: how many keys equal to it belong to the k largest. */
uint32_t quire_topk_kth(const uint32_t *key, int32_t count, int32_t k, int32_t *ties_out);

#endif
