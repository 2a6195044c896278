/* The k best of scored positions on the GPU, exactly (arithmetic.md 9): larger score first, then the lower position.
 *
 * A candidate is one 64-bit number that orders as candidates do: the score's integer key in the upper half, the
 * complement of its position in the lower. All are different, so "the k best" needs no further rule: they are those not
 * below a pivot, which a radix search from the top digit finds. It stops at the digit where a whole bucket fits, so
 * positions are only looked at where equal scores straddle the border; then they cost two more digits, never a sort.
 *
 * Who appends candidates may count their scores in bins as he goes. The bins tell, without a look at the list, below
 * which score nothing can be among the k best any more, and leave the search one bin to look into.
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
#define TOPK_CLOSE 512         /* candidates that are ranked by comparing each with each */

/* Bins of scores, 16 an octave, from 2^-40 to 2^24; the first also holds all below, the last all above. */
#define TOPK_BINS 1024
#define TOPK_BIN_SHIFT 19
#define TOPK_BIN_FIRST ((256 + 127 - 40) << 4)

/* What a look at counts needs and finds, in shared memory. */
struct topk_scan {
  uint32_t warp_sum[32];
  uint32_t digit;
  uint32_t above;  /* candidates in higher digits */
  uint32_t bucket; /* candidates in the digit */
};

/* Scratch of a group in shared memory. The bitmap has a word of padding behind 32, against bank conflicts. */
struct topk_work {
  union {
    uint32_t histogram[TOPK_DIGITS];
    uint32_t bitmap[TOPK_WINDOW_WORDS + TOPK_WINDOW_WORDS / 32];
  };
  uint64_t close[TOPK_CLOSE];
  uint64_t pivot;
  uint32_t kept;
  struct topk_scan scan;
};

struct topk_segment {
  const uint64_t *candidates;
  int32_t count;
};

struct topk_segments {
  const struct topk_segment *segment;
  int32_t count;
};

/* Many short lists, shared out evenly whatever their lengths: in chunks of TOPK_RUN_CHUNK candidates. They hold the
 * bits of a score, not its key, in the upper half; no NaN and no -0. A run begins at a multiple of 16 bytes and has
 * room for an even number of candidates. */
struct topk_runs {
  const uint64_t *candidates;
  const uint32_t *begin;  /* of a run, among the candidates */
  const uint32_t *count;  /* of a run */
  const uint32_t *before; /* chunks before a run; [runs + 1] */
  int32_t runs;
};

/* Threads that work together. */
struct topk_group {
  struct topk_work *work; /* NULL where only counts are looked at */
  struct topk_scan *scan; /* that of work, if there is one */
  int thread;
  int threads;
  int barrier;
};

QUIRE_DEVICE void topk_sync(const struct topk_group &group) { hopper_threads_sync(group.barrier, group.threads); }

QUIRE_DEVICE uint64_t topk_candidate(uint32_t key, int32_t position) {
  return (uint64_t)key << 32 | (uint32_t)~position;
}

QUIRE_DEVICE int32_t topk_position(uint64_t candidate) { return (int32_t) ~(uint32_t)candidate; }

/* Rises with the key. */
QUIRE_DEVICE int topk_bin(uint32_t key) {
  int bin = (int)(key >> TOPK_BIN_SHIFT) - TOPK_BIN_FIRST;
  return bin < 0 ? 0 : bin < TOPK_BINS ? bin : TOPK_BINS - 1;
}

/* The lowest key of a bin. */
QUIRE_DEVICE uint32_t topk_bin_key(uint32_t bin) { return bin == 0 ? 0 : (bin + TOPK_BIN_FIRST) << TOPK_BIN_SHIFT; }

