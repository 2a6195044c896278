/* A copy of many scattered items by few multiprocessors: the loops that copy lists and the gather of pages share.
 *
 *     large items    | piece 0 | piece 1 | .. | rest |     a piece is up to 5,376 bytes of one item
 *     small items    | item | item | item | item | ... |   a batch of 4 KiB is as many items as fit
 *
 * A piece passes through shared memory by bulk copies, which run by themselves: the first lane of each of 8 warps of a
 * multiprocessor keeps a ring of 5 stages, reads ahead into 4 and writes from the oldest. 168 KB are under way from a
 * multiprocessor, and a dozen of them fill a link to a peer.
 *
 *     warp's ring    [ writing | full | reading | reading | reading ]      stage of its piece n: n mod 5
 *
 * Of small items a warp loads 8 x 16 bytes a lane, all under way before the first store: bulk copies take rows of 656
 * bytes at three quarters of that rate.
 *
 * What is copied is given by an object with
 *
 *     typedef entry                                         large: what has to be looked up for piece u, and only that,
 *     entry fetch(int32_t u) const                                 so that it is under way while the piece before is
 *     struct quire_copy resolve(entry) const                       the piece; 0 bytes for none
 *
 *     void item(int32_t i, struct quire_copy *item_out) const      small
 *
 * Items are below 4 GiB. What is not a multiple of 16 in address or size goes word by word, or byte by byte.
 *
 * Measured beside it on two H200 and left: loads for large items too (1.2 % less), rings of 4 or 3 stages (0.2 and
 * 0.7 %), pieces of 2.6 KB (6 %), a counter that the kernel itself resets (0.5 % of 64 MB), one copy call an item (3 us
 * each), a batch of copy calls (0.6 us each). */
#ifndef QUIRE_DEVICE_SCATTERED_COPY_CUH
#define QUIRE_DEVICE_SCATTERED_COPY_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "base/assert.h"
#include "device/device.h"
#include "device/hopper_barrier.cuh"

#define QUIRE_SCATTER_THREADS 1024
#define QUIRE_SCATTER_LOADS 8
#define QUIRE_SCATTER_BATCH (32 * QUIRE_SCATTER_LOADS) /* chunks of 16 bytes */

#define QUIRE_SCATTER_WARPS 8 /* of large items */
#define QUIRE_SCATTER_STAGES 5
#define QUIRE_SCATTER_STAGE 5376 /* bytes */
/* Of a launch: a warp steps beyond the last by those of all. */
#define QUIRE_SCATTER_PIECES_MAX (1 << 30)
#define QUIRE_SCATTER_SHARED (QUIRE_SCATTER_WARPS * QUIRE_SCATTER_STAGES * QUIRE_SCATTER_STAGE)

/* An item of `bytes` as equal pieces that fit a stage and begin at multiples of 128. */
struct quire_scatter_split {
  int32_t pieces;
  uint32_t piece_bytes;
};

static constexpr struct quire_scatter_split quire_scatter_split(uint32_t bytes) {
  uint32_t pieces = bytes / QUIRE_SCATTER_STAGE + (bytes % QUIRE_SCATTER_STAGE != 0);
  return {(int32_t)pieces, pieces == 0 ? 0 : (bytes / pieces + (bytes % pieces != 0) + 127) / 128 * 128};
}
static_assert(quire_scatter_split(UINT32_MAX).pieces == 798916 &&
                  quire_scatter_split(UINT32_MAX).piece_bytes == QUIRE_SCATTER_STAGE,
              "the largest item");

/* Is an item so small that several make a batch? */
static constexpr bool quire_scatter_is_small(uint32_t bytes_max) { return bytes_max <= QUIRE_SCATTER_BATCH * 16 / 2; }
static_assert(quire_scatter_is_small(2048) && !quire_scatter_is_small(2049) && !quire_scatter_is_small(1u << 31),
              "several make a batch");

static __device__ __forceinline__ bool quire_scatter_fast(const struct quire_copy &item) {
  return (((uint64_t)item.target | (uint64_t)item.source | item.bytes) & 15) == 0;
}

