/* Scores on tensor cores, streamed into lists of candidates.
 *
 * A block works on one piece of the line of units (select_parts.cuh). One warp group copies keys, three multiply:
 *
 *   keys of a stage   64 a key group          |  rows of a tile   ROWS a row group
 *   multiplying warp group = (row group, key group):  row groups x key groups = 3
 *
 * A warp group multiplies its 64 keys with the heads of its rows (ROWS * HEADS <= 128 columns), takes relu and the
 * weighted sum over heads in registers, and offers the scores, one or two a lane, to the lists of its rows; a score is
 * compared with its row's threshold and rarely written. Lists lie in global memory (the second-level cache), counts of
 * their scores in shared memory. Every SELECT_EPOCH_KEYS positions the warp groups that share a row group meet and raise
 * thresholds as far as the counts allow. A list that is nearly full all the same (rising scores, very many equal ones) is
 * cut to the k best, whose last becomes the threshold: later positions are higher, so a newcomer must beat it strictly.
 *
 * Rejected: keys by tensor maps (pages lie anywhere, in several devices), all scores of a row in memory (a quarter of
 * the work of 32 heads is then moving them), thresholds guessed from a sample (no bound on what a bad guess costs). */
#include "kernels/cuda/cuda_select.h"

#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/select_parts.cuh"
#include "kernels/cuda/select_products.cuh"

#define MATH_GROUPS 3
#define MATH_WARPS (MATH_GROUPS * 4)
#define COPY_THREADS 128
#define MATH_REGISTERS 160 /* 3 * 160 + 32 = the 4 * 128 that a block of 16 warps starts with */
#define COPY_REGISTERS 32
#define THREADS (MATH_GROUPS * 128 + COPY_THREADS)
#define SHARED_MAX (227 * 1024)
#define STAGES_MAX 8
#define AHEAD_MAX 3
#define KEY_BYTES QUIRE_INDEX_DIM

/* Barriers of threads: one a row group, one a cutting group. */
#define BARRIER_ROWS 1
#define BARRIER_CUT 5

template <int HEADS_, int ROWS_, int ROW_GROUPS_> struct shape {
  static constexpr int HEADS = HEADS_;
  static constexpr int ROWS = ROWS_; /* of a row group */
  static constexpr int ROW_GROUPS = ROW_GROUPS_;
  static constexpr int KEY_GROUPS = MATH_GROUPS / ROW_GROUPS;
  static constexpr int KEYS = 64 * KEY_GROUPS; /* of a stage */
  static constexpr int TILE_ROWS = ROWS * ROW_GROUPS;
  static constexpr int COLUMNS = HEADS * ROWS;
  static constexpr int SCORES = ROWS > 1 ? ROWS / 2 : 1; /* of a lane and 16 keys */
  /* warp groups that cut a list together, and how many such groups a row group has */
  static constexpr int CUT_WIDTH = KEY_GROUPS > ROWS ? KEY_GROUPS / ROWS : 1;
  static constexpr int CUTTERS = KEY_GROUPS / CUT_WIDTH;
  static constexpr int LINE = ROWS > 1 ? 4 : 1; /* units in a straight line of code */
  static constexpr int EPOCH = SELECT_EPOCH_KEYS / KEYS / LINE * LINE;
  static constexpr int FIXED_BYTES =
      TILE_ROWS * (HEADS * KEY_BYTES + TOPK_BINS * 4) + ROW_GROUPS * CUTTERS * (int)sizeof(struct topk_work) + 4096;
  static constexpr int STAGE_BYTES = KEYS * (KEY_BYTES + 4);
  static constexpr int STAGES_FIT = (SHARED_MAX - FIXED_BYTES) / STAGE_BYTES;
  static constexpr int STAGES = STAGES_FIT < STAGES_MAX ? STAGES_FIT : STAGES_MAX;
  static constexpr int AHEAD = STAGES - 1 < AHEAD_MAX ? STAGES - 1 : AHEAD_MAX; /* stages whose copies are under way */
  static_assert(COLUMNS <= 128 && STAGES >= 3, "a shape that fits");
};

template <typename S> struct __align__(1024) block_memory {
  uint8_t heads[S::TILE_ROWS * S::HEADS * KEY_BYTES];
  uint8_t keys[S::STAGES][S::KEYS * KEY_BYTES];
  float weights[S::TILE_ROWS * S::HEADS];
  float scales[S::STAGES][S::KEYS];
  struct topk_work work[S::ROW_GROUPS * S::CUTTERS];
  struct topk_segment segment[S::ROW_GROUPS * S::CUTTERS];
  uint32_t bins[S::TILE_ROWS][TOPK_BINS]; /* of what is in the list */
  uint32_t counts[S::TILE_ROWS];
  uint32_t looked[S::TILE_ROWS];  /* the count when its threshold was last looked at */
  float thresholds[S::TILE_ROWS]; /* NaN: none yet */
  uint64_t full[S::STAGES], empty[S::STAGES];
  uint64_t heads_empty;
};

