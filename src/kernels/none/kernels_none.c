/* In the place of src/kernels/cuda when the build has no CUDA. */
#include "base/assert.h"
#include "kernels/kernels_cuda.h"

const struct quire_kernels *quire_kernels_cuda(void) { return NULL; }

enum quire_status quire_kernels_cuda_load(const struct quire_kernels_cuda_load *load, struct quire_error *error_out) {
  QUIRE_ASSERT(load != NULL);
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "built without it");
}

bool quire_cuda_select_streams(const char **why_out) {
  if (why_out != NULL) {
    *why_out = "built without it";
  }
  return false;
}

int64_t quire_cuda_select_scratch(const struct quire_device *device, int32_t heads, int32_t topk, int32_t rows,
                                  int32_t limit_max) {
  QUIRE_ASSERT(device != NULL && heads >= 0 && topk >= 0 && rows >= 0 && limit_max >= 0);
  return 0;
}
