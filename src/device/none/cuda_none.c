/* In the place of src/device/cuda when the build has no CUDA. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"
#include "device/device_private.h"

bool quire_cuda_describe(struct quire_cuda_info *info_out) {
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  (void)snprintf(info_out->why, sizeof info_out->why, "built without it (configure with -DQUIRE_CUDA=ON)");
  return false;
}

static enum quire_status none_open(const struct quire_env *env, int32_t index, struct quire_device **device_out,
                                   struct quire_error *error_out) {
  struct quire_cuda_info info;
  (void)env;
  (void)device_out;
  (void)quire_cuda_describe(&info);
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "GPU %d: %s", (int)index, info.why);
}

/* Nothing can be made without a device, so the other slots are never called. */
const struct quire_device_ops quire_device_cuda_ops = {.kind = QUIRE_DEVICE_CUDA, .open = none_open};
