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
#define HEADS 4  /* scored together: 16 chains hide the latency */
#define BESIDE 8 /* so many go by while the next stage is made */

/* 16 u32 (pairs of bf16, or f32) from number `block` of a stored key. */
QUIRE_INLINE __m512i key_block(struct quire_select_keys keys, int lane, int block) {
  const uint8_t *key = keys.rows + (int64_t)lane * QUIRE_INDEX_DIM * (keys.quantised ? 1 : 4);
  return keys.quantised ? quire_e4m3x32(key + block * 32) : _mm512_loadu_si512(key + block * 64);
}

QUIRE_INLINE void stage_layout(struct quire_select_keys keys, float *stage) {
  int blocks = keys.quantised ? QUIRE_INDEX_DIM / 32 : QUIRE_INDEX_DIM / 16;
  for (int lane = 0; lane < QUIRE_SELECT_KEYS; lane += 16) {
    for (int block = 0; block < blocks; block++) {
      __m512i v[16];
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        v[i] = key_block(keys, lane + i, block);
      }
      quire_transpose16(v);
      QUIRE_UNROLL
      for (int i = 0; i < 16; i++) {
        _mm512_storeu_si512(stage + (block * 16 + i) * QUIRE_SELECT_KEYS + lane, v[i]);
      }
    }
  }
}

/* A piece of a stage of quantised keys by look-up: 16 keys, 32 codes of each. Codes are turned into lanes first, four a
 * u32, which is half the shuffles, and widened then; in eight turns, for the sums of other keys to take their steps
 * between. Beside those interleaving is free, other shuffles and look-ups are not quite. */
#define PIECES 16
#define PIECE_TURNS 8

struct piece {
  const uint8_t *rows;
  float *to;
  __m512i half[2][4];
};

QUIRE_INLINE void piece_at(struct piece *piece, const uint8_t *rows, int index, float *stage) {
  int lane = index % 4 * 16, part = index / 4;
  piece->rows = rows + lane * QUIRE_INDEX_DIM + part * 32;
  piece->to = stage + part * 16 * QUIRE_SELECT_KEYS + lane;
}

/* Dimensions 4 c to + 3. */
QUIRE_LOOK_UP QUIRE_INLINE void piece_column(struct quire_e4m3_tables tables, const struct piece *piece, int c) {
  /* of each quarter, the first two codes of its four keys, then the last two */
  const __m512i halves = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  __m512i codes = quire_transposed_column(piece->half[0], piece->half[1], c);
  __m512i first, second;
  quire_e4m3_quarters(tables, _mm512_shuffle_epi8(codes, halves), &first, &second);
  _mm512_storeu_si512(piece->to + 2 * c * QUIRE_SELECT_KEYS, first);
  _mm512_storeu_si512(piece->to + (2 * c + 1) * QUIRE_SELECT_KEYS, second);
}

QUIRE_LOOK_UP QUIRE_INLINE void piece_turn(struct quire_e4m3_tables tables, struct piece *piece, int turn) {
  if (turn < 2) {
    quire_transpose8_rows(piece->rows + turn * 8 * QUIRE_INDEX_DIM, QUIRE_INDEX_DIM, piece->half[turn]);
  } else if (turn < 6) {
    piece_column(tables, piece, turn - 2);
    piece_column(tables, piece, turn + 2);
  }
}

QUIRE_LOOK_UP static void stage_looked_up(const uint8_t *rows, float *stage) {
  struct quire_e4m3_tables tables = quire_e4m3_tables();
  for (int index = 0; index < PIECES; index++) {
    struct piece piece;
    piece_at(&piece, rows, index, stage);
    QUIRE_UNROLL
    for (int turn = 0; turn < PIECE_TURNS; turn++) {
      piece_turn(tables, &piece, turn);
    }
  }
}

static void stage_keys(struct quire_select_keys keys, float *stage) {
  if (keys.quantised && quire_e4m3_looks_up()) {
    stage_looked_up(keys.rows, stage);
  } else if (keys.quantised) {
    stage_layout((struct quire_select_keys){keys.rows, true}, stage);
  } else {
    stage_layout((struct quire_select_keys){keys.rows, false}, stage);
  }
}

QUIRE_INLINE int steps_of(bool quantised) { return quantised ? QUIRE_INDEX_DIM / 2 : QUIRE_INDEX_DIM; }

static void stage_query(const uint8_t *codes, float *stage) {
  for (int i = 0; i < QUIRE_INDEX_DIM; i += 32) {
    _mm512_storeu_si512((uint16_t *)stage + i, quire_e4m3x32(codes + i));
  }
}

/* A step of the dots of `heads` (4 or 1) heads from `head` on. Loops over registers have constant bounds: only then do
 * both compilers unroll them and keep the sums in registers. */
