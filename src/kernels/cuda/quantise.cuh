/* The producer's quantisation of a block of 128 values by one warp, four values a lane (arithmetic.md 2): the same
 * bytes as the cpu family. The result does not depend on the order in which the largest magnitude is found.
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_QUANTISE_CUH
#define QUIRE_KERNELS_CUDA_QUANTISE_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/number.h"

QUIRE_DEVICE float quantise_larger(float a, float b) { return b > a ? b : a; } /* a NaN in b is passed over */

/* Four consecutive values; the address is only known to be a float's. */
QUIRE_DEVICE float4 quantise_load(const float *x) {
  if (((uintptr_t)x & 15) == 0) {
    return *(const float4 *)x;
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

/* Two codes, of low in the lower byte. The instruction rounds as quire_e4m3_round does but for NaN, whose sign it
 * drops. */
QUIRE_DEVICE uint32_t quantise_pair(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

QUIRE_DEVICE float quantise_scaled(float x, float scale, float inverse, bool any_scale) {
  return any_scale ? __fdiv_rn(x, scale) : __fmul_rn(x, inverse);
}

/* Four codes of this lane's values, lowest byte first; the block's scale to all lanes. Whole warp. */
QUIRE_DEVICE uint32_t quantise_block(float4 x, bool any_scale, float *scale_out) {
  float amax = 0.0f;
  amax = quantise_larger(amax, fabsf(x.x));
  amax = quantise_larger(amax, fabsf(x.y));
  amax = quantise_larger(amax, fabsf(x.z));
  amax = quantise_larger(amax, fabsf(x.w));
  for (int step = 16; step > 0; step /= 2) {
    amax = quantise_larger(amax, __shfl_xor_sync(~0u, amax, step));
  }
  float scale = any_scale ? quire_any_scale_of(amax) : quire_scale_of(amax);
  float inverse = quire_scale_inverse(amax);
  *scale_out = scale;
  float a = quantise_scaled(x.x, scale, inverse, any_scale);
  float b = quantise_scaled(x.y, scale, inverse, any_scale);
  float c = quantise_scaled(x.z, scale, inverse, any_scale);
  float d = quantise_scaled(x.w, scale, inverse, any_scale);
  return quantise_pair(a, b) | quantise_pair(c, d) << 16;
}

#endif