/* The score of a key. */
QUIRE_DEVICE float topk_score(uint32_t key) {
  return quire_float_of((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

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
    group.scan->warp_sum[warp] = below + value;
  }
  topk_sync(group);
  uint32_t mine = lane < group.threads / 32 ? group.scan->warp_sum[lane] : 0;
  uint32_t warps_below = topk_warp_sum_below(mine, lane);
  *total_out = __shfl_sync(~0u, warps_below + mine, group.threads / 32 - 1);
  topk_sync(group);
  return below + __shfl_sync(~0u, warps_below, warp);
}

#define TOPK_BATCH 16

/* Calls visit(candidate) for all candidates, a batch of loads at a time. The group's warps share the segments out. */
template <typename VISIT>
QUIRE_DEVICE void topk_each(const struct topk_group &group, const struct topk_segments &from, VISIT visit) {
  int warps = group.threads / 32;
  int width = from.count < warps ? warps / from.count : 1; /* warps that share a segment */
  int team = group.thread / 32 / width;
  int step = width * 32;
  for (int s = team; s < from.count; s += warps / width) {
    const uint64_t *candidates = from.segment[s].candidates;
    int32_t count = from.segment[s].count;
    for (int32_t i = group.thread - team * step; i < count; i += step * TOPK_BATCH) {
      uint64_t batch[TOPK_BATCH];
#pragma unroll
      for (int j = 0; j < TOPK_BATCH; j++) {
        batch[j] = i + j * step < count ? candidates[i + j * step] : 0; /* no candidate is 0: its key is not */
      }
#pragma unroll
      for (int j = 0; j < TOPK_BATCH; j++) {
        if (batch[j] != 0) {
          visit(batch[j]);
        }
      }
    }
  }
}

#define TOPK_RUN_CHUNK 64 /* two candidates a lane */
#define TOPK_RUN_BATCH 4
#define TOPK_RUN_NONE 0x80000000u /* bits of no score in a run */

/* The run in which a chunk of all lies. */
QUIRE_DEVICE int32_t topk_run_of(const struct topk_runs &from, uint32_t chunk) {
  int32_t run = 0;
#pragma unroll 1
  for (int32_t high = from.runs; high - run > 1;) {
    int32_t middle = (run + high) / 2;
    bool below = from.before[middle] <= chunk;
    run = below ? middle : run;
    high = below ? high : middle;
  }
  return run;
}

/* Calls visit(bits, low) for all candidates of runs, in the form they have there, and for some that are none: bits are
 * then TOPK_RUN_NONE, which as an integer is below all. A warp has its share of all chunks, of which each lane looks
 * one up. */
template <typename VISIT>
QUIRE_DEVICE void topk_each_held(const struct topk_group &group, const struct topk_runs &from, VISIT visit) {
  uint32_t chunks = from.before[from.runs];
  uint32_t warps = (uint32_t)group.threads / 32;
  uint32_t each = (chunks + warps - 1) / warps;
  uint32_t begin = (uint32_t)group.thread / 32 * each;
  uint32_t end = begin + each < chunks ? begin + each : chunks;
  uint32_t pair = (uint32_t)group.thread % 32 * 2; /* of a chunk: the lane's first candidate */
#pragma unroll 1
  for (uint32_t base = begin; base < end; base += 32) {
    uint32_t chunk = base + pair / 2;
    uint32_t at = 0;
    uint32_t left = 0; /* candidates of the run from the chunk on */
    if (chunk < end) {
      int32_t run = topk_run_of(from, chunk);
      uint32_t before = (chunk - from.before[run]) * TOPK_RUN_CHUNK;
      at = from.begin[run] + before;
      left = from.count[run] - before;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < 32 && base + i < end; i += TOPK_RUN_BATCH) {
      uint4 pairs[TOPK_RUN_BATCH]; /* low and bits of one candidate, low and bits of the next; whatever where there is
                                      none, for a load on a condition is waited for before the next */
      uint32_t counts[TOPK_RUN_BATCH];
#pragma unroll
      for (uint32_t j = 0; j < TOPK_RUN_BATCH; j++) {
        counts[j] = __shfl_sync(~0u, left, i + j);
        uint32_t first = __shfl_sync(~0u, at, i + j);
        pairs[j] = *(const uint4 *)(from.candidates + first + (pair < counts[j] ? pair : 0));
      }
#pragma unroll
      for (int j = 0; j < TOPK_RUN_BATCH; j++) {
        visit(pair < counts[j] ? pairs[j].y : TOPK_RUN_NONE, pairs[j].x);
        visit(pair + 1 < counts[j] ? pairs[j].w : TOPK_RUN_NONE, pairs[j].z);
      }
    }
  }
}

/* Calls visit(candidate) for all candidates of runs. */
template <typename VISIT>
QUIRE_DEVICE void topk_each(const struct topk_group &group, const struct topk_runs &from, VISIT visit) {
  topk_each_held(group, from, [=](uint32_t bits, uint32_t low) {
    if (bits != TOPK_RUN_NONE) {
      visit((uint64_t)((int32_t)bits < 0 ? ~bits : bits | 0x80000000u) << 32 | low);
    }
  });
}

/* The digit (or bin) in which the left-th best candidate lies: scan->digit, above, bucket. A thread takes its share of
 * the counts, from the top. Returns how many candidates there are; if fewer than `left`, nothing is found. */
QUIRE_DEVICE uint32_t topk_digit(const struct topk_group &group, const uint32_t *counts, int digits, uint32_t left) {
  int each = (digits + group.threads - 1) / group.threads;
  int top = digits - 1 - group.thread * each;
  int end = top - each > -1 ? top - each : -1;
  uint32_t sum = 0;
#pragma unroll 4
  for (int digit = top; digit > end; digit--) {
    sum += counts[digit];
  }
  uint32_t total;
  uint32_t above = topk_sum_below(group, sum, &total);
  if (above < left && left <= above + sum) {
    int digit = top;
    while (above + counts[digit] < left) {
      above += counts[digit];
      digit--;
    }
    group.scan->digit = (uint32_t)digit;
    group.scan->above = above;
    group.scan->bucket = counts[digit];
  }
  topk_sync(group);
  return total;
}

/* The lowest number p for which exactly k candidates are >= p's upper digits: the k best are those >= the result.
 * There are more than k candidates. */
template <typename FROM> QUIRE_DEVICE uint64_t topk_pivot(const struct topk_group &group, const FROM &from, int32_t k) {
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
    uint32_t *histogram = group.work->histogram;
    topk_each(group, from, [=](uint64_t candidate) {
      if (shift + bits == 64 || candidate >> (shift + bits) == prefix) {
        atomicAdd(&histogram[(uint32_t)(candidate >> shift) & ((1u << bits) - 1)], 1u);
      }
    });
    topk_sync(group);
    topk_digit(group, histogram, TOPK_DIGITS, left);
    prefix = prefix << bits | group.scan->digit;
    left -= group.scan->above;
    bool whole = group.scan->bucket == left;
    topk_sync(group);
    if (whole) {
      break;
    }
  }
  return prefix << shift;
}

