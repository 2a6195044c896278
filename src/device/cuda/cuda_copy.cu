/* Copy lists on multiprocessors, and the delay of deferred streams. */
#include <cuda_runtime.h>

#include "base/assert.h"
#include "device/cuda/cuda_private.h"
#include "device/scattered_copy.cuh"

#define WIDTH_DEFAULT 32
#define WIDTH_DEFAULT_SMALL 64

struct list_items {
  const struct quire_copy *list;
  struct quire_scatter_split split;

  struct entry {
    struct quire_copy item;
    int32_t piece;
  };

  __device__ entry fetch(int32_t u) const {
    int32_t i = u / split.pieces;
    return {list[i], u - i * split.pieces};
  }
  __device__ struct quire_copy resolve(const entry &e) const {
    uint64_t from = (uint64_t)e.piece * split.piece_bytes;
    if (from >= e.item.bytes) {
      return {NULL, NULL, 0};
    }
    return {(uint8_t *)e.item.target + from, (const uint8_t *)e.item.source + from,
            e.item.bytes - from < split.piece_bytes ? e.item.bytes - from : split.piece_bytes};
  }
  __device__ void item(int32_t i, struct quire_copy *item_out) const { *item_out = list[i]; }
};

static __global__ void delay_kernel(uint32_t ns) {
  for (uint32_t done = 0; done < ns; done += 1000) {
    __nanosleep(1000);
  }
}

cudaError_t quire_cuda_load_copies(void) {
  struct cudaFuncAttributes attributes;
  const void *const kernels[] = {(const void *)quire_scatter_small_kernel<struct list_items>,
                                 (const void *)quire_scatter_large_kernel<struct list_items>,
                                 (const void *)delay_kernel};
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && error == cudaSuccess; i++) {
    error = cudaFuncGetAttributes(&attributes, kernels[i]);
  }
  return error;
}

cudaError_t quire_cuda_copy_list(const struct quire_copy *list, int32_t count, uint32_t bytes_max, int32_t width,
                                 cudaStream_t stream) {
  QUIRE_ASSERT(list != NULL && count >= 0 && bytes_max > 0 && width >= 0);
  struct list_items items = {list, quire_scatter_split(bytes_max)};
  bool small = quire_scatter_is_small(bytes_max);
  int32_t multiprocessors = width > 0 ? width : small ? WIDTH_DEFAULT_SMALL : WIDTH_DEFAULT;
  int32_t most = QUIRE_SCATTER_PIECES_MAX / items.split.pieces;
  cudaError_t error = cudaSuccess;
  for (int32_t some; error == cudaSuccess && count > 0; count -= some, items.list += some) {
    some = count < most ? count : most;
    error = small ? quire_scatter_small_launch(items, some, bytes_max, multiprocessors, stream)
                  : quire_scatter_large_launch(items, some * items.split.pieces, multiprocessors, NULL, stream);
  }
  return error;
}

cudaError_t quire_cuda_delay(uint32_t ns, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}
