/* Keys on their way to those who multiply, where rows are few a source: three rings in shared memory, one a warp group,
 * each filled by a warp of its own and as tensor cores expect it. A stage is the warp group's 64 positions of a unit.
 *
 * Whole pages are copied by the copy engine, which counts at the stage's barrier what is there, so that nobody waits or
 * fences; the tensor maps that it swizzles by are those of select_maps.h.
 *
 * A lane holds the page of every 32nd unit, found long before, and has it copied when its turn comes.
 *
 * A shape S has: HEADS, ROWS, KEYS (of a unit), STAGES.
 *
 * Internal to select. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_STREAM_CUH
#define QUIRE_KERNELS_CUDA_SELECT_STREAM_CUH

#include "kernels/cuda/select_maps.h"
#include "kernels/cuda/select_stage.cuh"

#define HEADS_KEPT 2 /* tiles with room for their heads: keys of the next come while the last of this are multiplied */

template <typename S> struct __align__(1024) stream_ring {
  uint8_t heads[HEADS_KEPT][S::ROWS * S::HEADS * KEY_BYTES];
  uint8_t keys[MATH_GROUPS][S::STAGES][64 * KEY_BYTES];
  float weights[HEADS_KEPT][S::ROWS * S::HEADS];
  float scales[MATH_GROUPS][S::STAGES][64];
  uint64_t full[MATH_GROUPS][S::STAGES], empty[MATH_GROUPS][S::STAGES];
  uint64_t heads_full[HEADS_KEPT], heads_empty[HEADS_KEPT];
};

/* One thread; a __syncthreads follows. */
template <typename S> QUIRE_DEVICE void stream_init(struct stream_ring<S> *ring) {
  for (int group = 0; group < MATH_GROUPS; group++) {
    for (int stage = 0; stage < S::STAGES; stage++) {
      hopper_barrier_init(&ring->full[group][stage], HOPPER_WARP_ARRIVALS);
      hopper_barrier_init(&ring->empty[group][stage], 4 * HOPPER_WARP_ARRIVALS);
    }
  }
  for (int i = 0; i < HEADS_KEPT; i++) {
    hopper_barrier_init(&ring->heads_full[i], 1);
    hopper_barrier_init(&ring->heads_empty[i], MATH_WARPS * HOPPER_WARP_ARRIVALS);
  }
  hopper_barrier_init_fence();
}

/* Codes and weights of the heads of a tile's rows; rows that it does not have are left as they are, for nobody looks at
 * their scores. One thread. */
template <typename S>
QUIRE_DEVICE void stream_heads(const struct select_args &args, struct stream_ring<S> *ring, int kept,
                               const struct item &item) {
  uint64_t *barrier = &ring->heads_full[kept];
  uint32_t heads = (uint32_t)item.tile.rows * S::HEADS;
  const uint8_t *codes = args.codes + (int64_t)item.tile.row * S::HEADS * KEY_BYTES;
  const float *weights = args.weights + (int64_t)item.tile.row * S::HEADS;
  hopper_barrier_expect(barrier, heads * (KEY_BYTES + 4));
  hopper_copy_bulk(hopper_shared(ring->heads[kept]), codes, heads * KEY_BYTES, barrier);
  hopper_copy_bulk(hopper_shared(ring->weights[kept]), weights, heads * 4, barrier);
}

/* A stage of a warp group. */
struct stream_stage {
  uint32_t keys, scales; /* in shared memory */
  uint64_t *full;
};

template <typename S>
QUIRE_DEVICE struct stream_stage stream_stage_of(struct stream_ring<S> *ring, int group, int stage) {
  struct stream_stage of = {hopper_shared(ring->keys[group][stage]), hopper_shared(ring->scales[group][stage]),
                            &ring->full[group][stage]};
  return of;
}