static __device__ __forceinline__ uint4 quire_scatter_load(const uint8_t *source) {
  return __ldcs((const uint4 *)source);
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

/* -- large items ------------------------------------------------------------------------------------------------- */

/* What a warp's first lane has under way. */
struct quire_scatter_ring {
  uint64_t full[QUIRE_SCATTER_STAGES];
  uint8_t *target[QUIRE_SCATTER_STAGES];
  uint32_t bytes[QUIRE_SCATTER_STAGES];
};

/* Begins to read a piece into a stage, once the store before the last has left it. */
static __device__ __forceinline__ void quire_scatter_read(struct quire_scatter_ring *ring, uint8_t *stages, uint32_t s,
                                                          const struct quire_copy &piece) {
  uint32_t bytes = (uint32_t)piece.bytes;
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
  ring->target[s] = (uint8_t *)piece.target;
  ring->bytes[s] = bytes;
  hopper_barrier_expect(&ring->full[s], bytes);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          hopper_shared(stages + s * QUIRE_SCATTER_STAGE)),
      "l"(piece.source), "r"(bytes), "r"(hopper_shared(&ring->full[s]))
      : "memory");
}

/* Begins to write a stage that is full. */
static __device__ __forceinline__ void quire_scatter_write(const struct quire_scatter_ring *ring, const uint8_t *stages,
                                                           uint32_t s) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(ring->target[s]),
               "r"(hopper_shared(stages + s * QUIRE_SCATTER_STAGE)), "r"(ring->bytes[s])
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* A piece of words by a warp. */
template <typename Word>
static __device__ __forceinline__ void quire_scatter_words(const struct quire_copy &piece, int lane) {
  uint32_t words = (uint32_t)(piece.bytes / sizeof(Word));
  for (uint32_t first = (uint32_t)lane; first < words; first += 32 * QUIRE_SCATTER_LOADS) {
    Word value[QUIRE_SCATTER_LOADS];
#pragma unroll
    for (uint32_t i = 0; i < QUIRE_SCATTER_LOADS; i++) {
      if (first + i * 32 < words) {
        value[i] = ((const Word *)piece.source)[first + i * 32];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < QUIRE_SCATTER_LOADS; i++) {
      if (first + i * 32 < words) {
        ((Word *)piece.target)[first + i * 32] = value[i];
      }
    }
  }
}

static __device__ __forceinline__ void quire_scatter_slow(const struct quire_copy &piece, int lane) {
  if ((((uint64_t)piece.target | (uint64_t)piece.source | piece.bytes) & 3) == 0) {
    quire_scatter_words<uint32_t>(piece, lane);
  } else {
    quire_scatter_words<uint8_t>(piece, lane);
  }
}

/* The pieces of a warp: every step-th from its own on; with claims, only as many as it has stages to read into, and
 * then what no warp has claimed yet, so that all multiprocessors end together though some read faster. A claim is under
 * way while the piece before is. */
struct quire_scatter_turn {
  int32_t u, step, claimed_from;
  uint32_t *claims;
  uint32_t ahead;

  __device__ __forceinline__ quire_scatter_turn(int warp, uint32_t *counter)
      : u(warp * (int32_t)gridDim.x + (int32_t)blockIdx.x), step((int32_t)gridDim.x * QUIRE_SCATTER_WARPS),
        claimed_from(step * (QUIRE_SCATTER_STAGES - 1)), claims(counter), ahead(0) {}

  __device__ __forceinline__ void begin(void) {
    if (claims != NULL) {
      ahead = atomicAdd(claims, 1);
    }
  }

  __device__ __forceinline__ void next(void) {
    u += step;
    if (claims != NULL && u >= claimed_from) {
      u = claimed_from + (int32_t)ahead;
      ahead = atomicAdd(claims, 1);
    }
  }
};

/* Lane 0: the warp's pieces, but for those that bulk copies cannot take. Were there any? */
template <typename Items>
static __device__ __forceinline__ bool quire_scatter_bulk(const Items &items, struct quire_scatter_ring *ring,
                                                          uint8_t *stages, struct quire_scatter_turn turn,
                                                          int32_t pieces) {
  uint32_t loaded = 0, stored = 0;
  bool left = false;
  typename Items::entry next;
  if (turn.u < pieces) {
    next = items.fetch(turn.u);
  }
  turn.begin();
  for (int i = 0; i < QUIRE_SCATTER_STAGES; i++) {
    hopper_barrier_init(&ring->full[i], 1);
  }
  hopper_barrier_init_fence();
  while (turn.u < pieces || stored < loaded) {
    if (turn.u < pieces && loaded - stored < QUIRE_SCATTER_STAGES - 1) {
      struct quire_copy piece = items.resolve(next);
      if (!quire_scatter_fast(piece)) {
        left = true;
      } else if (piece.bytes > 0) {
        quire_scatter_read(ring, stages, loaded++ % QUIRE_SCATTER_STAGES, piece);
      }
      turn.next();
      if (turn.u < pieces) {
        next = items.fetch(turn.u);
      }
    } else {
      hopper_barrier_wait(&ring->full[stored % QUIRE_SCATTER_STAGES], stored / QUIRE_SCATTER_STAGES & 1);
      quire_scatter_write(ring, stages, stored++ % QUIRE_SCATTER_STAGES);
    }
  }
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); /* shared memory lives as long as it is read */
  return left;
}

