/* finite: a warp a row; what is not below 2^127 in size cannot be stored, NaN included. */
#include <cuda_runtime.h>

#include "base/assert.h"
#include "kernels/cuda/cuda_finite.h"

#define THREADS 256
#define LIMIT 1.7014118346046923e38f /* 2^127 */

static __global__ void __launch_bounds__(THREADS) finite_kernel(struct quire_finite args) {
  int32_t row = (int32_t)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32), lane = (int32_t)threadIdx.x % 32;
  bool bad = false;
  if (row < args.m) {
    const float *x = args.x + row * args.x_ld;
    for (int32_t i = lane; i < args.n; i += 32) {
      bad = bad || !(fabsf(x[i]) < LIMIT);
    }
  }
  if (__any_sync(0xFFFFFFFFu, bad) && lane == 0) {
    args.flags_out[row] = 1;
  }
}

enum quire_status quire_cuda_finite(void *stream, const struct quire_finite *finite) {
  QUIRE_ASSERT(finite->m >= 0 && finite->flags_out != NULL && (finite->m <= 1 || finite->x_ld >= finite->n));
  unsigned blocks = (unsigned)((finite->m + THREADS / 32 - 1) / (THREADS / 32));
  if (blocks > 0) {
    finite_kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*finite);
  }
  return cudaPeekAtLastError() == cudaSuccess ? QUIRE_OK : QUIRE_ERR_RANK;
}
