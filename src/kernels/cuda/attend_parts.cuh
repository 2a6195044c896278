/* What the kernels of attend share: how tiles lie in shared memory, fp8 codes widened to bf16, and what accumulators
 * hold and become. The arithmetic is arithmetic.md 10.1.
 *
 * Internal to attend. */
#ifndef QUIRE_KERNELS_CUDA_ATTEND_PARTS_CUH
#define QUIRE_KERNELS_CUDA_ATTEND_PARTS_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/attend_ptx.cuh"
#include "kernels/cuda/cuda_attend.h"

#define HEADS 64         /* of a block */
#define TILE_ROWS 64     /* list entries of a tile */
#define BLOCK_BYTES 8192 /* 64 rows of 128 bytes: 64 columns of a tile */
#define BLOCKS 9         /* of a tile: 8 of latents, one of rope */
#define TILE_BYTES (BLOCKS * BLOCK_BYTES)
#define HALF_BLOCKS 4
#define GROUP 128          /* threads of a warp group */
#define MAX_START (-1e30f) /* below every score, and finite: differences of two are not NaN */
#define LN2 0.693147180559945f
#define LOG2E 1.44269504088896f

struct attend_args {
  struct quire_attend op;
  int32_t head_groups; /* of HEADS each */
  int32_t items;       /* (row, head group), groups of a row side by side */
  float scale;         /* of scores, with log2 e: exponentials are powers of two */
};

QUIRE_DEVICE uint32_t chunk_at(uint32_t row, uint32_t chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

/* Stands in for a list entry that is not there: loads need no condition, and its scales make zeros. */
static __device__ const uint4 absent_row[(QUIRE_LATENT_DIM + 16 + QUIRE_ROPE_DIM * 2) / 16] = {};

/* Four e4m3 to bf16, less a factor of 2^120: sign, exponent and fraction at their places, subnormals included. */
QUIRE_DEVICE uint2 codes_spread(uint32_t codes) {
  uint32_t y = __byte_perm(codes, 0, 0x3120); /* 0 and 1 in the even bytes, 2 and 3 in the odd ones */
  return make_uint2(((y << 8) & 0x80008000u) | ((y << 4) & 0x07f007f0u), (y & 0x80008000u) | ((y >> 4) & 0x07f007f0u));
}

/* 2^120 * scale is a bf16: a power of two, not too large. Zero stands for a row that is not there. */
QUIRE_DEVICE bool scale_plain(float scale) {
  uint32_t bits = __float_as_uint(scale);
  return (bits & 0x7fffffu) == 0 && bits < 135u << 23;
}

QUIRE_DEVICE uint32_t pair_times_pair(uint32_t pair, uint32_t factor) { /* no zeros for subnormals here */
  __nv_bfloat162 product = __hmul2(*(__nv_bfloat162 *)&pair, *(__nv_bfloat162 *)&factor);
  return *(uint32_t *)&product;
}

/* A pair of codes_spread times the scale. Plain: exact. Else the f32 product, rounded (which is the same where both
 * do). */
template <bool PLAIN> QUIRE_DEVICE uint32_t pair_times(uint32_t pair, float scale) {
  uint32_t factor = PLAIN ? (__float_as_uint(scale) + (120u << 23)) >> 16 : (127u + 120u) << 7;
  if (PLAIN && scale == 0) {
    factor = 0;
  }
  pair = pair_times_pair(pair, factor | factor << 16);
  return PLAIN ? pair
               : hopper_bf16_pair(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xffff0000u) * scale);
}

/* Sixteen codes of one row and block of scale to shared memory. */
template <bool PLAIN>
QUIRE_DEVICE void codes_store(uint4 codes, float scale, uint32_t to, uint32_t row, uint32_t chunk) {
  uint2 w[4] = {codes_spread(codes.x), codes_spread(codes.y), codes_spread(codes.z), codes_spread(codes.w)};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    w[i] = make_uint2(pair_times<PLAIN>(w[i].x, scale), pair_times<PLAIN>(w[i].y, scale));
  }
  hopper_store16(to + chunk_at(row, chunk), make_uint4(w[0].x, w[0].y, w[1].x, w[1].y));
  hopper_store16(to + chunk_at(row, chunk + 1), make_uint4(w[2].x, w[2].y, w[3].x, w[3].y));
}

/* --- accumulators --- */

QUIRE_DEVICE void scores_mask(float (&score)[32], uint64_t valid) {
  if (valid == ~0ull) {
    return;
  }
  valid >>= threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; i++) {
    if (!(valid >> (i / 4 * 8 + i % 2) & 1)) {
      score[i] = -INFINITY;
    }
  }
}

/* Row of the block's 64 that a thread's accumulators r belong to. */
QUIRE_DEVICE int held_row(int r) { return threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r; }

/* Transposes 4 x 4 words among the four lanes of a row: word i of lane l becomes word l of lane i. */
QUIRE_DEVICE void quad_transpose(uint32_t v[4]) {
  bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = other;
  }
}

/* [64 heads from `head` on, COLUMNS from `column` on] of the output of a row, from accumulators. */
template <int COLUMNS>
QUIRE_DEVICE void out_store(const struct attend_args &a, const float (&o)[COLUMNS / 2], int32_t row, int32_t first_head,
                            int32_t column, const float factor[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t head = first_head + held_row(r);
    int64_t at = ((int64_t)row * a.op.heads + head) * QUIRE_LATENT_DIM + column;
    bool real = head < a.op.heads;
    if (a.op.out_dtype == QUIRE_DTYPE_F32) {
      float *out = (float *)a.op.out + at + threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; i < COLUMNS / 8 && real; i++) {
        float2 two = make_float2(o[4 * i + 2 * r] * factor[r], o[4 * i + 2 * r + 1] * factor[r]);
        *(float2 *)(out + 8 * i) = two;
      }
      continue;
    }
    uint16_t *out = (uint16_t *)a.op.out + at + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < COLUMNS / 32; i++) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float *two = o + 16 * i + 4 * j + 2 * r;
        v[j] = hopper_bf16_pair(two[0] * factor[r], two[1] * factor[r]);
      }
      quad_transpose(v);
      if (real) {
        *(uint4 *)(out + 32 * i) = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

#endif