/* A warp: what bulk copies have left of the same pieces, which are every step-th. */
template <typename Items>
static __device__ __noinline__ void quire_scatter_rest(const Items &items, int32_t u, int32_t step, int32_t pieces,
                                                       int lane) {
  for (; u < pieces; u += step) {
    struct quire_copy piece = items.resolve(items.fetch(u));
    if (!quire_scatter_fast(piece)) {
      quire_scatter_slow(piece, lane);
    }
  }
}

template <typename Items>
static __global__ void __launch_bounds__(QUIRE_SCATTER_WARPS * 32, 1)
    quire_scatter_large_kernel(const __grid_constant__ Items items, int32_t pieces, uint32_t *claims) {
  extern __shared__ __align__(128) uint8_t quire_scatter_stages[];
  __shared__ struct quire_scatter_ring rings[QUIRE_SCATTER_WARPS];
  int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  struct quire_scatter_turn turn(warp, claims);
  bool left = false;
  if (lane == 0) {
    uint8_t *stages = quire_scatter_stages + warp * QUIRE_SCATTER_STAGES * QUIRE_SCATTER_STAGE;
    left = quire_scatter_bulk(items, &rings[warp], stages, turn, pieces);
  }
  if (__any_sync(0xffffffffu, left)) {
    quire_scatter_rest(items, turn.u, turn.step, pieces, lane);
  }
}

/* Blocks for as many warps' worth of work, on at most `width` multiprocessors. */
static inline unsigned quire_scatter_grid(int64_t warps, int32_t warps_a_block, int32_t width) {
  QUIRE_ASSERT(warps > 0 && warps_a_block > 0 && width > 0); /* a launch of no block is an error */
  int64_t blocks = (warps + warps_a_block - 1) / warps_a_block;
  return (unsigned)(blocks < width ? blocks : width);
}

/* Launch on at most `width` multiprocessors of the current device; pieces and count > 0, pieces at
 * most QUIRE_SCATTER_PIECES_MAX. claims: a zero on the device, of
 * this launch alone, if all items are multiples of 16 in address and size; or NULL. */
template <typename Items>
static inline cudaError_t quire_scatter_large_launch(const Items &items, int32_t pieces, int32_t width,
                                                     uint32_t *claims, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(quire_scatter_large_kernel<Items>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, QUIRE_SCATTER_SHARED);
  if (error != cudaSuccess) {
    return error;
  }
  quire_scatter_large_kernel<<<quire_scatter_grid(pieces, 1, width), QUIRE_SCATTER_WARPS * 32, QUIRE_SCATTER_SHARED,
                               stream>>>(items, pieces, claims);
  return cudaGetLastError();
}

template <typename Items>
static inline cudaError_t quire_scatter_small_launch(const Items &items, int32_t count, uint32_t bytes_max,
                                                     int32_t width, cudaStream_t stream) {
  int chunks = (int)((bytes_max + 15) / 16);
  QUIRE_ASSERT(count > 0 && chunks > 0 && chunks <= QUIRE_SCATTER_BATCH);
  int32_t each = QUIRE_SCATTER_BATCH / chunks;
  unsigned grid = quire_scatter_grid((count + each - 1) / each, QUIRE_SCATTER_THREADS / 32, width);
  quire_scatter_small_kernel<<<grid, QUIRE_SCATTER_THREADS, 0, stream>>>(items, count, chunks);
  return cudaGetLastError();
}

#endif
