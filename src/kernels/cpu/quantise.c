/* Rows to their stored form (arithmetic.md 2 and 8). */
#include <assert.h>

#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

static_assert(QUIRE_LATENT_BLOCK == QUIRE_INDEX_DIM, "one block routine serves both");

#define LATENT_SCALES (QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK)

/* quire_e4m3_round on eight lanes of finite or NaN values. */
QUIRE_INLINE quire_u8 e4m3x8(quire_f8 x) {
  quire_u8 bits = u8_of(x);
  quire_u8 magnitude = bits & 0x7fffffffu;
  quire_u8 normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  quire_u8 tiny = u8_of((quire_f8)magnitude + 16384.0f) - 0x46800000u; /* bits of 2^14 */
  quire_u8 mask = (quire_u8)(magnitude < 0x3c800000u);
  quire_u8 code = (mask & tiny) | (~mask & normal);
  mask = (quire_u8)(magnitude >= 0x43e00000u);
  code = (mask & 0x7eu) | (~mask & code);
  mask = (quire_u8)(magnitude > QUIRE_INF_BITS);
  code = (mask & 0x7fu) | (~mask & code);
  return code | ((bits >> 24) & 0x80u);
}

float quire_quantise_block(const float *x, bool any_scale, uint8_t *codes_out) {
  quire_f8 largest = f8_all(0.0f);
  for (int i = 0; i < QUIRE_INDEX_DIM; i += 8) {
    largest = f8_max(largest, (quire_f8)(u8_of(f8_load(x + i)) & 0x7fffffffu));
  }
  float amax = 0.0f;
  for (int i = 0; i < 8; i++) {
    amax = largest[i] > amax ? largest[i] : amax;
  }
  float scale = any_scale ? quire_any_scale_of(amax) : quire_scale_of(amax);
  float inverse = quire_scale_inverse(amax);
  for (int i = 0; i < QUIRE_INDEX_DIM; i += 8) {
    quire_f8 v = f8_load(x + i);
    quire_u8 codes = e4m3x8(any_scale ? v / scale : v * inverse);
    for (int j = 0; j < 8; j++) {
      codes_out[i + j] = (uint8_t)codes[j];
    }
  }
  return scale;
}

static void latent_row(const struct quire_quantise_latent *op, int64_t row) {
  QUIRE_ASSERT(op->format >= QUIRE_KV_F32 && op->format <= QUIRE_KV_FP8);
  const float *latent = op->latent + row * op->latent_ld;
  const float *rope = op->rope + row * op->rope_ld;
  if (op->format == QUIRE_KV_F32) {
    uint8_t *out = op->out + row * QUIRE_KV_DIM * 4;
    memcpy(out, latent, QUIRE_LATENT_DIM * 4);
    memcpy(out + QUIRE_LATENT_DIM * 4, rope, QUIRE_ROPE_DIM * 4);
    return;
  }
  uint16_t rounded[QUIRE_KV_DIM];
  lanes_to_bf16(rope, rounded + QUIRE_LATENT_DIM, QUIRE_ROPE_DIM);
  if (op->format == QUIRE_KV_BF16) {
    lanes_to_bf16(latent, rounded, QUIRE_LATENT_DIM);
    memcpy(op->out + row * QUIRE_KV_DIM * 2, rounded, sizeof rounded);
    return;
  }
  float scales[LATENT_SCALES];
  uint8_t *out = op->out + row * (QUIRE_LATENT_DIM + (int64_t)sizeof scales + QUIRE_ROPE_DIM * 2);
  for (int block = 0; block < LATENT_SCALES; block++) {
    int at = block * QUIRE_LATENT_BLOCK;
    scales[block] = quire_quantise_block(latent + at, op->any_scale, out + at);
  }
  memcpy(out + QUIRE_LATENT_DIM, scales, sizeof scales);
  memcpy(out + QUIRE_LATENT_DIM + sizeof scales, rounded + QUIRE_LATENT_DIM, QUIRE_ROPE_DIM * 2);
}

static void quantise_latent_share(void *context, int member, int threads) {
  const struct quire_quantise_latent *op = context;
  QUIRE_ASSERT(op->m <= 1 || (op->latent_ld >= QUIRE_LATENT_DIM && op->rope_ld >= QUIRE_ROPE_DIM));
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    latent_row(op, row);
  }
}

QUIRE_CPU_LAUNCHER(quantise_latent, quantise_latent_share, (int64_t)op->m *QUIRE_KV_DIM)

static void quantise_index_share(void *context, int member, int threads) {
  const struct quire_quantise_index *op = context;
  QUIRE_ASSERT(op->m <= 1 || op->key_ld >= QUIRE_INDEX_DIM);
  QUIRE_ASSERT(op->format == QUIRE_KV_F32 || op->scales_out != NULL);
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    const float *key = op->key + row * op->key_ld;
    if (op->format == QUIRE_KV_F32) {
      memcpy(op->keys_out + row * QUIRE_INDEX_DIM * 4, key, QUIRE_INDEX_DIM * 4);
    } else {
      op->scales_out[row] = quire_quantise_block(key, op->any_scale, op->keys_out + row * QUIRE_INDEX_DIM);
    }
  }
}

QUIRE_CPU_LAUNCHER(quantise_index, quantise_index_share, (int64_t)op->m *QUIRE_INDEX_DIM)
