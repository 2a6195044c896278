/* A copy of many scattered items by few multiprocessors: the loop that copy lists and the gather of pages share.
 *
 * A warp takes a batch of 4 KiB, 8 loads of 16 bytes a lane, all under way before the first store; 32 warps a
 * multiprocessor keep 128 KiB under way, enough for a link to a peer from a dozen of them.
 *
 *     large items    | batch 0 | batch 1 | .. | rest |     a batch is 4 KiB of one item
 *     small items    | item | item | item | item | ... |   a batch is as many items as fit
 *
 * What is copied is given by an object with
 *
 *     typedef entry                                         large: what has to be looked up for batch u, and only that,
 *     entry fetch(int32_t u) const                                 so that it is under way while the batch before is
 *     void resolve(int32_t u, entry, struct quire_copy *item_out, uint32_t *from_out) const     4 KiB of this item
 *
 *     void item(int32_t i, struct quire_copy *item_out) const      small
 *
 * Items are below 4 GiB, 0 bytes for none. What is not a multiple of 16 in address or size goes byte by byte.
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

#define QUIRE_SCATTER_BYTES (QUIRE_SCATTER_BATCH * 16)

/* Batches of one item that is read whole. */
static inline int32_t quire_scatter_batches(uint32_t bytes) {
  return (int32_t)((bytes + QUIRE_SCATTER_BYTES - 1) / QUIRE_SCATTER_BYTES);
}

/* Is an item so small that several make a batch? */
static inline bool quire_scatter_is_small(uint32_t bytes_max) { return bytes_max * 2 <= QUIRE_SCATTER_BYTES; }

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

/* Several items, a lane reads chunks of them in turn; chunks: of 16 bytes in the largest. */
template <typename Items>
static __device__ __forceinline__ void quire_scatter_some(const Items &items, int32_t first, int32_t end, int chunks,
                                                          int lane) {
  uint4 value[QUIRE_SCATTER_LOADS];
  uint8_t *target[QUIRE_SCATTER_LOADS];
#pragma unroll
  for (int i = 0; i < QUIRE_SCATTER_LOADS; i++) {
    int chunk = i * 32 + lane, which = chunk / chunks;
    uint32_t at = (uint32_t)(chunk - which * chunks) * 16;
    struct quire_copy one = {NULL, NULL, 0};
    if (first + which < end) {
      items.item(first + which, &one);
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

template <typename Items>
static __global__ void __launch_bounds__(QUIRE_SCATTER_THREADS)
    quire_scatter_small_kernel(Items items, int32_t count, int chunks) {
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  int32_t each = QUIRE_SCATTER_BATCH / chunks, step = (int32_t)gridDim.x * (QUIRE_SCATTER_THREADS / 32) * each;
  for (int32_t i = (warp * (int32_t)gridDim.x + (int32_t)blockIdx.x) * each; i < count; i += step) {
    quire_scatter_some(items, i, i + each < count ? i + each : count, chunks, lane);
  }
}

template <typename Items>
static __global__ void __launch_bounds__(QUIRE_SCATTER_THREADS)
    quire_scatter_large_kernel(Items items, int32_t batches) {
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  int32_t step = (int32_t)gridDim.x * (QUIRE_SCATTER_THREADS / 32);
  int32_t u = warp * (int32_t)gridDim.x + (int32_t)blockIdx.x;
  typename Items::entry next;
  if (u < batches) {
    next = items.fetch(u);
  }
  while (u < batches) {
    struct quire_copy item;
    uint32_t from;
    items.resolve(u, next, &item, &from);
    u += step;
    if (u < batches) {
      next = items.fetch(u);
    }
    if (from < item.bytes) {
      quire_scatter_large(item, from, lane);
    }
  }
}

static inline unsigned quire_scatter_grid(int64_t warps, int32_t width) {
  int64_t blocks = (warps + QUIRE_SCATTER_THREADS / 32 - 1) / (QUIRE_SCATTER_THREADS / 32);
  return (unsigned)(blocks < width ? blocks : width);
}

/* Launch on at most `width` multiprocessors of the current device; batches and count > 0. */
template <typename Items>
static inline cudaError_t quire_scatter_large_launch(const Items &items, int32_t batches, int32_t width,
                                                     cudaStream_t stream) {
  quire_scatter_large_kernel<<<quire_scatter_grid(batches, width), QUIRE_SCATTER_THREADS, 0, stream>>>(items, batches);
  return cudaGetLastError();
}

template <typename Items>
static inline cudaError_t quire_scatter_small_launch(const Items &items, int32_t count, uint32_t bytes_max,
                                                     int32_t width, cudaStream_t stream) {
  int chunks = (int)((bytes_max + 15) / 16);
  unsigned grid = quire_scatter_grid((count + QUIRE_SCATTER_BATCH / chunks - 1) / (QUIRE_SCATTER_BATCH / chunks), width);
  quire_scatter_small_kernel<<<grid, QUIRE_SCATTER_THREADS, 0, stream>>>(items, count, chunks);
  return cudaGetLastError();
}

#endif
