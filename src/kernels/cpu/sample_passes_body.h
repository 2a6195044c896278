/* The passes of sample_passes.h in the registers of sample_vector.h: the body of sample_passes.c and
 * sample_passes_avx512.c, which differ in what they are compiled for. */
#ifndef QUIRE_KERNELS_CPU_SAMPLE_PASSES_BODY_H
#define QUIRE_KERNELS_CPU_SAMPLE_PASSES_BODY_H

#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/sample_passes.h"
#include "kernels/cpu/sample_vector.h"

#define BLOCK QUIRE_SAMPLE_BLOCK
#define VECTORS (BLOCK / WIDTH)
#define STEP (4 * WIDTH) /* ids of WIDTH Philox blocks */

static inline float lowest(void) { return -quire_float_of(QUIRE_INF_BITS); }

/* Block b of n values; the last one through `tail`, filled up with -inf. */
static inline const float *block_of(const float *x, int32_t n, int32_t b, float tail[BLOCK]) {
  int32_t at = b * BLOCK;
  if (n - at >= BLOCK) {
    return x + at;
  }
  for (int32_t i = 0; i < BLOCK; i++) {
    tail[i] = at + i < n ? x[at + i] : lowest();
  }
  return tail;
}

static inline int32_t blocks_of(int32_t n) { return (n + BLOCK - 1) / BLOCK; }

static inline float block_largest(const float *x) {
  vf a = vf_all(lowest()), b = a;
  for (int i = 0; i < VECTORS; i += 2) {
    a = vf_max(a, vf_load(x + i * WIDTH));
    b = vf_max(b, vf_load(x + (i + 1) * WIDTH));
  }
  return vf_largest(vf_max(a, b));
}

static float largest(const float *x, int32_t n, int32_t *index_out) {
  QUIRE_ASSERT(n > 0);
  float tail[BLOCK], max = lowest();
  int32_t where = -1;
  for (int32_t b = 0; b < blocks_of(n); b++) {
    float here = block_largest(block_of(x, n, b, tail));
    if (here > max) {
      max = here;
      where = b;
    }
  }
  *index_out = 0;
  for (int32_t i = where * BLOCK; where >= 0 && i < n; i++) {
    if (x[i] == max) {
      *index_out = i;
      break;
    }
  }
  return max;
}

static float exp_sum(const float *x, int32_t n, float max) {
  QUIRE_ASSERT(n > 0);
  float tail[BLOCK], lanes[LANES] = {0};
  vf sum[LANES / WIDTH];
  for (int j = 0; j < LANES / WIDTH; j++) {
    sum[j] = vf_all(0.0f);
  }
  for (int32_t b = 0; b < blocks_of(n); b++) {
    const float *block = block_of(x, n, b, tail);
    for (int32_t i = 0; i < BLOCK; i += LANES) {
      for (int j = 0; j < LANES / WIDTH; j++) {
        vf v = vf_no_nan(vf_load(block + i + j * WIDTH), vf_all(lowest()));
        sum[j] = vf_add(sum[j], vf_exp_negative(vf_sub(v, vf_all(max))));
      }
    }
  }
  for (int j = 0; j < LANES / WIDTH; j++) {
    vf_store(lanes + j * WIDTH, sum[j]);
  }
  struct quire_lanes whole = {f8_load(lanes), f8_load(lanes + 8)};
  return lanes_fold(whole);
}

static void scale(const float *y, int32_t n, float factor, struct quire_sample_z *row) {
  QUIRE_ASSERT(n > 0);
  float tail[BLOCK];
  row->max = lowest();
  row->blocks = blocks_of(n);
  for (int32_t b = 0; b < row->blocks; b++) {
    const float *from = block_of(y, n, b, tail);
    float *to = row->z + b * BLOCK;
    vf max = vf_all(lowest());
    for (int i = 0; i < VECTORS; i++) {
      vf z = vf_no_nan(vf_mul(vf_load(from + i * WIDTH), vf_all(factor)), vf_all(lowest()));
      vf_store(to + i * WIDTH, z);
      max = vf_max(max, z);
    }
    row->block_max[b] = vf_largest(max);
    row->max = row->block_max[b] > row->max ? row->block_max[b] : row->max;
  }
}

