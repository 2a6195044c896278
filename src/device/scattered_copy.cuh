/* A copy of many scattered items by few multiprocessors: the loop that copy lists and the gather of pages share.
 *
 * A warp takes a batch of 4 KiB, 8 loads of 16 bytes a lane, all under way before the first store; 32 warps a
 * multiprocessor keep 128 KiB under way, enough for a link to a peer from a dozen of them.
 *
 *     large items    | batch 0 | batch 1 | .. | rest |     a batch is 4 KiB of one item
 *     small items    | item | item | item | item | ... |   a batch is as many items as fit
 *
 * Items are given by a functor, void operator()(int32_t i, struct quire_copy *item_out) const, i in [0, items), with at
 * most bytes_max bytes each (below 4 GiB), 0 for none. What is not a multiple of 16 in address or size goes byte by byte.
 *
 * Measured beside it on two H200 and left: the bulk copy engine through shared memory (the same rate from 16
 * multiprocessors, half of it from 8, three quarters for rows of 656 bytes), one copy call an item (3 us each), a batch of
 * copy calls (1.2 us each). */
#ifndef QUIRE_DEVICE_SCATTERED_COPY_CUH
#define QUIRE_DEVICE_SCATTERED_COPY_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "device/device.h"

#define QUIRE_SCATTER_THREADS 1024
#define QUIRE_SCATTER_LOADS 8
#define QUIRE_SCATTER_BATCH (32 * QUIRE_SCATTER_LOADS) /* chunks of 16 bytes */

/* How items are cut, the same for a whole launch. */
struct quire_scatter {
  int32_t batches;
  int32_t batches_per_item; /* large items, else 1 */
  int32_t items_per_batch;  /* small items, else 1 */
  int32_t chunks;           /* of 16 bytes in an item, at most QUIRE_SCATTER_BATCH for small ones */
};

static inline struct quire_scatter quire_scatter_of(int32_t items, uint32_t bytes_max) {
  struct quire_scatter cut;
  int32_t chunks = (int32_t)((bytes_max + 15) / 16);
  bool large = chunks * 2 > QUIRE_SCATTER_BATCH;
  cut.batches_per_item = large ? (int32_t)((chunks + QUIRE_SCATTER_BATCH - 1) / QUIRE_SCATTER_BATCH) : 1;
  cut.items_per_batch = large ? 1 : (int32_t)(QUIRE_SCATTER_BATCH / chunks);
  cut.chunks = large ? QUIRE_SCATTER_BATCH : (int32_t)chunks;
  cut.batches = large ? items * cut.batches_per_item : (items + cut.items_per_batch - 1) / cut.items_per_batch;
  return cut;
}

static __device__ __forceinline__ bool quire_scatter_fast(const struct quire_copy &item) {
  return (((uint64_t)item.target | (uint64_t)item.source | item.bytes) & 15) == 0;
}

static __device__ __forceinline__ uint4 quire_scatter_load(const uint8_t *source) {
  return __ldcs((const uint4 *)source);
}

/* 4 KiB of one item. */
static __device__ __forceinline__ void quire_scatter_large(const struct quire_copy &item, uint32_t from, int lane) {
  uint8_t *target = (uint8_t *)item.target + from;
  const uint8_t *source = (const uint8_t *)item.source + from;
  uint32_t left = (uint32_t)item.bytes - from;
  if (!quire_scatter_fast(item)) {
    for (uint32_t i = (uint32_t)lane; i < left && i < QUIRE_SCATTER_BATCH * 16; i += 32) {
      target[i] = source[i];
    }
    return;
  }
  uint4 value[QUIRE_SCATTER_LOADS];
  int chunks = (int)(left / 16) - lane;
  target += lane * 16;
  source += lane * 16;
#pragma unroll
  for (int i = 0; i < QUIRE_SCATTER_LOADS; i++) {
    if (i * 32 < chunks) {
      value[i] = quire_scatter_load(source + i * 512);
    }
  }
#pragma unroll
  for (int i = 0; i < QUIRE_SCATTER_LOADS; i++) {
    if (i * 32 < chunks) {
      __stcs((uint4 *)(target + i * 512), value[i]);
    }
  }
}