/* A piece of the line, item by item. */
struct walk {
  int64_t unit, end;
  int32_t tile;
};

/* What a block does of one tile. */
struct item {
  struct select_tile tile;
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
  item.tile = args.tiles[walk->tile++];
  item.begin = (int32_t)(walk->unit - item.tile.begin);
  int64_t left = walk->end - item.tile.begin;
  item.end = left < item.tile.units ? (int32_t)left : item.tile.units;
  walk->unit += item.end - item.begin;
  *item_out = item;
  return true;
}

/* Place in a ring of stages. */
struct turn {
  int stage;
  uint32_t phase;
};

template <typename S> QUIRE_DEVICE void turn_next(struct turn *turn) {
  turn->stage++;
  if (turn->stage == S::STAGES) {
    turn->stage = 0;
    turn->phase ^= 1;
  }
}

/* --- copying --- */

/* Where chunk `chunk` of a row of 128 bytes lies, as tensor cores expect it. */
QUIRE_DEVICE uint32_t swizzled(int row, int chunk) { return (uint32_t)(row * KEY_BYTES + ((chunk ^ (row & 7)) << 4)); }

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
QUIRE_DEVICE void copy_heads(const struct select_args &args, struct block_memory<S> *shared, const struct item &item) {
  int thread = threadIdx.x % COPY_THREADS;
  const uint8_t *codes = args.codes + (int64_t)item.tile.row * S::HEADS * KEY_BYTES;
  const float *weights = args.weights + (int64_t)item.tile.row * S::HEADS;
  int heads = item.tile.rows * S::HEADS;
  uint32_t to = hopper_shared(shared->heads);
#pragma unroll 1
  for (int head = thread / 8; head < S::TILE_ROWS * S::HEADS; head += COPY_THREADS / 8) {
    bool read = head < heads;
    hopper_copy16(to + swizzled(head, thread % 8), read ? codes + head * KEY_BYTES + thread % 8 * 16 : codes, read);
  }
  for (int head = thread * 4; head < S::TILE_ROWS * S::HEADS; head += COPY_THREADS * 4) {
    bool read = head < heads;
    hopper_copy16(hopper_shared(shared->weights) + head * 4, read ? weights + head : weights, read);
  }
}

/* A block of 64 positions that is not one whole page: row by row, zeros for what lies outside [first, limit). */
QUIRE_DEVICE void copy_rows(const struct select_args &args, const struct quire_kv_source &source, uint32_t keys,
                            uint32_t scales, int32_t position, int32_t limit) {
  int thread = threadIdx.x % COPY_THREADS;
#pragma unroll 1
  for (int row = thread / 8; row < 64; row += COPY_THREADS / 8) {
    bool read = position + row >= args.rows.first && position + row < limit;
    const uint8_t *from = read ? source_row(source, args.key, 0, position + row) : args.codes;
    hopper_copy16(keys + swizzled(row, thread % 8), from + thread % 8 * 16, read);
  }
  if (thread < 64) {
    bool read = position + thread >= args.rows.first && position + thread < limit;
    const uint8_t *from = read ? source_row(source, args.scale, 1, position + thread) : args.codes;
    hopper_copy4(scales + thread * 4, from, read);
  }
}

/* The page that holds the 64 positions from `position` on; NULL where they are not one whole page of 64. */
QUIRE_DEVICE const uint8_t *whole_page(const struct select_args &args, const struct quire_kv_source &source,
                                       int32_t position, int32_t limit) {
  int32_t end = limit < source.prefix_end ? limit : source.prefix_end;
  bool whole = source.page_tokens == 64 && position >= args.rows.first && position + 64 <= end;
  return whole ? source.pages[position / 64] : NULL;
}

/* The pages of a stage. The table is read a stage ahead, so that nobody waits for it. */
template <typename S> struct stage_pages {
  int32_t limit;
  const uint8_t *page[S::KEY_GROUPS];
};

template <typename S>
QUIRE_DEVICE void pages_find(const struct select_args &args, const struct quire_kv_source &source, int32_t position,
                             int32_t limit, struct stage_pages<S> *pages) {
  pages->limit = limit;
#pragma unroll
  for (int block = 0; block < S::KEY_GROUPS; block++) {
    pages->page[block] = whole_page(args, source, position + block * 64, limit);
  }
}

