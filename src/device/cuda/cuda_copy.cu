/* Copy lists on multiprocessors, and the delay of deferred streams. */
#include <cuda_runtime.h>

#include "device/cuda/cuda_private.h"
#include "device/scattered_copy.cuh"

#define WIDTH_DEFAULT 32

struct list_items {
  const struct quire_copy *list;

  __device__ void operator()(int32_t i, struct quire_copy *item_out) const { *item_out = list[i]; }
};

static __global__ void delay_kernel(uint32_t ns) {
  for (uint32_t done = 0; done < ns; done += 1000) {
    __nanosleep(1000);
  }
}

cudaError_t quire_cuda_copy_list(const struct quire_copy *list, int32_t count, uint32_t bytes_max, int32_t width,
                                 cudaStream_t stream) {
  struct list_items items = {list};
  return quire_scatter_launch(items, count, bytes_max, width > 0 ? width : WIDTH_DEFAULT, stream);
}

cudaError_t quire_cuda_delay(uint32_t ns, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}