/* Several items, a lane reads chunks of them in turn. */
template <typename Items>
static __device__ __forceinline__ void quire_scatter_small(const Items &items, const struct quire_scatter &cut,
                                                           int32_t first, int32_t count, int lane) {
  uint4 value[QUIRE_SCATTER_LOADS];
  uint8_t *target[QUIRE_SCATTER_LOADS];
#pragma unroll
  for (int i = 0; i < QUIRE_SCATTER_LOADS; i++) {
    int chunk = i * 32 + lane, item = chunk / cut.chunks;
    uint32_t at = (uint32_t)(chunk - item * cut.chunks) * 16;
    struct quire_copy one = {NULL, NULL, 0};
    if (item < cut.items_per_batch && first + item < count) {
      items(first + item, &one);
    }
    target[i] = NULL;
    if (at < one.bytes && quire_scatter_fast(one)) {
      target[i] = (uint8_t *)one.target + at;
      value[i] = quire_scatter_load((const uint8_t *)one.source + at);
    } else {
      for (uint32_t b = at; b < at + 16 && b < one.bytes; b++) {
        ((uint8_t *)one.target)[b] = ((const uint8_t *)one.source)[b];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < QUIRE_SCATTER_LOADS; i++) {
    if (target[i] != NULL) {
      __stcs((uint4 *)target[i], value[i]);
    }
  }
}

/* Both are called by all threads of a grid of blocks of QUIRE_SCATTER_THREADS; which of them, says items_per_batch. */
template <typename Items>
static __device__ __forceinline__ void quire_scattered_small(const Items &items, const struct quire_scatter &cut,
                                                             int32_t count) {
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  int32_t step = (int32_t)gridDim.x * (QUIRE_SCATTER_THREADS / 32);
  for (int32_t batch = (int32_t)warp * gridDim.x + blockIdx.x; batch < cut.batches; batch += step) {
    quire_scatter_small(items, cut, batch * cut.items_per_batch, count, lane);
  }
}

template <typename Items>
static __device__ __forceinline__ void quire_scattered_large(const Items &items, const struct quire_scatter &cut) {
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  int32_t step = (int32_t)gridDim.x * (QUIRE_SCATTER_THREADS / 32);
  int32_t batch = (int32_t)warp * gridDim.x + blockIdx.x;
  struct quire_copy next = {NULL, NULL, 0};
  if (batch < cut.batches) {
    items(batch / cut.batches_per_item, &next);
  }
  while (batch < cut.batches) {
    struct quire_copy item = next;
    uint32_t from = (uint32_t)(batch % cut.batches_per_item) * QUIRE_SCATTER_BATCH * 16;
    batch += step;
    next.bytes = 0;
    if (batch < cut.batches) {
      items(batch / cut.batches_per_item, &next); /* its load is under way while this batch's are */
    }
    if (from < item.bytes) {
      quire_scatter_large(item, from, lane);
    }
  }
}

/* The kernel of a kind of items, in the width and shape that `cut` asks for. */
template <typename Items>
static __global__ void __launch_bounds__(QUIRE_SCATTER_THREADS)
    quire_scatter_large_kernel(Items items, struct quire_scatter cut) {
  quire_scattered_large(items, cut);
}

template <typename Items>
static __global__ void __launch_bounds__(QUIRE_SCATTER_THREADS)
    quire_scatter_small_kernel(Items items, struct quire_scatter cut, int32_t count) {
  quire_scattered_small(items, cut, count);
}

/* Launches them on at most `width` multiprocessors of the current device. */
template <typename Items>
static inline cudaError_t quire_scatter_launch(const Items &items, int32_t count, uint32_t bytes_max, int32_t width,
                                               cudaStream_t stream) {
  struct quire_scatter cut = quire_scatter_of(count, bytes_max);
  int32_t blocks = (cut.batches + QUIRE_SCATTER_THREADS / 32 - 1) / (QUIRE_SCATTER_THREADS / 32);
  unsigned grid = (unsigned)(blocks < width ? blocks : width);
  if (cut.items_per_batch > 1) {
    quire_scatter_small_kernel<<<grid, QUIRE_SCATTER_THREADS, 0, stream>>>(items, cut, count);
  } else {
    quire_scatter_large_kernel<<<grid, QUIRE_SCATTER_THREADS, 0, stream>>>(items, cut);
  }
  return cudaGetLastError();
}

#endif
