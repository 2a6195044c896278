/* AVX-512 lists of the k best: newcomers are compressed into the list 16 at a time, and the k-th key is found by
 * partitions around a pivot that a sample puts near its rank, mostly one pass over the list and some over little.
 * Pivots that do not help end in the radix search. Which of the two finds the key does not show in it. */
#include <immintrin.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/topk.h"

#define STEP 16
#define SAMPLE (2 * STEP)
#define FEW 128 /* keys too few for a sample */
#define PARTITIONS_MAX 40
#define LIST_MAX (2048 + QUIRE_TOPK_NEWCOMERS)

static const uint8_t lane_numbers[4 * STEP] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

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

/* 64 newcomers of whom at most 16 beat the threshold, as nearly always behind the first cuts: who does is found by
 * comparing numbers, and only they get keys, all at once, for a branch at each 16 is wrong too often. NaN and -infinity
 * share a key, and a threshold of 0 is no number: both look better here. False: nothing was done. */
__attribute__((target("avx512vbmi2"))) static bool push_few(struct quire_topk *top, const float *scores,
                                                            int32_t position) {
  QUIRE_DEBUG(top->count + 4 * STEP <= top->capacity);
  uint32_t bits = top->threshold >> 31 != 0 ? top->threshold ^ 0x80000000u : ~top->threshold;
  const __m512 worst = _mm512_castsi512_ps(_mm512_set1_epi32((int)bits));
  __m512 v[4];
  uint64_t better = 0;
  QUIRE_UNROLL
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_loadu_ps(scores + i * STEP);
    better |= (uint64_t)_mm512_cmp_ps_mask(v[i], worst, _CMP_NLE_UQ) << (i * STEP);
  }
  int32_t taken = __builtin_popcountll(better);
  if (taken == 0 || taken > STEP) {
    return taken == 0;
  }
  __m512i which = _mm512_maskz_compress_epi8(better, _mm512_loadu_si512(lane_numbers));
  __m512i lane = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(which));
  __mmask16 upper = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(2 * STEP));
  __m512 score = _mm512_permutex2var_ps(v[0], lane, v[1]);
  __m512i keys = score_keys(_mm512_mask_mov_ps(score, upper, _mm512_permutex2var_ps(v[2], lane, v[3])));
  __mmask16 lanes = first_lanes(taken);
  if (_mm512_mask_cmpgt_epu32_mask(lanes, keys, _mm512_set1_epi32((int)top->threshold)) != lanes) {
    return false;
  }
  _mm512_storeu_si512(top->key + top->count, keys);
  _mm512_storeu_si512(top->position + top->count, _mm512_add_epi32(_mm512_set1_epi32(position), lane));
  top->count += taken;
  return true;
}

void quire_topk_push_avx512(struct quire_topk *top, const float *scores, int32_t position, int32_t count) {
  QUIRE_ASSERT(count >= 0 && top->count + count <= top->capacity);
  const __m512i threshold = _mm512_set1_epi32((int)top->threshold);
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (count == 4 * STEP && __builtin_cpu_supports("avx512vbmi2") && push_few(top, scores, position)) {
    return;
  }
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
    /* whole registers: behind a list that can take 64 there is room, and masked stores are slow */
    _mm512_storeu_si512(top->key + kept, _mm512_maskz_compress_epi32(better, keys));
    _mm512_storeu_si512(top->position + kept, _mm512_maskz_compress_epi32(better, positions));
    kept += taken;
  }
  top->count = kept;
}

/* A key of a sample that lies, by its rank there, a little beyond the wanted one on the side where more keys are: so
 * the wanted one stays with the few, and the next pivot, on its other side, leaves it with fewer still. */
