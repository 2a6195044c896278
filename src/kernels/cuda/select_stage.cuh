/* What the score kernels of select share: a block's walk along the line of units, and how blocks of 64 positions are
 * found and copied; and the ring of keys and the warp group that fills it where rows are many (few: select_stream.cuh).
 *
 * Keys come in stages of S::KEYS = 64 positions, in a ring in shared memory, as tensor cores expect them; the heads of
 * a tile come with its first stage.
 *
 * A shape S has: HEADS, TILE_ROWS, KEYS, STAGES, AHEAD (stages whose copies are under way).
 *
 * Internal to select. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_STAGE_CUH
#define QUIRE_KERNELS_CUDA_SELECT_STAGE_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/select_parts.cuh"

#define MATH_GROUPS 3
#define MATH_WARPS (MATH_GROUPS * 4)
#define COPY_THREADS 128
#define THREADS (MATH_GROUPS * 128 + COPY_THREADS)
#define SHARED_MAX (227 * 1024)
#define STAGES_MAX 8
#define KEY_BYTES QUIRE_INDEX_DIM

template <typename S> struct __align__(1024) select_ring {
  uint8_t heads[S::TILE_ROWS * S::HEADS * KEY_BYTES];
  uint8_t keys[S::STAGES][S::KEYS * KEY_BYTES];
  float weights[S::TILE_ROWS * S::HEADS];
  float scales[S::STAGES][S::KEYS];
  uint64_t full[S::STAGES], empty[S::STAGES];
  uint64_t heads_empty;
};

/* One thread; a __syncthreads follows. */
template <typename S> QUIRE_DEVICE void ring_init(struct select_ring<S> *ring) {
  for (int stage = 0; stage < S::STAGES; stage++) {
    hopper_barrier_init(&ring->full[stage], COPY_THREADS);
    hopper_barrier_init(&ring->empty[stage], MATH_WARPS * HOPPER_WARP_ARRIVALS);
  }
  hopper_barrier_init(&ring->heads_empty, MATH_WARPS * HOPPER_WARP_ARRIVALS);
  hopper_barrier_init_fence();
}

/* A piece of the line, item by item. */
struct walk {
  int64_t unit, end;
  int32_t tile;
};

/* What a block does of one tile. */
struct item {
  struct select_tile tile;
  int32_t index;      /* of the tile */
  int32_t begin, end; /* units of the tile */
};

QUIRE_DEVICE struct walk walk_begin(const struct select_args &args) {
  struct walk walk;
  walk.unit = select_piece_begin(args.plan->units, blockIdx.x, gridDim.x);
  walk.end = select_piece_begin(args.plan->units, blockIdx.x + 1, gridDim.x);
  walk.tile = walk.unit < walk.end ? select_tile_of(args, walk.unit) : 0;
  return walk;
}

QUIRE_DEVICE bool walk_next(const struct select_args &args, struct walk *walk, struct item *item_out) {
  if (walk->unit >= walk->end) {
    return false;
  }
  struct item item;
  item.index = walk->tile++;
  item.tile = args.tiles[item.index];
  item.begin = (int32_t)(walk->unit - item.tile.begin);
  int64_t left = walk->end - item.tile.begin;
  item.end = left < item.tile.units ? (int32_t)left : item.tile.units;
  walk->unit += item.end - item.begin;
  *item_out = item;
  return true;
}

/* Place in a ring. */
struct turn {
  int stage;
  uint32_t phase;
};

template <int STAGES> QUIRE_DEVICE void turn_next(struct turn *turn) {
  turn->stage++;
  if (turn->stage == STAGES) {
    turn->stage = 0;
    turn->phase ^= 1;
  }
}

/* Address of a piece of the row at a position of the source. */
QUIRE_DEVICE const uint8_t *source_row(const struct quire_kv_source &source, const struct quire_piece &piece, int which,
                                       int32_t position) {
  if (position < source.prefix_end) {
    int32_t page = position / source.page_tokens;
    return source.pages[page] + piece.offset + (position - page * source.page_tokens) * piece.row_bytes;
  }
  int32_t row = source.fresh_first + (position - source.prefix_end);
  row -= row >= source.fresh_capacity ? source.fresh_capacity : 0;
  return source.fresh[which] + (int64_t)row * piece.row_bytes;
}

