/* AVX-512 scoring of the indexer: 64 keys are four registers, a head's dot four chains of vdpbf16ps.
 *
 * The stage is u32 [64 pairs of dimensions][64 keys] when quantised, each the bf16 of dimensions 2i (low) and 2i + 1,
 * so that one instruction does the two steps of arithmetic.md 9 in their order; f32 [128][64] otherwise. */
#include "kernels/cpu/select.h"

#include <immintrin.h>

#include "base/assert.h"
#include "kernels/cpu/e4m3_avx512.h"
#include "kernels/cpu/lanes_avx512.h"

#define VECTORS (QUIRE_SELECT_KEYS / 16)
#define HEADS 4 /* scored together: 16 chains hide the latency */

/* 16 u32 (pairs of bf16, or f32) from number `block` of a stored key. */
QUIRE_INLINE __m512i key_block(const uint8_t *key, bool quantised, int block) {
  if (key == NULL) {
    return _mm512_setzero_si512();
  }
  return quantised ? quire_e4m3x32(key + block * 32) : _mm512_loadu_si512(key + block * 64);
}

QUIRE_INLINE void stage_layout(const uint8_t *const *keys, bool quantised, float *stage) {
  int blocks = quantised ? QUIRE_INDEX_DIM / 32 : QUIRE_INDEX_DIM / 16;
  for (int lane = 0; lane < QUIRE_SELECT_KEYS; lane += 16) {
    for (int block = 0; block < blocks; block++) {
      __m512i v[16];
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        v[i] = key_block(keys[lane + i], quantised, block);
      }
      quire_transpose16(v);
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        _mm512_storeu_si512(stage + (block * 16 + i) * QUIRE_SELECT_KEYS + lane, v[i]);
      }
    }
  }
}

/* Quantised keys by look-up: codes are turned into lanes first, four a u32, which is half the shuffles, and widened
 * then. */
QUIRE_LOOK_UP static void stage_looked_up(const uint8_t *const *keys, float *stage) {
  /* of each quarter, the first two codes of its four keys, then the last two */
  const __m512i halves = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  struct quire_e4m3_tables tables = quire_e4m3_tables();
  for (int lane = 0; lane < QUIRE_SELECT_KEYS; lane += 16) {
    for (int block = 0; block < QUIRE_INDEX_DIM / 64; block++) {
      __m512i v[16];
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        const uint8_t *key = keys[lane + i];
        v[i] = key == NULL ? _mm512_setzero_si512() : _mm512_loadu_si512(key + block * 64);
      }
      quire_transpose16(v);
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) { /* dimensions 64 block + 4 i to + 3 */
        float *to = stage + (block * 32 + 2 * i) * QUIRE_SELECT_KEYS + lane;
        __m512i first, second;
        quire_e4m3_quarters(tables, _mm512_shuffle_epi8(v[i], halves), &first, &second);
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + QUIRE_SELECT_KEYS, second);
      }
    }
  }
}

static void stage_keys(const uint8_t *const *keys, bool quantised, float *stage) {
  if (quantised && quire_e4m3_looks_up()) {
    stage_looked_up(keys, stage);
  } else if (quantised) {
    stage_layout(keys, true, stage);
  } else {
    stage_layout(keys, false, stage);
  }
}

QUIRE_INLINE int steps_of(bool quantised) { return quantised ? QUIRE_INDEX_DIM / 2 : QUIRE_INDEX_DIM; }

static void stage_query(const uint8_t *codes, float *stage) {
  for (int i = 0; i < QUIRE_INDEX_DIM; i += 32) {
    _mm512_storeu_si512((uint16_t *)stage + i, quire_e4m3x32(codes + i));
  }
}

/* heads (4 or 1) heads against the stage; sum goes on over the heads. A step asks for a line from `ask` on (NULL:
 * none): asked for at once, a stage's lines would wait for one another with nothing computed. Loops over registers
 * have constant bounds: only then do both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void score_heads(const struct quire_select_score *s, int32_t head, int heads, bool quantised,
                              const uint8_t *ask, __m512 *sum) {
  const float *q = s->q + (int64_t)head * QUIRE_INDEX_DIM, *w = s->w + head, *stage = s->stage;
  __m512 dot[HEADS * VECTORS];
  int steps = steps_of(quantised);
  QUIRE_UNROLL
  for (int j = 0; j < HEADS * VECTORS; j++) {
    dot[j] = _mm512_setzero_ps();
  }
  for (int step = 0; step < steps; step++) {
    if (ask != NULL) {
      __builtin_prefetch(ask + step * CACHE_LINE);
    }
    QUIRE_UNROLL
    for (int j = 0; j < HEADS * VECTORS; j++) {
      if (j < heads * VECTORS) {
        __m512 k = _mm512_loadu_ps(stage + step * QUIRE_SELECT_KEYS + j % VECTORS * 16);
        __m512 x = _mm512_set1_ps(q[j / VECTORS * QUIRE_INDEX_DIM + step]);
        dot[j] = quantised ? _mm512_dpbf16_ps(dot[j], (__m512bh)x, (__m512bh)k) : _mm512_fmadd_ps(x, k, dot[j]);
      }
    }
  }
  QUIRE_UNROLL
  for (int j = 0; j < HEADS * VECTORS; j++) { /* vmaxps gives its second operand where the first is not larger */
    if (j < heads * VECTORS) {
      __m512 relu = _mm512_max_ps(_mm512_setzero_ps(), dot[j]);
      sum[j % VECTORS] = _mm512_fmadd_ps(_mm512_set1_ps(w[j / VECTORS]), relu, sum[j % VECTORS]);
    }
  }
}

QUIRE_INLINE void score_all(const struct quire_select_score *s, bool quantised, float *scores_out) {
  QUIRE_DEBUG(s->heads > 0 && s->ask_lines >= 0);
  __m512 sum[VECTORS];
  int32_t head = 0, asked = 0, steps = steps_of(quantised);
  QUIRE_UNROLL
  for (int j = 0; j < VECTORS; j++) {
    sum[j] = _mm512_setzero_ps();
  }
  for (; head + HEADS <= s->heads && asked + steps <= s->ask_lines; head += HEADS, asked += steps) {
    score_heads(s, head, HEADS, quantised, s->ask + (int64_t)asked * CACHE_LINE, sum);
  }
  for (; asked < s->ask_lines; asked++) {
    __builtin_prefetch(s->ask + (int64_t)asked * CACHE_LINE);
  }
  for (; head + HEADS <= s->heads; head += HEADS) {
    score_heads(s, head, HEADS, quantised, NULL, sum);
  }
  for (; head < s->heads; head++) {
    score_heads(s, head, 1, quantised, NULL, sum);
  }
  QUIRE_UNROLL
  for (int j = 0; j < VECTORS; j++) {
    _mm512_storeu_ps(scores_out + j * 16, sum[j]);
  }
}

static void score(const struct quire_select_score *score, float *scores_out) {
  if (score->quantised) {
    score_all(score, true, scores_out);
  } else {
    score_all(score, false, scores_out);
  }
}

const struct quire_select_isa quire_select_isa_avx512 = {
    .wide = true,
    .stage_keys = stage_keys,
    .stage_query = stage_query,
    .score = score,
};