/* Keys and scales of the positions from `position` on. */
template <typename S>
QUIRE_DEVICE void copy_stage(const struct select_args &args, struct block_memory<S> *shared, int stage,
                             const struct quire_kv_source &source, int32_t position,
                             const struct stage_pages<S> &pages) {
  int thread = threadIdx.x % COPY_THREADS;
  uint32_t keys = hopper_shared(shared->keys[stage]);
  uint32_t scales = hopper_shared(shared->scales[stage]);
#pragma unroll
  for (int block = 0; block < S::KEY_GROUPS; block++) {
    const uint8_t *page = pages.page[block];
    if (page == NULL) {
      copy_rows(args, source, keys, scales, position + block * 64, pages.limit);
    } else {
      const uint8_t *from = page + args.key.offset + thread * 16;
      uint32_t to = keys + swizzled(thread / 8, thread % 8);
#pragma unroll
      for (int step = 0; step < 64 * KEY_BYTES; step += COPY_THREADS * 16) {
        hopper_copy16(to + step, from + step, true);
      }
      if (thread < 16) {
        hopper_copy16(scales + thread * 16, page + args.scale.offset + thread * 16, true);
      }
    }
    keys += 64 * KEY_BYTES;
    scales += 64 * 4;
  }
}

/* Hands over the oldest stage that is not: all but the last `COUNT` groups of copies are there. */
template <typename S, int COUNT> QUIRE_DEVICE void stage_full(struct block_memory<S> *shared, struct turn *turn) {
  hopper_copies_wait<COUNT>();
  hopper_proxy_fence();
  hopper_barrier_arrive(&shared->full[turn->stage]);
  turn_next<S>(turn);
}

/* Every stage is a group of copies; heads go with the stage that follows them. A stage is handed over S::AHEAD
 * stages later, so that many are under way; all of a tile are before its heads may be overwritten. */
template <typename S> QUIRE_DEVICE void copy_keys(const struct select_args &args, struct block_memory<S> *shared) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct turn turn = {0, 0};
  struct turn handed = {0, 0};
  uint32_t heads_phase = 0;
  int32_t ahead = 0;
  int32_t base = select_base(args);
  while (walk_next(args, &walk, &item)) {
    struct quire_kv_source source = args.rows.sources[item.tile.source];
    hopper_barrier_wait(&shared->heads_empty, heads_phase ^ 1);
    heads_phase ^= 1;
    copy_heads<S>(args, shared, item);
    struct stage_pages<S> pages;
    pages_find<S>(args, source, base + item.begin * S::KEYS, item.tile.limit, &pages);
    for (int32_t unit = item.begin; unit < item.end; unit++) {
      int32_t position = base + unit * S::KEYS;
      hopper_barrier_wait(&shared->empty[turn.stage], turn.phase ^ 1);
      copy_stage<S>(args, shared, turn.stage, source, position, pages);
      hopper_copies_commit();
      pages_find<S>(args, source, position + S::KEYS, item.tile.limit, &pages);
      turn_next<S>(&turn);
      if (++ahead > S::AHEAD) {
        stage_full<S, S::AHEAD>(shared, &handed);
        ahead--;
      }
    }
    for (; ahead > 0; ahead--) {
      stage_full<S, 0>(shared, &handed);
    }
  }
}

/* --- multiplying --- */

/* relu that keeps a NaN. */
QUIRE_DEVICE float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

/* The lane's part of the weights: four[r][i] are those of row r, heads 16 i + 2 (lane mod 4), + 1, + 8, + 9. */
template <typename S> struct weights { float4 four[S::ROWS][S::HEADS / 16]; };

template <typename S>
QUIRE_DEVICE void weights_load(const struct block_memory<S> *shared, int row_group, struct weights<S> *weights) {
#pragma unroll
  for (int r = 0; r < S::ROWS; r++) {
#pragma unroll
    for (int i = 0; i < S::HEADS / 16; i++) {
      const float *from = shared->weights + (row_group * S::ROWS + r) * S::HEADS + i * 16;
      weights->four[r][i] = *(const float4 *)(from + threadIdx.x % 4 * 4);
    }
  }
}

/* Weighted sums over the lane's heads, of rows [FIRST, FIRST + rows in products) and the lane's two keys. */
template <typename S, int FIRST, int PRODUCTS>
QUIRE_DEVICE void products_fold(const float (&products)[PRODUCTS], const struct weights<S> &weights,
                                float (&sum)[S::ROWS][2]) {
#pragma unroll
  for (int r = 0; r < PRODUCTS * 2 / S::HEADS; r++) {
    sum[FIRST + r][0] = 0.0f;
    sum[FIRST + r][1] = 0.0f;
#pragma unroll
    for (int j = 0; j < S::HEADS / 8; j += 2) {
      float4 four = weights.four[FIRST + r][j / 2];
      const float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 8; i++) { /* i / 4: which j; i / 2 % 2: which e; i % 2: which key */
        float product = products[(r * S::HEADS / 8 + j + i / 4) * 4 + i % 2 * 2 + i / 2 % 2];
        sum[FIRST + r][i % 2] = __fmaf_rn(w[i / 2], relu(product), sum[FIRST + r][i % 2]);
      }
    }
  }
}