/* The bin in which the k-th best lies, what it holds, and how many of that are among the k best. */
struct topk_border {
  int bin;
  uint32_t bucket;
  uint32_t left;
};

QUIRE_DEVICE struct topk_border topk_border_of(const struct topk_group &group, const uint32_t *bins, int32_t k) {
  topk_digit(group, bins, TOPK_BINS, (uint32_t)k);
  struct topk_border border;
  border.bin = (int)group.scan->digit;
  border.bucket = group.scan->bucket;
  border.left = (uint32_t)k - group.scan->above;
  topk_sync(group);
  return border;
}

/* Calls visit(candidate, number of better ones) for the `count` candidates in work->close, each against each. */
template <typename VISIT> QUIRE_DEVICE void topk_rank(const struct topk_group &group, uint32_t count, VISIT visit) {
  const uint64_t *close = group.work->close;
  for (uint32_t i = (uint32_t)group.thread; i < count; i += (uint32_t)group.threads) {
    uint64_t mine = close[i];
    uint32_t better = 0;
#pragma unroll 8
    for (uint32_t j = 0; j < count; j++) {
      better += close[j] > mine;
    }
    visit(mine, better);
  }
}

/* As topk_pivot, of candidates whose scores are counted in bins: one look at the list, unless a bin holds too many. */
template <typename FROM>
QUIRE_DEVICE uint64_t topk_pivot_binned(const struct topk_group &group, const FROM &from, int32_t k,
                                        const uint32_t *bins) {
  struct topk_work *work = group.work;
  struct topk_border border = topk_border_of(group, bins, k);
  if (border.bucket == border.left) {
    return (uint64_t)topk_bin_key((uint32_t)border.bin) << 32;
  }
  if (border.bucket > TOPK_CLOSE) {
    return topk_pivot(group, from, k);
  }
  if (group.thread == 0) {
    work->kept = 0;
  }
  topk_sync(group);
  topk_each(group, from, [=](uint64_t candidate) {
    if (topk_bin((uint32_t)(candidate >> 32)) == border.bin) {
      work->close[atomicAdd(&work->kept, 1u)] = candidate;
    }
  });
  topk_sync(group);
  topk_rank(group, border.bucket, [=](uint64_t candidate, uint32_t better) {
    if (better == border.left - 1) {
      work->pivot = candidate;
    }
  });
  topk_sync(group);
  return work->pivot;
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

QUIRE_DEVICE void topk_bit(uint32_t *bitmap, int32_t bit) {
  atomicOr(&bitmap[bit / 32 + bit / 1024], 1u << (bit % 32));
}

QUIRE_DEVICE void topk_bits_clear(const struct topk_group &group, int32_t words) {
  for (int i = group.thread; i < words + words / 32; i += group.threads) {
    group.work->bitmap[i] = 0;
  }
}

/* Writes the positions whose bits are set, the first bit being `window`; returns how many. */
QUIRE_DEVICE uint32_t topk_bits_list(const struct topk_group &group, int32_t window, int32_t words,
                                     int32_t *positions_out) {
  int32_t each = (words + group.threads - 1) / group.threads;
  int32_t begin = group.thread * each;
  int32_t end = begin + each < words ? begin + each : words;
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
  topk_sync(group);
  return total;
}

QUIRE_DEVICE int32_t topk_words(int32_t window, int32_t limit) {
  int32_t words = (limit - window + 31) / 32;
  return words < TOPK_WINDOW_WORDS ? words : TOPK_WINDOW_WORDS;
}

/* Writes the positions of the candidates >= pivot, all of which lie in [0, limit), ascending. */
template <typename FROM>
QUIRE_DEVICE void topk_list(const struct topk_group &group, const FROM &from, uint64_t pivot, int32_t limit,
                            int32_t *positions_out) {
  uint32_t *bitmap = group.work->bitmap;
  for (int32_t window = 0; window < limit; window += TOPK_WINDOW_WORDS * 32) {
    int32_t words = topk_words(window, limit);
    topk_bits_clear(group, words);
    topk_sync(group);
    topk_each(group, from, [=](uint64_t candidate) {
      int32_t bit = topk_position(candidate) - window;
      if (candidate >= pivot && bit >= 0 && bit < words * 32) {
        topk_bit(bitmap, bit);
      }
    });
    topk_sync(group);
    positions_out += topk_bits_list(group, window, words, positions_out);
  }
}

/* The k best of more than k candidates whose scores are counted in bins, ascending. One look at the list where the
 * bitmap holds all positions and the border's bin is small. */
template <typename FROM>
QUIRE_DEVICE void topk_list_binned(const struct topk_group &group, const FROM &from, int32_t k, const uint32_t *bins,
                                   int32_t limit, int32_t *positions_out) {
  struct topk_work *work = group.work;
  struct topk_border border = topk_border_of(group, bins, k);
  int32_t words = topk_words(0, limit);
  if (border.bucket > TOPK_CLOSE || words * 32 < limit) {
    topk_list(group, from, topk_pivot_binned(group, from, k, bins), limit, positions_out);
    return;
  }
  topk_bits_clear(group, words);
  if (group.thread == 0) {
    work->kept = 0;
  }
  topk_sync(group);
  topk_each(group, from, [=](uint64_t candidate) {
    int bin = topk_bin((uint32_t)(candidate >> 32));
    if (bin > border.bin) {
      topk_bit(work->bitmap, topk_position(candidate));
    } else if (bin == border.bin) {
      work->close[atomicAdd(&work->kept, 1u)] = candidate;
    }
  });
  topk_sync(group);
  topk_rank(group, border.bucket, [=](uint64_t candidate, uint32_t better) {
    if (better < border.left) {
      topk_bit(work->bitmap, topk_position(candidate));
    }
  });
  topk_sync(group);
  topk_bits_list(group, 0, words, positions_out);
}

#endif
