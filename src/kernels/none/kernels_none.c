/* In the place of src/kernels/cuda when the build has no CUDA. */
#include "base/assert.h"
#include "kernels/kernels_cuda.h"

const struct quire_kernels *quire_kernels_cuda(void) { return NULL; }

int64_t quire_cuda_select_scratch(const struct quire_device *device, int32_t heads, int32_t topk, int32_t rows,
                                  int32_t limit_max) {
  QUIRE_ASSERT(device != NULL && heads >= 0 && topk >= 0 && rows >= 0 && limit_max >= 0);
  return 0;
}
