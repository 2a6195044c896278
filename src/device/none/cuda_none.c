/* In the place of src/device/cuda when the build has no CUDA. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"

bool quire_cuda_describe(struct quire_cuda_info *info_out) {
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  (void)snprintf(info_out->why, sizeof info_out->why, "built without it (configure with -DQUIRE_CUDA=ON)");
  return false;
}