QUIRE_INLINE void dot_step(const struct quire_select_score *s, int32_t head, int heads, bool quantised, int step,
                           __m512 *dot) {
  const float *q = s->q + (int64_t)head * QUIRE_INDEX_DIM + step, *stage = s->stage + step * QUIRE_SELECT_KEYS;
  __m512 k[VECTORS];
  QUIRE_UNROLL
  for (int j = 0; j < VECTORS; j++) {
    k[j] = _mm512_loadu_ps(stage + j * 16);
  }
  QUIRE_UNROLL
  for (int h = 0; h < heads; h++) {
    __m512 x = _mm512_set1_ps(q[h * QUIRE_INDEX_DIM]);
    QUIRE_UNROLL
    for (int j = 0; j < VECTORS; j++) {
      __m512 *to = &dot[h * VECTORS + j];
      *to = quantised ? _mm512_dpbf16_ps(*to, (__m512bh)x, (__m512bh)k[j]) : _mm512_fmadd_ps(x, k[j], *to);
    }
  }
}

QUIRE_INLINE void all_zero(__m512 *v, int count) {
  QUIRE_UNROLL
  for (int j = 0; j < count; j++) {
    v[j] = _mm512_setzero_ps();
  }
}

/* sum goes on over the heads. */
QUIRE_INLINE void sum_heads(const float *w, int heads, const __m512 *dot, __m512 *sum) {
  QUIRE_UNROLL
  for (int j = 0; j < HEADS * VECTORS; j++) { /* vmaxps gives its second operand where the first is not larger */
    if (j < heads * VECTORS) {
      __m512 relu = _mm512_max_ps(_mm512_setzero_ps(), dot[j]);
      sum[j % VECTORS] = _mm512_fmadd_ps(_mm512_set1_ps(w[j / VECTORS]), relu, sum[j % VECTORS]);
    }
  }
}

/* heads (4 or 1) heads against the stage. A step asks for a line from `ask` on (NULL: none): asked for at once, a
 * stage's lines would wait for one another with nothing computed. */
QUIRE_INLINE void score_heads(const struct quire_select_score *s, int32_t head, int heads, bool quantised,
                              const uint8_t *ask, __m512 *sum) {
  __m512 dot[HEADS * VECTORS];
  all_zero(dot, HEADS * VECTORS);
  for (int step = 0; step < steps_of(quantised); step++) {
    if (ask != NULL) {
      __builtin_prefetch(ask + step * CACHE_LINE);
    }
    dot_step(s, head, heads, quantised, step, dot);
  }
  sum_heads(s->w + head, heads, dot, sum);
}

/* Heads [head, heads) and the lines not asked for yet, and the scores. */
QUIRE_INLINE void score_rest(const struct quire_select_score *s, bool quantised, int32_t head, int32_t asked,
                             __m512 *sum, float *scores_out) {
  int32_t steps = steps_of(quantised);
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

QUIRE_INLINE void score_all(const struct quire_select_score *s, bool quantised, float *scores_out) {
  QUIRE_DEBUG(s->heads > 0 && s->ask_lines >= 0);
  __m512 sum[VECTORS];
  all_zero(sum, VECTORS);
  score_rest(s, quantised, 0, 0, sum, scores_out);
}

/* The first heads of quantised keys with the next stage between their steps: each piece of it beside eight steps. */
QUIRE_LOOK_UP static void score_and_stage(const struct quire_select_score *s, float *scores_out) {
  QUIRE_DEBUG(s->heads >= BESIDE && s->next.rows != NULL && s->next.quantised);
  const struct quire_e4m3_tables tables = quire_e4m3_tables();
  const int steps = steps_of(true);
  bool asks = s->ask_lines >= steps * BESIDE / HEADS;
  const uint8_t *ask = asks ? s->ask : s->next.rows; /* which are there: one step like the other */
  __m512 sum[VECTORS];
  all_zero(sum, VECTORS);
  for (int index = 0; index < PIECES;) {
    int32_t head = index * PIECE_TURNS / steps * HEADS;
    __m512 dot[HEADS * VECTORS];
    all_zero(dot, HEADS * VECTORS);
    for (int step = 0; step < steps; step += PIECE_TURNS, index++) {
      struct piece piece;
      piece_at(&piece, s->next.rows, index, s->next_stage);
      QUIRE_UNROLL
      for (int turn = 0; turn < PIECE_TURNS; turn++) {
        __builtin_prefetch(ask + (index * PIECE_TURNS + turn) * CACHE_LINE);
        dot_step(s, head, HEADS, true, step + turn, dot);
        piece_turn(tables, &piece, turn);
      }
    }
    sum_heads(s->w + head, HEADS, dot, sum);
  }
  score_rest(s, true, BESIDE, asks ? steps * BESIDE / HEADS : 0, sum, scores_out);
}

static void score(const struct quire_select_score *score, float *scores_out) {
  bool staging = score->next.rows != NULL;
  if (staging && score->quantised && score->heads >= BESIDE && quire_e4m3_looks_up()) {
    score_and_stage(score, scores_out);
    return;
  }
  if (score->quantised) {
    score_all(score, true, scores_out);
  } else {
    score_all(score, false, scores_out);
  }
  if (staging) {
    stage_keys(score->next, score->next_stage);
  }
}

const struct quire_select_isa quire_select_isa_avx512 = {
    .wide = true,
    .stage_keys = stage_keys,
    .stage_query = stage_query,
    .score = score,
};