/* Adds what a block has at `least` and above; its own sum stays far from where f64 would round. */
static inline void above_block(const float *z, const float *weight, float least, struct quire_sample_above *found) {
  vd sum = vd_zero();
  for (int i = 0; i < BLOCK; i += WIDTH) {
    vf v = vf_load(z + i);
    found->count += __builtin_popcount(vf_at_least(v, vf_all(least)));
    if (weight != NULL) {
      sum = vd_add_mass(sum, vf_zero_below(vf_load(weight + i), v, vf_all(least)));
    }
  }
  found->mass += (uint64_t)vd_total(sum);
}

static struct quire_sample_above weigh(const struct quire_sample_z *row, float least, float *weight_out) {
  QUIRE_ASSERT(row->blocks > 0);
  struct quire_sample_above found = {0, 0};
  for (int32_t b = 0; b < row->blocks; b++) {
    if (row->block_max[b] < least) {
      continue;
    }
    for (int32_t at = b * BLOCK; at < (b + 1) * BLOCK; at += WIDTH) {
      vf_store(weight_out + at, vf_exp_negative(vf_sub(vf_load(row->z + at), vf_all(row->max))));
    }
    above_block(row->z + b * BLOCK, weight_out + b * BLOCK, least, &found);
  }
  return found;
}

static struct quire_sample_above above(const struct quire_sample_z *row, const float *weight, float least) {
  QUIRE_ASSERT(row->blocks > 0);
  struct quire_sample_above found = {0, 0};
  for (int32_t b = 0; b < row->blocks; b++) {
    if (row->block_max[b] >= least) {
      above_block(row->z + b * BLOCK, weight != NULL ? weight + b * BLOCK : NULL, least, &found);
    }
  }
  return found;
}

static int32_t gather(const struct quire_sample_z *row, float low, float high, int32_t *ids_out) {
  QUIRE_ASSERT(row->blocks > 0);
  int32_t count = 0;
  for (int32_t b = 0; b < row->blocks; b++) {
    if (row->block_max[b] < low) {
      continue;
    }
    for (int32_t at = b * BLOCK; at < (b + 1) * BLOCK; at += WIDTH) {
      vf z = vf_load(row->z + at);
      uint32_t mask = vf_at_least(z, vf_all(low)) & ~vf_at_least(z, vf_all(high));
      for (; mask != 0; mask &= mask - 1) {
        ids_out[count++] = at + __builtin_ctz(mask);
      }
    }
  }
  return count;
}

/* What does not change between the Philox blocks of a draw. */
struct noise {
  uint32_t key0[10], key1[10];
  uint32_t second0; /* word 0 after the first round: the same for every id, since word 2 of the counter is 0 */
};

static struct noise noise_of(uint64_t seed, int32_t position) {
  struct noise n;
  for (uint32_t round = 0; round < 10; round++) {
    n.key0[round] = (uint32_t)seed + round * 0x9e3779b9u;
    n.key1[round] = (uint32_t)(seed >> 32) + round * 0xbb67ae85u;
  }
  n.second0 = (uint32_t)position ^ n.key0[0];
  return n;
}

/* quire_philox of ids [4 * first, 4 * first + STEP), in order. The first two rounds have one product each that is the
 * same for all ids. */
static inline void noise_words(const struct noise *n, uint32_t first, vi w[4]) {
  const vi m0 = vi_all(0xd2511f53u), m1 = vi_all(0xcd9e8d57u);
  vi counter = vi_add(vi_all(first), vi_counters());
  vi c2 = vi_xor(vi_mul_high(counter, m0), vi_all(0x51756972u ^ n->key1[0]));
  vi c3 = vi_mul_low(counter, m0);
  uint64_t same = (uint64_t)0xd2511f53u * n->second0;
  vi c0 = vi_xor(vi_mul_high(c2, m1), vi_all(n->key0[1]));
  vi c1 = vi_mul_low(c2, m1);
  c2 = vi_xor(c3, vi_all((uint32_t)(same >> 32) ^ n->key1[1]));
  c3 = vi_all((uint32_t)same);
  for (int round = 2; round < 10; round++) {
    vi a_high = vi_mul_high(c0, m0), b_high = vi_mul_high(c2, m1);
    vi a_low = vi_mul_low(c0, m0), b_low = vi_mul_low(c2, m1);
    c0 = vi_xor(b_high, vi_xor(c1, vi_all(n->key0[round])));
    c1 = b_low;
    c2 = vi_xor(a_high, vi_xor(c3, vi_all(n->key1[round])));
    c3 = a_low;
  }
  w[0] = c0;
  w[1] = c1;
  w[2] = c2;
  w[3] = c3;
  vi_words(w);
}

