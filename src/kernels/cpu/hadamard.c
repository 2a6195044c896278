/* The Hadamard transform of index queries and keys (arithmetic.md 9), in place. A vector of 128 is sixteen registers:
 * strides of 8 and more are butterflies of whole registers, the three below it shuffles within one. */
#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

#define VECTORS (QUIRE_INDEX_DIM / 8)
#define HADAMARD_SCALE 0x1.6a09e6p-4f /* 1 / sqrt(128) */

/* Butterflies within a register: lane i of `other` is the lane it is paired with. Where `second` is set it comes
 * second, and a + b becomes a - b. */
QUIRE_INLINE quire_f8 butterfly(quire_f8 v, quire_f8 other, quire_i8 second) {
  return f8_choose(second, other - v, v + other);
}

/* Strides 1, 2 and 4. */
QUIRE_INLINE quire_f8 within(quire_f8 v) {
  v = butterfly(v, (quire_f8){v[1], v[0], v[3], v[2], v[5], v[4], v[7], v[6]}, (quire_i8){0, -1, 0, -1, 0, -1, 0, -1});
  v = butterfly(v, (quire_f8){v[2], v[3], v[0], v[1], v[6], v[7], v[4], v[5]}, (quire_i8){0, 0, -1, -1, 0, 0, -1, -1});
  return butterfly(v, (quire_f8){v[4], v[5], v[6], v[7], v[0], v[1], v[2], v[3]},
                   (quire_i8){0, 0, 0, 0, -1, -1, -1, -1});
}

static void transform(float *x) {
  quire_f8 v[VECTORS];
  QUIRE_UNROLL
  for (int i = 0; i < VECTORS; i++) {
    v[i] = within(f8_load(x + 8 * i));
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
  QUIRE_ASSERT(op->heads <= 1 || op->head_ld >= QUIRE_INDEX_DIM);
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    for (int64_t head = 0; head < op->heads; head++) {
      transform(op->x + row * op->x_ld + head * op->head_ld);
    }
  }
}

QUIRE_CPU_LAUNCHER(hadamard, hadamard_share, (int64_t)op->m * op->heads * QUIRE_INDEX_DIM)