/* The lane's scores (arithmetic.md 13): the sums of four lanes as (0 + 1) + (2 + 3), times the key's scale. With several
 * rows, lane bit 0 keeps the odd rows and bit 1 the key 8 further; with one row, bit 0 keeps the key 8 further and lanes
 * that differ in bit 1 hold the same. */
template <typename S>
QUIRE_DEVICE void scores_fold(const float (&sum)[S::ROWS][2], float scale, float (&scores_out)[S::SCORES]) {
  bool odd = (threadIdx.x & 1) != 0;
  [[maybe_unused]] bool high = (threadIdx.x & 2) != 0;
  if constexpr (S::ROWS == 1) {
    float mine = odd ? sum[0][1] : sum[0][0];
    float pair = __fadd_rn(mine, __shfl_xor_sync(~0u, odd ? sum[0][0] : sum[0][1], 1));
    scores_out[0] = __fmul_rn(scale, __fadd_rn(pair, __shfl_xor_sync(~0u, pair, 2)));
  } else {
#pragma unroll
    for (int o = 0; o < S::SCORES; o++) {
      float pair[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float mine = odd ? sum[2 * o + 1][half] : sum[2 * o][half];
        float other = odd ? sum[2 * o][half] : sum[2 * o + 1][half];
        pair[half] = __fadd_rn(mine, __shfl_xor_sync(~0u, other, 1));
      }
      float mine = high ? pair[1] : pair[0];
      scores_out[o] = __fmul_rn(scale, __fadd_rn(mine, __shfl_xor_sync(~0u, high ? pair[0] : pair[1], 2)));
    }
  }
}

/* What a multiplying thread knows of its scores. */
template <typename S> struct lane_state {
  int row_group, key_group;
  int key;                  /* its key of a stage */
  int tile_row;             /* of its first score; the next is two further */
  uint64_t *list;           /* of its first row */
  uint32_t span[S::SCORES]; /* positions its rows score, from first on */
  float threshold[S::SCORES];
};

template <typename S> QUIRE_DEVICE struct lane_state<S> lane_begin(const struct select_args &args) {
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32 % 4;
  struct lane_state<S> state;
  int math_group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* so that the compiler knows it is one for the warp */
  state.row_group = math_group / S::KEY_GROUPS;
  state.key_group = math_group % S::KEY_GROUPS;
  int half = S::ROWS > 1 ? lane / 2 % 2 : lane % 2;
  state.key = state.key_group * 64 + warp * 16 + lane / 4 + half * 8;
  state.tile_row = state.row_group * S::ROWS + (S::ROWS > 1 ? lane % 2 : 0);
  state.list = args.lists + ((int64_t)blockIdx.x * S::TILE_ROWS + state.tile_row) * SELECT_LIST;
  return state;
}

template <typename S>
QUIRE_DEVICE void lane_item(const struct select_args &args, const struct item &item, struct lane_state<S> *state) {
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    int tile_row = state->tile_row + 2 * o;
    bool twin = S::ROWS == 1 && threadIdx.x % 4 >= 2;
    state->span[o] = tile_row < item.tile.rows && !twin ? (uint32_t)select_span(args, item.tile.row + tile_row) : 0;
    state->threshold[o] = quire_float_of(0x7fc00000u);
  }
}

/* Writes scores to lists, or out (DUMP). `seen` counts positions from first on. */
template <typename S, bool DUMP>
QUIRE_DEVICE void scores_offer(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                               const struct lane_state<S> &state, const float (&scores)[S::SCORES], int32_t position) {
  uint32_t seen = (uint32_t)(position - args.rows.first);
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    if (DUMP) {
      if (seen < state.span[o]) {
        args.scores_out[(item.tile.row + state.tile_row + 2 * o) * args.scores_ld + position] = scores[o];
      }
      continue;
    }
    if (seen < state.span[o] && !(scores[o] <= state.threshold[o])) {
      uint32_t key = quire_score_key(scores[o]);
      uint32_t at = atomicAdd(&shared->counts[state.tile_row + 2 * o], 1u);
      atomicAdd(&shared->bins[state.tile_row + 2 * o][topk_bin(key)], 1u);
      state.list[2 * o * SELECT_LIST + at] = topk_candidate(key, position);
    }
  }
}

/* --- lists --- */

