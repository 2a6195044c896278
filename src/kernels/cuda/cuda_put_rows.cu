/* A warp takes one piece of a row: one of four blocks of the latent, the rope part, or the index key. Every piece is
 * one coalesced read and, at each of its targets, one coalesced write; a launch is bound by memory. */
#include "kernels/cuda/cuda_put_rows.h"

#include <cuda_runtime.h>

#include "base/assert.h"
#include "kernels/cuda/quantise.cuh"

#define PIECES 6
#define PIECE_ROPE 4
#define PIECE_KEY 5
#define WARPS 8

#define BF16_ROW (QUIRE_KV_DIM * 2)
#define FP8_SCALES QUIRE_LATENT_DIM
#define FP8_ROPE (FP8_SCALES + 4 * QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK)
#define FP8_ROW (FP8_ROPE + 2 * QUIRE_ROPE_DIM)

struct row_places {
  uint8_t *place[2]; /* NULL: none */
};

QUIRE_DEVICE uint32_t bf16_pair(float low, float high) {
  return quire_bf16_round(low) | (uint32_t)quire_bf16_round(high) << 16;
}

/* Four values of a latent block. */
QUIRE_DEVICE void latent_block(const struct quire_cuda_put_rows &put, const struct row_places &row, int32_t index,
                               int block, int lane) {
  float4 x = quantise_load(put.latent + index * put.latent_ld + block * QUIRE_LATENT_BLOCK + lane * 4);
  if (put.format == QUIRE_KV_BF16) {
    uint2 rounded = make_uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w));
    for (int i = 0; i < 2; i++) {
      if (row.place[i] != NULL) {
        *(uint2 *)(row.place[i] + (block * QUIRE_LATENT_BLOCK + lane * 4) * 2) = rounded;
      }
    }
    return;
  }
  float scale;
  uint32_t codes = quantise_block(x, put.any_scale, &scale);
  for (int i = 0; i < 2; i++) {
    if (row.place[i] != NULL) {
      *(uint32_t *)(row.place[i] + block * QUIRE_LATENT_BLOCK + lane * 4) = codes;
      if (lane == 0) {
        *(float *)(row.place[i] + FP8_SCALES + block * 4) = scale;
      }
    }
  }
}

QUIRE_DEVICE void rope_pair(const struct quire_cuda_put_rows &put, const struct row_places &row, int32_t index,
                            int lane) {
  const float *x = put.rope + index * put.rope_ld + lane * 2;
  uint32_t rounded = bf16_pair(x[0], x[1]);
  int32_t offset = put.format == QUIRE_KV_BF16 ? QUIRE_LATENT_DIM * 2 : FP8_ROPE;
  for (int i = 0; i < 2; i++) {
    if (row.place[i] != NULL) {
      *(uint32_t *)(row.place[i] + offset + lane * 4) = rounded;
    }
  }
}

QUIRE_DEVICE void index_key(const struct quire_cuda_put_rows &put, const struct quire_cuda_row_target &target,
                            int32_t index, int lane) {
  float scale;
  uint32_t codes = quantise_block(quantise_load(put.key + index * put.key_ld + lane * 4), put.any_scale, &scale);
  if (put.keys_out != NULL) {
    *(uint32_t *)(put.keys_out + (int64_t)index * QUIRE_INDEX_DIM + lane * 4) = codes;
    if (lane == 0) {
      put.scales_out[index] = scale;
    }
  }
  if (target.key_page != NULL) {
    *(uint32_t *)(target.key_page + target.slot * QUIRE_INDEX_DIM + lane * 4) = codes;
    if (lane == 0) {
      *(float *)(target.key_page + put.page_tokens * QUIRE_INDEX_DIM + target.slot * 4) = scale;
    }
  }
}

static __global__ void __launch_bounds__(WARPS * 32) put_rows(const struct quire_cuda_put_rows put) {
  int64_t task = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  int32_t index = (int32_t)(task / PIECES);
  int piece = (int)(task % PIECES);
  if (index >= put.m) {
    return;
  }
  struct quire_cuda_row_target target = {NULL, NULL, 0, 0};
  if (put.targets != NULL) {
    target = put.targets[index];
  }
  if (piece == PIECE_KEY) {
    if (put.key != NULL) {
      index_key(put, target, index, lane);
    }
    return;
  }
  if (put.latent == NULL) {
    return;
  }
  int64_t row_bytes = put.format == QUIRE_KV_BF16 ? BF16_ROW : FP8_ROW;
  struct row_places row = {{put.latent_out != NULL ? put.latent_out + index * row_bytes : NULL,
                            target.latent_page != NULL ? target.latent_page + target.slot * row_bytes : NULL}};
  if (piece == PIECE_ROPE) {
    rope_pair(put, row, index, lane);
  } else {
    latent_block(put, row, index, piece, lane);
  }
}

extern "C" enum quire_status quire_cuda_put_rows(void *stream, const struct quire_cuda_put_rows *put) {
  QUIRE_ASSERT(put->m >= 0 && (put->format == QUIRE_KV_BF16 || put->format == QUIRE_KV_FP8));
  QUIRE_ASSERT(put->keys_out == NULL || (put->key != NULL && put->scales_out != NULL));
  if (put->m == 0) {
    return QUIRE_OK;
  }
  uint32_t blocks = (uint32_t)(((int64_t)put->m * PIECES + WARPS - 1) / WARPS);
  put_rows<<<blocks, WARPS * 32, 0, (cudaStream_t)stream>>>(*put);
  return cudaPeekAtLastError() == cudaSuccess ? QUIRE_OK : QUIRE_ERR_RANK; /* whose words the stream keeps */
}