/* quire_sample_may_win of WIDTH ids. */
static inline uint32_t may_win(const struct quire_sample_best *best, vf z, vi words) {
  vi half = vi_half(vi_xor(words, vi_all(0xffffffffu)));
  vf log2_low = vf_sub(vf_mul(vf_from_int(vi_of(vf_from_int(half))), vf_all(0x1p-23f)), vf_all(158.0f));
  vf needed = vf_add(vf_mul(log2_low, vf_all(0x1.62e43p-1f)), vf_all(best->reach));
  return vf_at_least(z, needed);
}

static void draw_step(const struct quire_sample_z *row, const struct noise *noise, int32_t at,
                      struct quire_sample_best *best) {
  vi words[4];
  uint32_t word[STEP];
  bool stored = false;
  noise_words(noise, (uint32_t)at / 4, words);
  for (int j = 0; j < 4; j++) {
    for (uint32_t mask = may_win(best, vf_load(row->z + at + j * WIDTH), words[j]); mask != 0; mask &= mask - 1) {
      int32_t i = j * WIDTH + __builtin_ctz(mask);
      if (!stored) {
        memcpy(word, words, sizeof word);
        stored = true;
      }
      if (row->z[at + i] > lowest()) {
        quire_sample_try(best, row->z[at + i], word[i], at + i);
      }
    }
  }
}

static void draw(const struct quire_sample_z *row, struct quire_sample_best *best) {
  QUIRE_ASSERT(row->blocks > 0 && best->token >= 0);
  struct noise noise = noise_of(best->seed, best->position);
  for (int32_t b = 0; b < row->blocks; b++) {
    if (row->block_max[b] < best->least || row->block_max[b] < best->floor) {
      continue;
    }
    for (int32_t at = b * BLOCK; at < (b + 1) * BLOCK; at += STEP) {
      vf max = vf_max(vf_load(row->z + at), vf_load(row->z + at + WIDTH));
      max = vf_max(max, vf_max(vf_load(row->z + at + 2 * WIDTH), vf_load(row->z + at + 3 * WIDTH)));
      float least = best->least > best->floor ? best->least : best->floor;
      if (vf_at_least(max, vf_all(least)) != 0) {
        draw_step(row, &noise, at, best);
      }
    }
  }
}

/* Puts a value behind those that are no smaller, which were found at lower ids. */
static void top_insert(struct quire_top *top, int32_t count, int32_t k, struct quire_top newcomer) {
  int32_t at = count < k ? count : k - 1;
  while (at > 0 && top[at - 1].logprob < newcomer.logprob) {
    top[at] = top[at - 1];
    at--;
  }
  top[at] = newcomer;
}

static void top(const float *x, int32_t n, int32_t k, struct quire_top *top_out) {
  QUIRE_ASSERT(n > 0 && k >= 0);
  float tail[BLOCK], least = lowest(); /* a newcomer's value must be larger */
  int32_t count = 0;
  for (int32_t b = 0; k > 0 && b < blocks_of(n); b++) {
    const float *block = block_of(x, n, b, tail);
    for (int32_t i = 0; i < BLOCK; i += WIDTH) {
      for (uint32_t mask = vf_above(vf_load(block + i), vf_all(least)); mask != 0; mask &= mask - 1) {
        int32_t j = i + __builtin_ctz(mask);
        if (block[j] > least) { /* the list may have risen within these lanes */
          top_insert(top_out, count, k, (struct quire_top){b * BLOCK + j, block[j]});
          count += count < k;
          least = count < k ? lowest() : top_out[k - 1].logprob;
        }
      }
    }
  }
  for (int32_t i = count; i < k; i++) {
    top_out[i] = (struct quire_top){-1, 0.0f};
  }
}

#define QUIRE_SAMPLE_PASSES                                                                                            \
  {                                                                                                                    \
    .largest = largest, .exp_sum = exp_sum, .scale = scale, .weigh = weigh, .above = above, .gather = gather,          \
    .draw = draw, .top = top                                                                                           \
  }

#endif
