/* The Hadamard transform of index queries and keys (arithmetic.md 9), in place. A vector of 128 is sixteen registers:
 * strides of 8 and more are butterflies of whole registers, the three below it shuffles within one. */
#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

#define VECTORS (QUIRE_INDEX_DIM / 8)
#define HADAMARD_SCALE 0x1.6a09e6p-4f /* 1 / sqrt(128) */

/* Butterflies of one stride below 8. Which lane comes second is a bit of its number: there the sum a + b becomes
 * a - b, with a the other lane. */
QUIRE_INLINE quire_f8 within(quire_f8 v, int stride) {
  quire_f8 sum = v; /* overwritten; spares a warning where sanitizers keep the loop */
  QUIRE_UNROLL
  for (int i = 0; i < 8; i++) {
    sum[i] = (i & stride) == 0 ? v[i] + v[i ^ stride] : v[i ^ stride] - v[i];
  }
  return sum;
}

static void transform(float *x) {
  quire_f8 v[VECTORS];
  QUIRE_UNROLL
  for (int i = 0; i < VECTORS; i++) {
    v[i] = within(within(within(f8_load(x + 8 * i), 1), 2), 4);
  }
  QUIRE_UNROLL
  for (int stride = 1; stride < VECTORS; stride *= 2) {
    QUIRE_UNROLL
    for (int i = 0; i < VECTORS; i++) {
      if ((i & stride) == 0) {
        quire_f8 a = v[i];
        quire_f8 b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
    }
  }
  QUIRE_UNROLL
  for (int i = 0; i < VECTORS; i++) {
    f8_store(x + 8 * i, v[i] * HADAMARD_SCALE);
  }
}

static void hadamard_share(void *context, int member, int threads) {
  const struct quire_hadamard *op = context;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    for (int64_t head = 0; head < op->heads; head++) {
      transform(op->x + row * op->x_ld + head * op->head_ld);
    }
  }
}

QUIRE_CPU_LAUNCHER(hadamard, hadamard_share, (int64_t)op->m * op->heads * QUIRE_INDEX_DIM)
