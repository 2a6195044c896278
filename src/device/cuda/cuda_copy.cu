/* Copy lists on multiprocessors, and the delay of deferred streams. */
#include <cuda_runtime.h>

#include "device/cuda/cuda_private.h"
#include "device/scattered_copy.cuh"

#define WIDTH_DEFAULT 32
#define WIDTH_DEFAULT_SMALL 64

struct list_items {
  const struct quire_copy *list;
  int32_t batches_per_item;

  typedef struct quire_copy entry;

  __device__ entry fetch(int32_t u) const { return list[u / batches_per_item]; }
  __device__ void resolve(int32_t u, entry item, struct quire_copy *item_out, uint32_t *from_out) const {
    *item_out = item;
    *from_out = (uint32_t)(u % batches_per_item) * QUIRE_SCATTER_BYTES;
  }
  __device__ void item(int32_t i, struct quire_copy *item_out) const { *item_out = list[i]; }
};

static __global__ void delay_kernel(uint32_t ns) {
  for (uint32_t done = 0; done < ns; done += 1000) {
    __nanosleep(1000);
  }
}

cudaError_t quire_cuda_copy_list(const struct quire_copy *list, int32_t count, uint32_t bytes_max, int32_t width,
                                 cudaStream_t stream) {
  struct list_items items = {list, quire_scatter_batches(bytes_max)};
  if (quire_scatter_is_small(bytes_max)) {
    return quire_scatter_small_launch(items, count, bytes_max, width > 0 ? width : WIDTH_DEFAULT_SMALL, stream);
  }
  return quire_scatter_large_launch(items, count * items.batches_per_item, width > 0 ? width : WIDTH_DEFAULT, stream);
}

cudaError_t quire_cuda_delay(uint32_t ns, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}