/* Codes and weights of the heads of a tile's rows; zeros for rows it does not have. */
template <typename S>
QUIRE_DEVICE void copy_heads(const struct select_args &args, struct select_ring<S> *ring, const struct item &item) {
  int thread = threadIdx.x % COPY_THREADS;
  const uint8_t *codes = args.codes + (int64_t)item.tile.row * S::HEADS * KEY_BYTES;
  const float *weights = args.weights + (int64_t)item.tile.row * S::HEADS;
  int heads = item.tile.rows * S::HEADS;
#pragma unroll 1
  for (int at = thread * 16; at < S::TILE_ROWS * S::HEADS * KEY_BYTES; at += COPY_THREADS * 16) {
    bool read = at < heads * KEY_BYTES;
    hopper_copy16(hopper_shared(ring->heads) + at, read ? codes + at : codes, read);
  }
  for (int head = thread * 4; head < S::TILE_ROWS * S::HEADS; head += COPY_THREADS * 4) {
    bool read = head < heads;
    hopper_copy16(hopper_shared(ring->weights) + head * 4, read ? weights + head : weights, read);
  }
}

/* A block of 64 positions that is not one whole page, by THREADS_ threads: row by row, zeros for what lies outside
 * [first, limit). */
template <int THREADS_>
QUIRE_DEVICE void copy_rows(const struct select_args &args, const struct quire_kv_source &source, uint32_t keys,
                            uint32_t scales, int32_t position, int32_t limit) {
  int thread = threadIdx.x % THREADS_;
#pragma unroll 1
  for (int row = thread / 8; row < 64; row += THREADS_ / 8) {
    bool read = position + row >= args.rows.first && position + row < limit;
    const uint8_t *from = read ? source_row(source, args.key, 0, position + row) : args.codes;
    hopper_copy16(keys + select_swizzled(row, thread % 8), from + thread % 8 * 16, read);
  }
  for (int row = thread; row < 64; row += THREADS_) {
    bool read = position + row >= args.rows.first && position + row < limit;
    const uint8_t *from = read ? source_row(source, args.scale, 1, position + row) : args.codes;
    hopper_copy4(scales + row * 4, from, read);
  }
}

/* The page that holds the 64 positions from `position` on; NULL where they are not one whole page of 64. */
QUIRE_DEVICE const uint8_t *whole_page(const struct select_args &args, const struct quire_kv_source &source,
                                       int32_t position, int32_t limit) {
  int32_t end = limit < source.prefix_end ? limit : source.prefix_end;
  bool whole = source.page_tokens == 64 && position >= args.rows.first && position + 64 <= end;
  return whole ? source.pages[position / 64] : NULL;
}

/* The table of pages is read long before keys are copied, so that nobody waits for it: a lane holds one page of the
 * next 32 blocks of 64 positions, and one of those behind them. */
struct pages_ahead {
  const struct quire_kv_source *source;
  int32_t limit;
  int32_t position; /* of the first page held */
  const uint8_t *held, *behind;
};

QUIRE_DEVICE const uint8_t *pages_find(const struct select_args &args, const struct pages_ahead &pages,
                                       int32_t position) {
  return whole_page(args, *pages.source, position + (int32_t)threadIdx.x % 32 * 64, pages.limit);
}

QUIRE_DEVICE void pages_begin(const struct select_args &args, const struct quire_kv_source *source, int32_t position,
                              int32_t limit, struct pages_ahead *pages) {
  pages->source = source;
  pages->limit = limit;
  pages->position = position;
  pages->held = pages_find(args, *pages, position);
  pages->behind = pages_find(args, *pages, position + 32 * 64);
}

/* The page of the 64 positions from `position` on, which never goes back; NULL as whole_page. */
QUIRE_DEVICE const uint8_t *pages_at(const struct select_args &args, struct pages_ahead *pages, int32_t position) {
  if (position >= pages->position + 32 * 64) {
    pages->position += 32 * 64;
    pages->held = pages->behind;
    pages->behind = pages_find(args, *pages, pages->position + 32 * 64);
  }
  return (const uint8_t *)__shfl_sync(~0u, (unsigned long long)pages->held, (position - pages->position) / 64);
}

