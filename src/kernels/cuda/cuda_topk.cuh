/* The k best of scored positions on the GPU, exactly (arithmetic.md 9): larger score first, then the lower position.
 *
 * A candidate is one 64-bit number that orders as candidates do: the score's integer key in the upper half, the
 * complement of its position in the lower. All are different, so "the k best" needs no further rule: they are those not
 * below a pivot, which a radix search from the top digit finds. It stops at the digit where a whole bucket fits, so
 * positions are only looked at where equal scores straddle the border; then they cost two more digits, never a sort.
 *
 * A group of threads (whole warps, with a barrier of its own) works on candidates in one or more segments of global
 * memory, whose order means nothing. Lists come out ascending through a bitmap of positions, a window at a time.
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_CUDA_TOPK_CUH
#define QUIRE_KERNELS_CUDA_CUDA_TOPK_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/number.h"

#define TOPK_DIGIT_BITS 11
#define TOPK_DIGITS (1 << TOPK_DIGIT_BITS)
#define TOPK_WINDOW_WORDS 4096 /* of the bitmap: 131,072 positions */

/* Scratch of a group in shared memory. The bitmap has a word of padding behind 32, against bank conflicts. */
struct topk_work {
  union {
    uint32_t histogram[TOPK_DIGITS];
    uint32_t bitmap[TOPK_WINDOW_WORDS + TOPK_WINDOW_WORDS / 32];
  };
  uint32_t warp_sum[32];
  uint32_t digit;
  uint32_t above;  /* candidates in higher digits */
  uint32_t bucket; /* candidates in the digit */
  uint32_t kept;
};

struct topk_segment {
  const uint64_t *candidates;
  int32_t count;
};

struct topk_segments {
  const struct topk_segment *segment;
  int32_t count;
};

/* Threads that work together. */
struct topk_group {
  struct topk_work *work;
  int thread;
  int threads;
  int barrier;
};

QUIRE_DEVICE void topk_sync(const struct topk_group &group) { hopper_threads_sync(group.barrier, group.threads); }

QUIRE_DEVICE uint64_t topk_candidate(uint32_t key, int32_t position) {
  return (uint64_t)key << 32 | (uint32_t)~position;
}

QUIRE_DEVICE int32_t topk_position(uint64_t candidate) { return (int32_t) ~(uint32_t)candidate; }

QUIRE_DEVICE uint32_t topk_warp_sum_below(uint32_t value, int lane) {
  uint32_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    uint32_t other = __shfl_up_sync(~0u, sum, step);
    sum += lane >= step ? other : 0;
  }
  return sum - value;
}

/* Sum of the values of all threads before this one; *total_out of all. Two barriers. */
QUIRE_DEVICE uint32_t topk_sum_below(const struct topk_group &group, uint32_t value, uint32_t *total_out) {
  int lane = group.thread % 32;
  int warp = group.thread / 32;
  uint32_t below = topk_warp_sum_below(value, lane);
  if (lane == 31) {
    group.work->warp_sum[warp] = below + value;
  }
  topk_sync(group);
  uint32_t mine = lane < group.threads / 32 ? group.work->warp_sum[lane] : 0;
  uint32_t warps_below = topk_warp_sum_below(mine, lane);
  *total_out = __shfl_sync(~0u, warps_below + mine, group.threads / 32 - 1);
  topk_sync(group);
  return below + __shfl_sync(~0u, warps_below, warp);
}

#define TOPK_BATCH 8

/* Counts the digit at `shift` of the candidates that begin with `prefix` (their bits from shift + bits up). */
QUIRE_DEVICE void topk_count(const struct topk_group &group, const struct topk_segments &from, uint64_t prefix,
                             int shift, int bits) {
  uint32_t mask = (1u << bits) - 1;
  for (int s = 0; s < from.count; s++) {
    const uint64_t *candidates = from.segment[s].candidates;
    int32_t count = from.segment[s].count;
    for (int32_t i = group.thread; i < count; i += group.threads * TOPK_BATCH) {
      uint64_t batch[TOPK_BATCH];
#pragma unroll
      for (int j = 0; j < TOPK_BATCH; j++) {
        int32_t at = i + j * group.threads;
        batch[j] = at < count ? candidates[at] : 0;
      }
#pragma unroll
      for (int j = 0; j < TOPK_BATCH; j++) {
        /* no candidate is 0: its key is not */
        bool counts = batch[j] != 0 && (shift + bits == 64 || batch[j] >> (shift + bits) == prefix);
        if (counts) {
          atomicAdd(&group.work->histogram[(uint32_t)(batch[j] >> shift) & mask], 1u);
        }
      }
    }
  }
}

/* The digit in which the left-th best candidate lies: work->digit, above, bucket. */
QUIRE_DEVICE void topk_digit(const struct topk_group &group, uint32_t left) {
  int each = TOPK_DIGITS / group.threads;
  int top = TOPK_DIGITS - 1 - group.thread * each;
  uint32_t sum = 0;
  for (int i = 0; i < each; i++) {
    sum += group.work->histogram[top - i];
  }
  uint32_t total;
  uint32_t above = topk_sum_below(group, sum, &total);
  if (above < left && left <= above + sum) {
    int digit = top;
    while (above + group.work->histogram[digit] < left) {
      above += group.work->histogram[digit];
      digit--;
    }
    group.work->digit = (uint32_t)digit;
    group.work->above = above;
    group.work->bucket = group.work->histogram[digit];
  }
  topk_sync(group);
}