/* Keys and scales of a whole page. One thread. */
QUIRE_DEVICE void stream_page(const struct select_args &args, const struct quire_cuda_maps &maps,
                              const struct stream_stage &stage, const uint8_t *page) {
  uint64_t at = (uint64_t)(page + args.key.offset);
  int32_t row = (int32_t)(at >> 7) & ((1 << (MEMORY_LAYER_BITS - 7)) - 1);
  hopper_barrier_announce(stage.full, 64 * (KEY_BYTES + 4));
  hopper_copy_box(stage.keys, &maps.of[at >> 4 & (MEMORY_ORIGINS - 1)], row, (int32_t)(at >> MEMORY_LAYER_BITS),
                  stage.full);
  hopper_copy_bulk(stage.scales, page + args.scale.offset, 64 * 4, stage.full);
}

/* Pages of 32 units of a warp group, a lane each, and of the 32 behind them; NULL as whole_page. */
struct stream_pages {
  const struct quire_kv_source *source;
  int32_t limit, position; /* of the lane's page that is held */
  const uint8_t *held, *behind;
};

template <typename S>
QUIRE_DEVICE void stream_pages_begin(const struct select_args &args, const struct quire_kv_source *source,
                                     int32_t position, int32_t limit, struct stream_pages *pages) {
  pages->source = source;
  pages->limit = limit;
  pages->position = position + (int32_t)threadIdx.x % 32 * S::KEYS;
  pages->held = whole_page(args, *source, pages->position, limit);
  pages->behind = whole_page(args, *source, pages->position + 32 * S::KEYS, limit);
}

template <typename S>
QUIRE_DEVICE void stream_pages_next(const struct select_args &args, struct stream_pages *pages) {
  pages->position += 32 * S::KEYS;
  pages->held = pages->behind;
  pages->behind = whole_page(args, *pages->source, pages->position + 32 * S::KEYS, pages->limit);
}

/* Fills a stage with the page that lane `lane` holds. What is not a whole page is there when the warp arrives. */
QUIRE_DEVICE void stream_fill(const struct select_args &args, const struct quire_cuda_maps &maps,
                              const struct stream_stage &stage, const struct stream_pages &pages, int lane) {
  bool whole = pages.held != NULL;
  if ((int)threadIdx.x % 32 == lane && whole) {
    stream_page(args, maps, stage, pages.held);
  }
  if (!__shfl_sync(~0u, whole, lane)) {
    int32_t position = __shfl_sync(~0u, pages.position, lane);
    copy_rows<32>(args, *pages.source, stage.keys, stage.scales, position, pages.limit);
    hopper_copies_commit();
    hopper_copies_wait<0>();
    hopper_proxy_fence();
  }
  hopper_barrier_arrive_warp(stage.full);
}

/* The work of the warp that fills the ring of `group`; the first also has the heads copied. */
template <typename S>
QUIRE_DEVICE void stream_keys(const struct select_args &args, const struct quire_cuda_maps &maps,
                              struct stream_ring<S> *ring, int group) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct turn turn = {0, 0};
  struct turn heads = {0, 0};
  int32_t base = select_base(args) + group * 64;
  while (walk_next(args, &walk, &item)) {
    struct quire_kv_source source = args.rows.sources[item.tile.source];
    struct stream_pages pages;
    stream_pages_begin<S>(args, &source, base + item.begin * S::KEYS, item.tile.limit, &pages);
    if (group == 0) {
      hopper_barrier_wait(&ring->heads_empty[heads.stage], heads.phase ^ 1);
      if (threadIdx.x % 32 == 0) {
        stream_heads<S>(args, ring, heads.stage, item);
      }
      turn_next<HEADS_KEPT>(&heads);
    }
    for (int32_t unit = 0; unit < item.end - item.begin; unit++) {
      if (unit > 0 && unit % 32 == 0) {
        stream_pages_next<S>(args, &pages);
      }
      hopper_barrier_wait(&ring->empty[group][turn.stage], turn.phase ^ 1);
      stream_fill(args, maps, stream_stage_of<S>(ring, group, turn.stage), pages, unit % 32);
      turn_next<S::STAGES>(&turn);
    }
  }
}

#endif
