/* RMSNorm and LayerNorm (arithmetic.md 5). A row is one member's; its sums run in 16 lanes. */
#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

#define SLICE 256 /* outputs on the stack on their way to bf16 */

static void rmsnorm_row(const struct quire_rmsnorm *op, int64_t row) {
  QUIRE_ASSERT(op->n > 0);
  const float *x = op->x + row * op->x_ld;
  float mean = lanes_square(x, op->n) / (float)op->n;
  float r = 1.0f / QUIRE_SQRT_F32(mean + op->eps);
  for (int64_t from = 0; from < op->n; from += SLICE) {
    float slice[SLICE];
    int64_t n = op->n - from < SLICE ? op->n - from : SLICE;
    for (int64_t i = 0; i < n; i++) {
      float scaled = x[from + i] * r;
      slice[i] = scaled * op->gain[from + i];
    }
    if (op->y_dtype == QUIRE_DTYPE_BF16) {
      lanes_to_bf16(slice, (uint16_t *)op->y + row * op->y_ld + from, n);
    } else {
      memcpy((float *)op->y + row * op->y_ld + from, slice, (size_t)n * sizeof(float));
    }
  }
}

static void rmsnorm_share(void *context, int member, int threads) {
  const struct quire_rmsnorm *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->x_ld >= op->n && op->y_ld >= op->n));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    rmsnorm_row(op, row);
  }
}

QUIRE_CPU_LAUNCHER(rmsnorm, rmsnorm_share, (int64_t)op->m * op->n)

/* y holds x - mean on the way. */
static void layernorm_row(const struct quire_layernorm *op, int64_t row) {
  const float *x = op->x + row * op->x_ld;
  QUIRE_ASSERT(op->n > 0);
  float *y = op->y + row * op->y_ld;
  float n = (float)op->n;
  float mean = lanes_sum(x, op->n) / n;
  for (int64_t i = 0; i < op->n; i++) {
    y[i] = x[i] - mean;
  }
  float var = lanes_square(y, op->n) / n;
  float r = 1.0f / QUIRE_SQRT_F32(var + op->eps);
  for (int64_t i = 0; i < op->n; i++) {
    y[i] = QUIRE_FMA_F32(y[i] * r, op->gain[i], op->bias[i]);
  }
}

static void layernorm_share(void *context, int member, int threads) {
  const struct quire_layernorm *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->x_ld >= op->n && op->y_ld >= op->n));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    layernorm_row(op, row);
  }
}

QUIRE_CPU_LAUNCHER(layernorm, layernorm_share, (int64_t)op->m * op->n)