/* The threads that cut lists together. */
template <typename S>
QUIRE_DEVICE struct topk_group cut_group(struct block_memory<S> *shared, const struct lane_state<S> &state) {
  int cutter = state.row_group * S::CUTTERS + state.key_group / S::CUT_WIDTH;
  struct topk_group group;
  group.work = &shared->work[cutter];
  group.thread = (int)threadIdx.x % (128 * S::CUT_WIDTH);
  group.threads = 128 * S::CUT_WIDTH;
  group.barrier = BARRIER_CUT + cutter;
  return group;
}

/* A row's list as the one segment. */
template <typename S>
QUIRE_DEVICE struct topk_segments list_of(const struct select_args &args, struct block_memory<S> *shared,
                                          const struct topk_group &group, int tile_row) {
  struct topk_segment *segment = &shared->segment[group.barrier - BARRIER_CUT];
  if (group.thread == 0) {
    segment->candidates = args.lists + ((int64_t)blockIdx.x * S::TILE_ROWS + tile_row) * SELECT_LIST;
    segment->count = (int32_t)shared->counts[tile_row];
  }
  topk_sync(group);
  struct topk_segments segments = {segment, 1};
  return segments;
}

/* The score of a key. */
QUIRE_DEVICE float score_of(uint32_t key) {
  return quire_float_of((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/* Cuts a list to the k best. */
template <typename S>
QUIRE_DEVICE void list_cut(const struct select_args &args, struct block_memory<S> *shared,
                           const struct topk_group &group, int tile_row) {
  uint32_t *bins = shared->bins[tile_row];
  struct topk_segments list = list_of<S>(args, shared, group, tile_row);
  uint64_t pivot = topk_pivot_binned(group, list, args.topk, bins);
  uint64_t *to = args.lists + ((int64_t)blockIdx.x * S::TILE_ROWS + tile_row) * SELECT_LIST;
  int32_t kept = topk_keep(group, list.segment[0], pivot, to);
  for (int i = group.thread; i < TOPK_BINS; i += group.threads) {
    bins[i] = 0;
  }
  topk_sync(group);
  for (int32_t i = group.thread; i < kept; i += group.threads) {
    atomicAdd(&bins[topk_bin((uint32_t)(to[i] >> 32))], 1u);
  }
  if (group.thread == 0) {
    shared->counts[tile_row] = (uint32_t)kept;
    shared->looked[tile_row] = (uint32_t)kept;
    shared->thresholds[tile_row] = score_of((uint32_t)(pivot >> 32));
  }
}

/* Raises a row's threshold to just below the lowest score of the bin in which its k-th best lies. */
template <typename S>
QUIRE_DEVICE void threshold_raise(const struct select_args &args, struct block_memory<S> *shared,
                                  const struct topk_group &group, int tile_row) {
  topk_digit(group, shared->bins[tile_row], TOPK_BINS, (uint32_t)args.topk);
  if (group.thread == 0) {
    shared->looked[tile_row] = shared->counts[tile_row];
    if (group.work->digit > 0) {
      shared->thresholds[tile_row] = score_of(topk_bin_key(group.work->digit) - 1);
    }
  }
}

/* Looks after the lists of the row group and renews the lanes' thresholds. */
template <typename S>
QUIRE_DEVICE void lists_look(const struct select_args &args, struct block_memory<S> *shared,
                             struct lane_state<S> *state) {
  struct topk_group group = cut_group<S>(shared, *state);
  int rows_barrier = BARRIER_ROWS + state->row_group;
  hopper_threads_sync(rows_barrier, 128 * S::KEY_GROUPS);
  for (int r = state->key_group / S::CUT_WIDTH; r < S::ROWS; r += S::CUTTERS) {
    int tile_row = state->row_group * S::ROWS + r;
    uint32_t count = shared->counts[tile_row];
    uint32_t fresh = count - shared->looked[tile_row];
    topk_sync(group);
    if (count > SELECT_LIST - SELECT_EPOCH_KEYS) {
      list_cut<S>(args, shared, group, tile_row);
    } else if (count > (uint32_t)args.topk && fresh > (uint32_t)args.topk / 2) {
      threshold_raise<S>(args, shared, group, tile_row);
    }
  }
  hopper_threads_sync(rows_barrier, 128 * S::KEY_GROUPS);
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    state->threshold[o] = shared->thresholds[state->tile_row + 2 * o];
  }
}

/* The end of a row's share: its list goes out, or, if other blocks share the row, to its slot. */
template <typename S>
QUIRE_DEVICE void list_end(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                           const struct topk_group &group, int tile_row) {
  int64_t row = item.tile.row + tile_row;
  struct topk_segments list = list_of<S>(args, shared, group, tile_row);
  const uint32_t *bins = shared->bins[tile_row];
  bool cuts = list.segment[0].count > args.topk;
  if (item.begin == 0 && item.end == item.tile.units) {
    int32_t *to = args.indices_out + row * args.topk;
    if (cuts) {
      topk_list_binned(group, list, args.topk, bins, args.rows.limit[row], to);
    } else {
      topk_list(group, list, 0, args.rows.limit[row], to);
    }
    if (group.thread == 0) {
      args.counts_out[row] = args.topk;
    }
    return;
  }
  uint64_t pivot = cuts ? topk_pivot_binned(group, list, args.topk, bins) : 0;
  int64_t slot = ((int64_t)blockIdx.x * 2 + (item.begin == 0 ? 1 : 0)) * S::TILE_ROWS + tile_row;
  int32_t kept = topk_keep(group, list.segment[0], pivot, args.slots + slot * args.topk);
  if (group.thread == 0) {
    args.slot_counts[slot] = kept;
  }
}

template <typename S>
QUIRE_DEVICE void lists_end(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                            const struct lane_state<S> &state) {
  struct topk_group group = cut_group<S>(shared, state);
  int rows_barrier = BARRIER_ROWS + state.row_group;
  hopper_threads_sync(rows_barrier, 128 * S::KEY_GROUPS);
  for (int r = state.key_group / S::CUT_WIDTH; r < S::ROWS; r += S::CUTTERS) {
    int tile_row = state.row_group * S::ROWS + r;
    if (tile_row < item.tile.rows && select_span(args, item.tile.row + tile_row) > 0) {
      list_end<S>(args, shared, item, group, tile_row);
    }
    topk_sync(group);
    for (int i = group.thread; i < TOPK_BINS; i += group.threads) {
      shared->bins[tile_row][i] = 0;
    }
    if (group.thread == 0) {
      shared->counts[tile_row] = 0;
      shared->looked[tile_row] = 0;
      shared->thresholds[tile_row] = quire_float_of(0x7fc00000u);
    }
  }
  hopper_threads_sync(rows_barrier, 128 * S::KEY_GROUPS);
}

/* A stage is read: one arrival a warp. */
QUIRE_DEVICE void warp_arrives(uint64_t *barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    hopper_barrier_arrive(barrier);
  }
}

/* Operands of a row group and key group: the heads of its first rows, the keys of stage 0. */
struct operands {
  uint32_t heads, keys;
};

template <typename S> QUIRE_DEVICE uint32_t keys_at(const struct operands &operands, int stage) {
  return operands.keys + (uint32_t)(stage * (S::KEYS * KEY_BYTES >> 4));
}

/* Scores one unit of several rows. The products come in two halves of the rows: those of `low` are under way at the
 * start, and while one half is folded the other is multiplied. MORE: a unit follows, whose first half is begun here. */
template <typename S, bool MORE>
QUIRE_DEVICE void unit_score(struct block_memory<S> *shared, const struct operands &operands,
                             const struct weights<S> &weights, struct turn *turn, float (&low)[S::COLUMNS / 4],
                             float (&sum)[S::ROWS][2]) {
  float high[S::COLUMNS / 4];
  int stage = turn->stage;
  turn_next<S>(turn);
  products_issue(high, keys_at<S>(operands, stage), operands.heads + (S::COLUMNS / 2 * KEY_BYTES >> 4));
  products_wait<1>(low);
  products_fold<S, 0>(low, weights, sum);
  if (MORE) {
    hopper_barrier_wait(&shared->full[turn->stage], turn->phase);
    products_issue(low, keys_at<S>(operands, turn->stage), operands.heads);
    products_wait<1>(high);
  } else {
    products_wait<0>(high);
  }
  warp_arrives(&shared->empty[stage]);
  products_fold<S, S::ROWS / 2>(high, weights, sum);
}

/* What a multiplying thread works with between two looks at the lists. */
template <typename S> struct bench {
  struct operands operands;
  struct weights<S> weights;
  struct turn *turn;
};

/* UNITS units from the lane's `position` on, in one straight line: where products under way cross the end of a loop, or
 * a branch in which scores are offered, the compiler waits for them. */
template <typename S, bool DUMP, int UNITS>
QUIRE_DEVICE void line_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                             const struct lane_state<S> &state, const struct bench<S> &bench, int32_t position) {
  struct turn *turn = bench.turn;
  float scores[UNITS][S::SCORES];
  float products[S::ROWS > 1 ? S::COLUMNS / 4 : S::COLUMNS / 2];
  hopper_barrier_wait(&shared->full[turn->stage], turn->phase);
  products_issue(products, keys_at<S>(bench.operands, turn->stage), bench.operands.heads);
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    float sum[S::ROWS][2];
    float scale = shared->scales[turn->stage][state.key];
    if constexpr (S::ROWS > 1) {
      if (unit + 1 < UNITS) {
        unit_score<S, true>(shared, bench.operands, bench.weights, turn, products, sum);
      } else {
        unit_score<S, false>(shared, bench.operands, bench.weights, turn, products, sum);
      }
    } else {
      static_assert(UNITS == 1, "one row: nothing to overlap");
      products_wait<0>(products);
      warp_arrives(&shared->empty[turn->stage]);
      turn_next<S>(turn);
      products_fold<S, 0>(products, bench.weights, sum);
    }
    scores_fold<S>(sum, scale, scores[unit]);
  }
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    scores_offer<S, DUMP>(args, shared, item, state, scores[unit], position + unit * S::KEYS);
  }
}

