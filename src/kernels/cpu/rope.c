/* Rotation of 64 values by their position (arithmetic.md 6), in place. */
#include "base/assert.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"
#include "kernels/number.h"

#define PAIRS (QUIRE_ROPE_DIM / 2)

static void rotate(float *a, float *b, float cosine, float sine) {
  float x = *a;
  float y = *b;
  *a = QUIRE_FMA_F32(x, cosine, -(y * sine));
  *b = QUIRE_FMA_F32(x, sine, y * cosine);
}

static void rope_row(const struct quire_rope *op, int64_t row) {
  QUIRE_ASSERT(op->positions[row] >= 0);
  const float *table = op->table + (int64_t)op->positions[row] * PAIRS * 2;
  for (int64_t head = 0; head < op->heads; head++) {
    float *x = op->x + row * op->x_ld + head * op->head_ld;
    if (op->layout == QUIRE_ROPE_INTERLEAVED) {
      for (int i = 0; i < PAIRS; i++) {
        rotate(x + 2 * i, x + 2 * i + 1, table[2 * i], table[2 * i + 1]);
      }
    } else {
      for (int i = 0; i < PAIRS; i++) {
        rotate(x + i, x + i + PAIRS, table[2 * i], table[2 * i + 1]);
      }
    }
  }
}

static void rope_share(void *context, int member, int threads) {
  const struct quire_rope *op = context;
  QUIRE_ASSERT(op->table != NULL && (op->heads <= 1 || op->head_ld >= QUIRE_ROPE_DIM));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    rope_row(op, row);
  }
}

QUIRE_CPU_LAUNCHER(rope, rope_share, (int64_t)op->m * op->heads * QUIRE_ROPE_DIM)