/* Keys and scales of the 64 positions from `position` on. */
template <typename S>
QUIRE_DEVICE void copy_stage(const struct select_args &args, struct select_ring<S> *ring, int stage, int32_t position,
                             struct pages_ahead *pages) {
  int thread = threadIdx.x % COPY_THREADS;
  uint32_t keys = hopper_shared(ring->keys[stage]);
  uint32_t scales = hopper_shared(ring->scales[stage]);
  const uint8_t *page = pages_at(args, pages, position);
  if (page == NULL) {
    copy_rows<COPY_THREADS>(args, *pages->source, keys, scales, position, pages->limit);
    return;
  }
  const uint8_t *from = page + args.key.offset + thread * 16;
  uint32_t to = keys + select_swizzled(thread / 8, thread % 8);
#pragma unroll
  for (int step = 0; step < 64 * KEY_BYTES; step += COPY_THREADS * 16) {
    hopper_copy16(to + step, from + step, true);
  }
  if (thread < 16) {
    hopper_copy16(scales + thread * 16, page + args.scale.offset + thread * 16, true);
  }
}

/* Hands over the oldest stage that is not: all but the last `COUNT` groups of copies are there. */
template <typename S, int COUNT> QUIRE_DEVICE void stage_full(struct select_ring<S> *ring, struct turn *turn) {
  hopper_copies_wait<COUNT>();
  hopper_proxy_fence();
  hopper_barrier_arrive(&ring->full[turn->stage]);
  turn_next<S::STAGES>(turn);
}

/* What the copying threads know of stages: the next to fill, the next to hand over, and how many lie between. */
struct copy_turns {
  struct turn filled, handed;
  int32_t ahead;
};

/* The stage that was filled last is on its way. */
template <typename S> QUIRE_DEVICE void stage_sent(struct select_ring<S> *ring, struct copy_turns *turns) {
  hopper_copies_commit();
  turn_next<S::STAGES>(&turns->filled);
  if (++turns->ahead > S::AHEAD) {
    stage_full<S, S::AHEAD>(ring, &turns->handed);
    turns->ahead--;
  }
}

/* All stages on their way are handed over. */
template <typename S> QUIRE_DEVICE void stages_end(struct select_ring<S> *ring, struct copy_turns *turns) {
  for (; turns->ahead > 0; turns->ahead--) {
    stage_full<S, 0>(ring, &turns->handed);
  }
}

/* The copying warp group's work. Heads go with the stage that follows them. Between copies and the tensor cores that
 * read them stands a fence: the copying threads wait for a stage until S::AHEAD others are under way behind it, and
 * hand over all of a tile before they wait for the room of its heads. */
template <typename S> QUIRE_DEVICE void copy_keys(const struct select_args &args, struct select_ring<S> *ring) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct copy_turns turns = {{0, 0}, {0, 0}, 0};
  uint32_t heads = 1; /* parity of the phase in which the tile before was done with its heads */
  int32_t base = select_base(args);
  while (walk_next(args, &walk, &item)) {
    struct quire_kv_source source = args.rows.sources[item.tile.source];
    struct pages_ahead pages;
    pages_begin(args, &source, base + item.begin * S::KEYS, item.tile.limit, &pages);
    hopper_barrier_wait(&ring->heads_empty, heads);
    copy_heads<S>(args, ring, item);
    heads ^= 1;
    for (int32_t unit = item.begin; unit < item.end; unit++) {
      hopper_barrier_wait(&ring->empty[turns.filled.stage], turns.filled.phase ^ 1);
      copy_stage<S>(args, ring, turns.filled.stage, base + unit * S::KEYS, &pages);
      stage_sent<S>(ring, &turns);
    }
    stages_end<S>(ring, &turns);
  }
  hopper_copies_commit();
  hopper_copies_wait<0>(); /* no thread may end while its copies are under way */
}

#endif
