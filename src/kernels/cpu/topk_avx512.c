/* AVX-512 lists of the k best: newcomers are compressed into the list 16 at a time, and the k-th key is found by
 * partitions around a pivot that a sample puts near its rank, mostly one pass over the list and some over little. Pivots
 * that do not help end in the radix search. Which of the two finds the key does not show in it. */
#include <immintrin.h>

#include "base/assert.h"
#include "kernels/cpu/topk.h"

#define STEP 16
#define SAMPLE 64
#define FEW 128 /* keys that are left to the radix search */
#define PARTITIONS_MAX 12
#define LIST_MAX (2048 + QUIRE_TOPK_NEWCOMERS)

static inline __mmask16 first_lanes(int32_t count) {
  return count >= STEP ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

/* quire_score_key of 16 scores. */
static inline __m512i score_keys(__m512 scores) {
  __m512i bits = _mm512_castps_si512(_mm512_add_ps(scores, _mm512_setzero_ps()));
  __m512i sign = _mm512_srai_epi32(bits, 31);
  __m512i key = _mm512_xor_si512(bits, _mm512_or_si512(sign, _mm512_set1_epi32((int)0x80000000u)));
  __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_mov_epi32(key, nan, _mm512_set1_epi32(0x007fffff));
}

void quire_topk_push_avx512(struct quire_topk *top, const float *scores, int32_t position, int32_t count) {
  const __m512i threshold = _mm512_set1_epi32((int)top->threshold);
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int32_t kept = top->count;
  for (int32_t i = 0; i < count; i += STEP) {
    __mmask16 lanes = first_lanes(count - i);
    __m512i keys = score_keys(_mm512_maskz_loadu_ps(lanes, scores + i));
    __mmask16 better = _mm512_mask_cmpgt_epu32_mask(lanes, keys, threshold);
    if (better == 0) {
      continue;
    }
    int32_t taken = __builtin_popcount(better);
    __m512i positions = _mm512_add_epi32(_mm512_set1_epi32(position + i), steps);
    __mmask16 to = first_lanes(taken);
    _mm512_mask_storeu_epi32(top->key + kept, to, _mm512_maskz_compress_epi32(better, keys));
    _mm512_mask_storeu_epi32(top->position + kept, to, _mm512_maskz_compress_epi32(better, positions));
    kept += taken;
  }
  top->count = kept;
}

/* The key of a sample whose rank in it is that of the wanted one among all. */
static uint32_t pivot_of(const uint32_t *key, int32_t count, int32_t k) {
  uint32_t sample[SAMPLE];
  for (int32_t i = 0; i < SAMPLE; i++) {
    sample[i] = key[(int64_t)i * count / SAMPLE];
  }
  int32_t rank = (int32_t)((int64_t)k * SAMPLE / count);
  for (int32_t i = 0; i <= rank && i < SAMPLE; i++) { /* the (rank + 1) largest come to the front */
    for (int32_t j = i + 1; j < SAMPLE; j++) {
      uint32_t larger = sample[i] > sample[j] ? sample[i] : sample[j];
      sample[j] = sample[i] > sample[j] ? sample[j] : sample[i];
      sample[i] = larger;
    }
  }
  return sample[rank < SAMPLE ? rank : SAMPLE - 1];
}

struct partition {
  uint32_t *above, *below; /* [count + STEP] */
  int32_t above_count, below_count;
};

/* Keys above and below a pivot in two lists; those equal to it are in neither. `above` may be the list itself: what is
 * written lies behind what was read. */
static void divide(const uint32_t *key, int32_t count, uint32_t pivot, struct partition *out) {
  const __m512i middle = _mm512_set1_epi32((int)pivot);
  int32_t above = 0, below = 0;
  for (int32_t i = 0; i < count; i += STEP) {
    __mmask16 lanes = first_lanes(count - i);
    __m512i keys = _mm512_maskz_loadu_epi32(lanes, key + i);
    __mmask16 up = _mm512_mask_cmpgt_epu32_mask(lanes, keys, middle);
    __mmask16 down = _mm512_mask_cmplt_epu32_mask(lanes, keys, middle);
    _mm512_storeu_si512(out->above + above, _mm512_maskz_compress_epi32(up, keys));
    _mm512_storeu_si512(out->below + below, _mm512_maskz_compress_epi32(down, keys));
    above += __builtin_popcount(up);
    below += __builtin_popcount(down);
  }
  out->above_count = above;
  out->below_count = below;
}

static uint32_t kth_key(const uint32_t *key, int32_t count, int32_t k, int32_t *ties_out) {
  uint32_t lists[2][LIST_MAX + STEP];
  struct partition part;
  for (int round = 0; count > FEW && round < PARTITIONS_MAX; round++) {
    uint32_t pivot = pivot_of(key, count, k);
    part.above = key == lists[1] ? lists[1] : lists[0];
    part.below = key == lists[1] ? lists[0] : lists[1];
    divide(key, count, pivot, &part);
    int32_t equal = count - part.above_count - part.below_count;
    if (k <= part.above_count) {
      key = part.above;
      count = part.above_count;
    } else if (k <= part.above_count + equal) {
      *ties_out = k - part.above_count;
      return pivot;
    } else {
      k -= part.above_count + equal;
      key = part.below;
      count = part.below_count;
    }
  }
  return quire_topk_kth(key, count, k, ties_out);
}

/* The first `ties` lanes of a mask. */
static inline __mmask16 first_of(__mmask16 mask, int32_t ties) {
  while (__builtin_popcount(mask) > ties) {
    mask = (__mmask16)(mask & ~(1u << (31 - __builtin_clz(mask))));
  }
  return mask;
}

void quire_topk_cut_avx512(struct quire_topk *top) {
  int32_t ties, kept = 0;
  QUIRE_ASSERT(top->count <= LIST_MAX && top->count > top->k);
  uint32_t kth = kth_key(top->key, top->count, top->k, &ties);
  const __m512i last = _mm512_set1_epi32((int)kth);
  for (int32_t i = 0; i < top->count; i += STEP) {
    __mmask16 lanes = first_lanes(top->count - i);
    __m512i keys = _mm512_maskz_loadu_epi32(lanes, top->key + i);
    __m512i positions = _mm512_maskz_loadu_epi32(lanes, top->position + i);
    __mmask16 tie = _mm512_mask_cmpeq_epu32_mask(lanes, keys, last);
    tie = ties > 0 ? first_of(tie, ties) : 0;
    ties -= __builtin_popcount(tie);
    __mmask16 stay = (__mmask16)(_mm512_mask_cmpgt_epu32_mask(lanes, keys, last) | tie);
    __mmask16 to = first_lanes(__builtin_popcount(stay));
    _mm512_mask_storeu_epi32(top->key + kept, to, _mm512_maskz_compress_epi32(stay, keys));
    _mm512_mask_storeu_epi32(top->position + kept, to, _mm512_maskz_compress_epi32(stay, positions));
    kept += __builtin_popcount(stay);
  }
  QUIRE_ASSERT(kept == top->k);
  top->count = kept;
  top->threshold = kth;
}