static uint32_t pivot_of(const uint32_t *key, int32_t count, int32_t k) {
  QUIRE_ASSERT(k > 0 && k <= count);
  uint32_t sample[SAMPLE];
  if (count < FEW) {
    return key[count / 2];
  }
  for (int32_t i = 0; i < SAMPLE; i++) {
    sample[i] = key[(2 * (int64_t)i + 1) * count / (2 * SAMPLE)];
  }
  const __m512i low = _mm512_loadu_si512(sample), high = _mm512_loadu_si512(sample + STEP);
  const int32_t rank = (int32_t)((int64_t)k * SAMPLE / count);
  const bool behind = 2 * k <= count;
  const int32_t wanted = behind ? rank + 1 : rank - 1;
  uint32_t pivot = sample[0];
  int32_t nearest = 2 * SAMPLE;
  for (int32_t i = 0; i < SAMPLE; i++) {
    __m512i one = _mm512_set1_epi32((int)sample[i]);
    int32_t above =
        __builtin_popcount(_mm512_cmpgt_epu32_mask(low, one)) + __builtin_popcount(_mm512_cmpgt_epu32_mask(high, one));
    int32_t distance = behind ? above - wanted : wanted - above;
    if (distance >= 0 && distance < nearest) {
      nearest = distance;
      pivot = sample[i];
    }
  }
  return pivot;
}

/* Keys above a pivot, or below it, into `out` [count + STEP], which does not overlap `key`. Returns their number;
 * *equal_out: keys equal to it. */
static int32_t side_of(const uint32_t *key, int32_t count, uint32_t pivot, bool above, uint32_t *out,
                       int32_t *equal_out) {
  QUIRE_DEBUG(count > 0);
  const __m512i middle = _mm512_set1_epi32((int)pivot);
  int32_t taken = 0, equal = 0, i = 0;
  for (; i + STEP <= count; i += STEP) { /* whole registers: no mask on the way */
    __m512i keys = _mm512_loadu_si512(key + i);
    __mmask16 side = above ? _mm512_cmpgt_epu32_mask(keys, middle) : _mm512_cmplt_epu32_mask(keys, middle);
    _mm512_storeu_si512(out + taken, _mm512_maskz_compress_epi32(side, keys));
    taken += __builtin_popcount(side);
    equal += __builtin_popcount(_mm512_cmpeq_epu32_mask(keys, middle));
  }
  for (; i < count; i++) {
    out[taken] = key[i];
    taken += above ? key[i] > pivot : key[i] < pivot;
    equal += key[i] == pivot;
  }
  *equal_out = equal;
  return taken;
}

/* One side of each pivot is taken, where the wanted key should be; where it is not, the other. */
static uint32_t kth_key(const uint32_t *key, int32_t count, int32_t k, int32_t *ties_out) {
  QUIRE_ASSERT(k > 0 && k <= count);
  uint32_t lists[2][LIST_MAX + STEP];
  for (int round = 0; round < PARTITIONS_MAX; round++) {
    uint32_t pivot = pivot_of(key, count, k);
    uint32_t *out = key == lists[0] ? lists[1] : lists[0];
    bool above = 2 * k <= count;
    int32_t equal, taken = side_of(key, count, pivot, above, out, &equal);
    int32_t larger = above ? taken : count - taken - equal;
    if (k > larger && k <= larger + equal) {
      *ties_out = k - larger;
      return pivot;
    }
    if (above != (k <= larger)) {
      above = !above;
      taken = side_of(key, count, pivot, above, out, &equal);
    }
    k -= above ? 0 : larger + equal;
    key = out;
    count = taken;
  }
  return quire_topk_kth(key, count, k, ties_out);
}

/* The first `ties` lanes of a mask. */
static inline __mmask16 first_of(__mmask16 mask, int32_t ties) {
  QUIRE_DEBUG(ties >= 0);
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
    __mmask16 better = _mm512_mask_cmpgt_epu32_mask(lanes, keys, last);
    __mmask16 tie = _mm512_mask_cmpeq_epu32_mask(lanes, keys, last);
    if ((better | tie) == 0) { /* long runs of them, where scores rise */
      continue;
    }
    __m512i positions = _mm512_maskz_loadu_epi32(lanes, top->position + i);
    tie = ties > 0 ? first_of(tie, ties) : 0;
    ties -= __builtin_popcount(tie);
    __mmask16 stay = better | tie;
    _mm512_storeu_si512(top->key + kept, _mm512_maskz_compress_epi32(stay, keys));
    _mm512_storeu_si512(top->position + kept, _mm512_maskz_compress_epi32(stay, positions));
    kept += __builtin_popcount(stay);
  }
  QUIRE_ASSERT(kept == top->k);
  top->count = kept;
  top->threshold = kth;
}