/* The units of the tile from `unit` on, as many as lie between two looks at the lists. */
template <typename S, bool DUMP>
QUIRE_DEVICE void units_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              const struct lane_state<S> &state, struct turn *turn, int32_t unit) {
  int32_t end = unit + S::EPOCH < item.end ? unit + S::EPOCH : item.end;
  int32_t position = select_base(args) + unit * S::KEYS + state.key;
  struct bench<S> bench;
  bench.turn = turn;
  bench.operands.heads = hopper_operand_low(hopper_shared(shared->heads) + state.row_group * S::COLUMNS * KEY_BYTES);
  bench.operands.keys = hopper_operand_low(hopper_shared(shared->keys[0]) + state.key_group * 64 * KEY_BYTES);
  hopper_barrier_wait(&shared->full[turn->stage], turn->phase); /* the weights come with the tile's first keys */
  weights_load<S>(shared, state.row_group, &bench.weights);
#pragma unroll 1
  for (; S::LINE > 1 && unit + S::LINE <= end; unit += S::LINE, position += S::LINE * S::KEYS) {
    line_score<S, DUMP, S::LINE>(args, shared, item, state, bench, position);
  }
#pragma unroll 1
  for (; unit < end; unit++, position += S::KEYS) {
    line_score<S, DUMP, 1>(args, shared, item, state, bench, position);
  }
}

