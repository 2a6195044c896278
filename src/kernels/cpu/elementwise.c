/* Operations on one element at a time (arithmetic.md 7). */
#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

static void convert_share(void *context, int member, int threads) {
  const struct quire_convert *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->x_ld >= op->n && op->y_ld >= op->n));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    const float *x = op->x + row * op->x_ld;
    if (op->y_dtype == QUIRE_DTYPE_BF16) {
      lanes_to_bf16(x, (uint16_t *)op->y + row * op->y_ld, op->n);
    } else {
      memcpy((float *)op->y + row * op->y_ld, x, (size_t)op->n * sizeof(float));
    }
  }
}

QUIRE_CPU_LAUNCHER(convert, convert_share, (int64_t)op->m * op->n)

static void add_share(void *context, int member, int threads) {
  const struct quire_add *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->x_ld >= op->n && op->y_ld >= op->n));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    float *x = op->x + row * op->x_ld;
    const float *y = op->y + row * op->y_ld;
    for (int64_t i = 0; i < op->n; i++) {
      x[i] = x[i] + y[i];
    }
  }
}

QUIRE_CPU_LAUNCHER(add, add_share, (int64_t)op->m * op->n)

static void embed_share(void *context, int member, int threads) {
  const struct quire_embed *op = context;
  const struct quire_weight *table = &op->table;
  int64_t begin, end;
  QUIRE_ASSERT(table->dtype != QUIRE_DTYPE_FP8);
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    int64_t token = op->tokens[row];
    float *x = op->x + row * op->x_ld;
    QUIRE_ASSERT(token >= 0 && token < table->n);
    if (table->dtype == QUIRE_DTYPE_F32) {
      memcpy(x, (const float *)table->data + token * table->ld, (size_t)table->k * sizeof(float));
      continue;
    }
    const uint16_t *from = (const uint16_t *)table->data + token * table->ld;
    for (int64_t i = 0; i < table->k; i++) {
      x[i] = quire_bf16_widen(from[i]);
    }
  }
}

QUIRE_CPU_LAUNCHER(embed, embed_share, (int64_t)op->m * op->table.k)

QUIRE_INLINE quire_f8 silu_mul8(const float *gate, const float *up) {
  quire_f8 g = f8_load(gate);
  return g / (f8_exp(-g) + 1.0f) * f8_load(up);
}

void quire_silu_mul_row(const float *gate, const float *up, void *y, enum quire_dtype y_dtype, int64_t n) {
  QUIRE_ASSERT(gate != NULL && up != NULL && y != NULL && n >= 0);
  for (int64_t i = 0; i < n; i += 8) {
    float out[8];
    int64_t count = n - i < 8 ? n - i : 8;
    if (count == 8) {
      f8_store(out, silu_mul8(gate + i, up + i));
    } else {
      for (int64_t j = 0; j < count; j++) {
        out[j] = quire_silu(gate[i + j]) * up[i + j];
      }
    }
    if (y_dtype == QUIRE_DTYPE_BF16) {
      lanes_to_bf16(out, (uint16_t *)y + i, count);
    } else {
      memcpy((float *)y + i, out, (size_t)count * sizeof(float));
    }
  }
}

static void silu_mul_share(void *context, int member, int threads) {
  const struct quire_silu_mul *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->gate_ld >= op->n && op->up_ld >= op->n && op->y_ld >= op->n));
  int64_t bytes = op->y_dtype == QUIRE_DTYPE_BF16 ? 2 : 4;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    quire_silu_mul_row(op->gate + row * op->gate_ld, op->up + row * op->up_ld,
                       (uint8_t *)op->y + row * op->y_ld * bytes, op->y_dtype, op->n);
  }
}

QUIRE_CPU_LAUNCHER(silu_mul, silu_mul_share, (int64_t)op->m * op->n * 4)

#define QUIRE_BITS_2_127 0x7f000000u

static void finite_share(void *context, int member, int threads) {
  const struct quire_finite *op = context;
  QUIRE_ASSERT(op->flags_out != NULL && (op->m <= 1 || op->x_ld >= op->n));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    const float *x = op->x + row * op->x_ld;
    uint32_t found = 0;
    for (int64_t i = 0; i < op->n; i++) {
      found |= (quire_bits_of(x[i]) & QUIRE_INF_BITS) >= QUIRE_BITS_2_127;
    }
    if (found != 0) {
      op->flags_out[row] = 1;
    }
  }
}

QUIRE_CPU_LAUNCHER(finite, finite_share, (int64_t)op->m * op->n)
