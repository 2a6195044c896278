/* From products to scores (arithmetic.md 13), in registers.
 *
 * A warp group has the products of its 64 keys with the heads of S::ROWS rows (select_products.cuh). A shape S has:
 * HEADS, ROWS, SCORES (of a lane and 16 keys).
 *
 * Internal to select. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_FOLD_CUH
#define QUIRE_KERNELS_CUDA_SELECT_FOLD_CUH

#include "kernels/cuda/hopper.cuh"

/* relu that keeps a NaN. */
QUIRE_DEVICE float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

/* The lane's part of the weights: four[r][i] are those of row r, heads 16 i + 2 (lane mod 4), + 1, + 8, + 9. */
template <typename S> struct weights { float4 four[S::ROWS][S::HEADS / 16]; };

/* from: the weights of the row group's first row, as select_prepare.cu lays them. */
template <typename S> QUIRE_DEVICE void weights_load(const float *from, struct weights<S> *weights) {
#pragma unroll
  for (int r = 0; r < S::ROWS; r++) {
#pragma unroll
    for (int i = 0; i < S::HEADS / 16; i++) {
      weights->four[r][i] = *(const float4 *)(from + r * S::HEADS + i * 16 + threadIdx.x % 4 * 4);
    }
  }
}

/* Weighted sums over the lane's heads, of rows [first, first + rows in products) and the lane's two keys. */
template <typename S, int PRODUCTS>
QUIRE_DEVICE void products_fold(const float (&products)[PRODUCTS], const struct weights<S> &weights, int first,
                                float (&sum)[S::ROWS][2]) {
#pragma unroll
  for (int r = 0; r < PRODUCTS * 2 / S::HEADS; r++) {
    sum[first + r][0] = 0.0f;
    sum[first + r][1] = 0.0f;
#pragma unroll
    for (int j = 0; j < S::HEADS / 8; j += 2) {
      float4 four = weights.four[first + r][j / 2];
      const float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 8; i++) { /* i / 4: which j; i / 2 % 2: which e; i % 2: which key */
        float product = products[(r * S::HEADS / 8 + j + i / 4) * 4 + i % 2 * 2 + i / 2 % 2];
        sum[first + r][i % 2] = __fmaf_rn(w[i / 2], relu(product), sum[first + r][i % 2]);
      }
    }
  }
}

/* The lane's scores (arithmetic.md 13): the sums of four lanes as (0 + 1) + (2 + 3), times the key's scale. With
 * several rows, lane bit 0 keeps the odd rows and bit 1 the key 8 further; with one row, bit 0 keeps the key 8 further
 * and lanes that differ in bit 1 hold the same. */
template <typename S>
QUIRE_DEVICE void scores_fold(const float (&sum)[S::ROWS][2], float scale, float (&scores_out)[S::SCORES]) {
  bool odd = (threadIdx.x & 1) != 0;
  [[maybe_unused]] bool high = (threadIdx.x & 2) != 0;
  if constexpr (S::ROWS == 1) {
    float mine = odd ? sum[0][1] : sum[0][0];
    float pair = __fadd_rn(mine, __shfl_xor_sync(~0u, odd ? sum[0][0] : sum[0][1], 1));
    scores_out[0] = __fmul_rn(scale, __fadd_rn(pair, __shfl_xor_sync(~0u, pair, 2)));
  } else {
#pragma unroll
    for (int o = 0; o < S::SCORES; o++) {
      float pair[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float mine = odd ? sum[2 * o + 1][half] : sum[2 * o][half];
        float other = odd ? sum[2 * o][half] : sum[2 * o + 1][half];
        pair[half] = __fadd_rn(mine, __shfl_xor_sync(~0u, other, 1));
      }
      float mine = high ? pair[1] : pair[0];
      scores_out[o] = __fmul_rn(scale, __fadd_rn(mine, __shfl_xor_sync(~0u, high ? pair[0] : pair[1], 2)));
    }
  }
}

#endif