template <typename S, bool DUMP>
QUIRE_DEVICE void multiply(const struct select_args &args, struct block_memory<S> *shared) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct turn turn = {0, 0};
  struct lane_state<S> state = lane_begin<S>(args);
  while (walk_next(args, &walk, &item)) {
    lane_item<S>(args, item, &state);
    for (int32_t unit = item.begin; unit < item.end; unit += S::EPOCH) {
      if (!DUMP && unit > item.begin) {
        lists_look<S>(args, shared, &state);
      }
      units_score<S, DUMP>(args, shared, item, state, &turn, unit);
    }
    warp_arrives(&shared->heads_empty);
    if (!DUMP) {
      lists_end<S>(args, shared, item, state);
    }
  }
}

template <typename S, bool DUMP>
static __global__ void __launch_bounds__(THREADS, 1) score(const __grid_constant__ struct select_args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  struct block_memory<S> *shared = (struct block_memory<S> *)memory;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::STAGES; stage++) {
      hopper_barrier_init(&shared->full[stage], COPY_THREADS);
      hopper_barrier_init(&shared->empty[stage], MATH_WARPS);
    }
    hopper_barrier_init(&shared->heads_empty, MATH_WARPS);
    hopper_barrier_init_fence();
    for (int row = 0; row < S::TILE_ROWS; row++) {
      shared->counts[row] = 0;
      shared->looked[row] = 0;
      shared->thresholds[row] = quire_float_of(0x7fc00000u);
    }
  }
  for (int i = threadIdx.x; i < S::TILE_ROWS * TOPK_BINS; i += THREADS) {
    shared->bins[i / TOPK_BINS][i % TOPK_BINS] = 0;
  }
  __syncthreads();
  hopper_launch_next();
  hopper_launch_wait();
  if (threadIdx.x >= MATH_GROUPS * 128) {
    hopper_registers_down<COPY_REGISTERS>();
    copy_keys<S>(args, shared);
  } else {
    hopper_registers_up<MATH_REGISTERS>();
    multiply<S, DUMP>(args, shared);
  }
}

/* --- launching --- */

template <typename S> static enum quire_status launch(cudaStream_t stream, struct select_args *args, int pieces) {
  int bytes = (int)sizeof(block_memory<S>);
  bool dump = args->scores_out != NULL;
  void (*kernel)(struct select_args) = dump ? score<S, true> : score<S, false>;
  args->tile_rows = S::TILE_ROWS;
  args->unit_keys = S::KEYS;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  select_prepare(stream, args);
  cudaLaunchAttribute early = select_early();
  cudaLaunchConfig_t config = {dim3((uint32_t)pieces), dim3(THREADS), (size_t)bytes, stream, &early, 1};
  cudaLaunchKernelEx(&config, kernel, *args);
  if (!dump) {
    select_merge(stream, args, pieces);
  }
  return cudaGetLastError() == cudaSuccess ? QUIRE_OK : QUIRE_ERR_RANK;
}

