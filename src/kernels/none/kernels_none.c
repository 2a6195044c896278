/* In the place of src/kernels/cuda when the build has no CUDA. */
#include "base/assert.h"
#include "kernels/kernels_cuda.h"

const struct quire_kernels *quire_kernels_cuda(void) { return NULL; }

static bool refuse(const char **why_out) {
  if (why_out != NULL) {
    *why_out = "built without CUDA";
  }
  return false;
}

bool quire_kernels_cuda_can(const struct quire_kernels_cuda_shape *shape, const char **why_out) {
  QUIRE_ASSERT(shape != NULL);
  return refuse(why_out);
}

enum quire_status quire_kernels_cuda_load(const struct quire_kernels_cuda_load *load, struct quire_error *error_out) {
  QUIRE_ASSERT(load != NULL);
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "built without it");
}

bool quire_cuda_select_streams(const char **why_out) { return refuse(why_out); }

int64_t quire_cuda_select_scratch(const struct quire_device *device, const struct quire_kernels_cuda_shape *shape) {
  QUIRE_ASSERT(device != NULL && shape != NULL);
  return 0;
}

int64_t quire_cuda_attend_scratch(const struct quire_kernels_cuda_shape *shape) {
  QUIRE_ASSERT(shape != NULL);
  return 0;
}