/* The lowest number p for which exactly k candidates are >= p's upper digits: the k best are those >= the result.
 * There are more than k candidates. */
QUIRE_DEVICE uint64_t topk_pivot(const struct topk_group &group, const struct topk_segments &from, int32_t k) {
  uint64_t prefix = 0;
  uint32_t left = (uint32_t)k;
  int shift = 64;
  while (shift > 0) {
    int bits = shift < TOPK_DIGIT_BITS ? shift : TOPK_DIGIT_BITS;
    shift -= bits;
    for (int i = group.thread; i < TOPK_DIGITS; i += group.threads) {
      group.work->histogram[i] = 0;
    }
    topk_sync(group);
    topk_count(group, from, prefix, shift, bits);
    topk_sync(group);
    topk_digit(group, left);
    prefix = prefix << bits | group.work->digit;
    left -= group.work->above;
    bool whole = group.work->bucket == left;
    topk_sync(group);
    if (whole) {
      break;
    }
  }
  return prefix << shift;
}

/* Copies the candidates >= pivot to `to`, which may be where the single segment `from` begins: a block is read by all
 * before any of it is written, and what is written never passes what was read. Returns how many. */
QUIRE_DEVICE int32_t topk_keep(const struct topk_group &group, const struct topk_segment &from, uint64_t pivot,
                               uint64_t *to) {
  int lane = group.thread % 32;
  if (group.thread == 0) {
    group.work->kept = 0;
  }
  for (int32_t begin = 0; begin < from.count; begin += group.threads * TOPK_BATCH) {
    uint64_t batch[TOPK_BATCH];
#pragma unroll
    for (int j = 0; j < TOPK_BATCH; j++) {
      int32_t at = begin + group.thread + j * group.threads;
      batch[j] = at < from.count ? from.candidates[at] : 0;
    }
    topk_sync(group);
#pragma unroll
    for (int j = 0; j < TOPK_BATCH; j++) {
      bool keeps = batch[j] != 0 && batch[j] >= pivot;
      uint32_t keepers = __ballot_sync(~0u, keeps);
      uint32_t base = 0;
      if (lane == 0 && keepers != 0) {
        base = atomicAdd(&group.work->kept, (uint32_t)__popc(keepers));
      }
      base = __shfl_sync(~0u, base, 0);
      if (keeps) {
        to[base + __popc(keepers & ((1u << lane) - 1))] = batch[j];
      }
    }
  }
  topk_sync(group);
  int32_t kept = (int32_t)group.work->kept;
  topk_sync(group);
  return kept;
}

/* Sets the bits of the positions in [window, window + words * 32) of the candidates >= pivot. */
QUIRE_DEVICE void topk_mark(const struct topk_group &group, const struct topk_segments &from, uint64_t pivot,
                            int32_t window, int32_t words) {
  for (int i = group.thread; i < words + words / 32; i += group.threads) {
    group.work->bitmap[i] = 0;
  }
  topk_sync(group);
  for (int s = 0; s < from.count; s++) {
    for (int32_t i = group.thread; i < from.segment[s].count; i += group.threads) {
      uint64_t candidate = from.segment[s].candidates[i];
      int32_t bit = topk_position(candidate) - window;
      if (candidate >= pivot && bit >= 0 && bit < words * 32) {
        atomicOr(&group.work->bitmap[bit / 32 + bit / 1024], 1u << (bit % 32));
      }
    }
  }
  topk_sync(group);
}

/* Writes the positions of the candidates >= pivot, all of which lie in [0, limit), ascending. */
QUIRE_DEVICE void topk_list(const struct topk_group &group, const struct topk_segments &from, uint64_t pivot,
                            int32_t limit, int32_t *positions_out) {
  for (int32_t window = 0; window < limit; window += TOPK_WINDOW_WORDS * 32) {
    int32_t words = (limit - window + 31) / 32;
    words = words < TOPK_WINDOW_WORDS ? words : TOPK_WINDOW_WORDS;
    int32_t each = (words + group.threads - 1) / group.threads;
    int32_t begin = group.thread * each;
    int32_t end = begin + each < words ? begin + each : words;
    topk_mark(group, from, pivot, window, words);
    uint32_t count = 0;
    for (int32_t i = begin; i < end; i++) {
      count += __popc(group.work->bitmap[i + i / 32]);
    }
    uint32_t total;
    uint32_t at = topk_sum_below(group, count, &total);
    for (int32_t i = begin; i < end; i++) {
      for (uint32_t word = group.work->bitmap[i + i / 32]; word != 0; word &= word - 1) {
        positions_out[at++] = window + i * 32 + __ffs((int)word) - 1;
      }
    }
    positions_out += total;
    topk_sync(group);
  }
}

#endif