static int padded_heads(int32_t heads) { return heads <= 32 ? 32 : 64; }

/* Rows of a tile at most. */
static int tile_rows_max(int32_t heads) { return heads <= 32 ? 12 : 6; }

static int64_t carve(int64_t *at, int64_t bytes) {
  int64_t begin = *at;
  *at += (bytes + 255) / 256 * 256;
  return begin;
}

/* Fills in the scratch's parts; returns its bytes. */
static int64_t scratch_carve(struct select_args *args, uint8_t *scratch, int32_t m, int32_t pieces) {
  int64_t at = 0;
  int64_t heads = padded_heads(args->heads);
  int64_t rows = (int64_t)tile_rows_max(args->heads) * pieces;
  args->heads_padded = (int32_t)heads;
  args->plan = (struct select_plan *)(scratch + carve(&at, sizeof *args->plan));
  args->tiles = (struct select_tile *)(scratch + carve(&at, m * (int64_t)sizeof *args->tiles));
  args->codes = scratch + carve(&at, m * heads * KEY_BYTES);
  args->weights = (float *)(scratch + carve(&at, m * heads * (int64_t)sizeof(float)));
  args->lists = (uint64_t *)(scratch + carve(&at, rows * SELECT_LIST * (int64_t)sizeof(uint64_t)));
  args->slots = (uint64_t *)(scratch + carve(&at, rows * 2 * args->topk * (int64_t)sizeof(uint64_t)));
  args->slot_counts = (int32_t *)(scratch + carve(&at, rows * 2 * (int64_t)sizeof(int32_t)));
  return at;
}

extern "C" int64_t quire_cuda_select_scratch_bytes(int32_t heads, int32_t topk, int32_t m, int32_t multiprocessors) {
  struct select_args args = {};
  QUIRE_ASSERT(heads > 0 && heads <= QUIRE_CUDA_INDEX_HEADS_MAX && topk > 0 && m >= 0 && multiprocessors > 0);
  args.heads = heads;
  args.topk = topk;
  return scratch_carve(&args, NULL, m, multiprocessors);
}

static bool refuse(const char **why_out, const char *why) {
  if (why_out != NULL) {
    *why_out = why;
  }
  return false;
}

extern "C" bool quire_cuda_select_can(const struct quire_select *op, const char **why_out) {
  if (op->format == QUIRE_KV_F32) {
    return refuse(why_out, "index keys in f32 have no path on tensor cores; use --kv-format bf16 or fp8");
  }
  if (op->heads < 1 || op->heads > QUIRE_CUDA_INDEX_HEADS_MAX) {
    return refuse(why_out, "more than 64 index heads");
  }
  if (op->topk < 1 || op->topk > QUIRE_TOPK_MAX) {
    return refuse(why_out, "a top-k beyond 2,048");
  }
  return true;
}

extern "C" enum quire_status quire_cuda_select(void *stream, const struct quire_cuda_select *select) {
  const struct quire_select *op = &select->op;
  struct select_args args = {};
  QUIRE_ASSERT(quire_cuda_select_can(op, NULL) && op->part.kind == QUIRE_PART_INDEX_KEY);
  QUIRE_ASSERT(select->multiprocessors > 0 && op->rows.m >= 0);
  if (op->rows.m == 0) {
    return QUIRE_OK;
  }
  args.rows = op->rows;
  args.key = op->part.piece[0];
  args.scale = op->part.piece[1];
  args.q = op->q;
  args.w = op->w;
  args.scores_out = select->scores_out;
  args.scores_ld = select->scores_ld;
  args.indices_out = op->indices_out;
  args.counts_out = op->counts_out;
  args.heads = op->heads;
  args.topk = op->topk;
  args.any_scale = op->any_scale;
  int pieces = select->multiprocessors;
  scratch_carve(&args, op->scratch, op->rows.m, pieces);
  cudaStream_t to = (cudaStream_t)stream;
  if (args.heads_padded == 64) {
    return select->source_rows > 2    ? launch<shape<64, 2, 3>>(to, &args, pieces)
           : select->source_rows == 2 ? launch<shape<64, 2, 1>>(to, &args, pieces)
                                      : launch<shape<64, 1, 1>>(to, &args, pieces);
  }
  return select->source_rows > 4   ? launch<shape<32, 4, 3>>(to, &args, pieces)
         : select->source_rows > 2 ? launch<shape<32, 4, 1>>(to, &args, pieces)
         : select->source_rows > 1 ? launch<shape<32, 2, 1>>(to, &args, pieces)
                                   : launch<shape<32, 1, 1>>(to, &args, pieces);
}
