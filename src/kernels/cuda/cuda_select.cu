/* Scores on tensor cores, streamed into lists of candidates: rows that are many a source. Few: select_decode.cu.
 *
 * A block works on one piece of the line of units (select_parts.cuh). One warp group copies keys, three multiply, each
 * for its own rows of the tile: the 64 keys of a stage with the heads of these rows (ROWS * HEADS = 128 columns). It
 * takes relu and the weighted sum over heads in registers, and offers the scores, one or two a lane, to the lists of
 * its rows; a score is compared with its row's threshold and rarely written. Lists lie in global memory (the
 * second-level cache), counts of their scores in shared memory. Every SELECT_EPOCH_KEYS positions a warp group raises
 * its thresholds as far as the counts allow. A list that is nearly full all the same (rising scores, very many equal
 * ones) is cut to the k best, whose last becomes the threshold: later positions are higher, so a newcomer must beat it
 * strictly.
 *
 * Rejected: all scores of a row in memory (a quarter of the work of 32 heads is then moving them), thresholds guessed
 * from a sample (no bound on what a bad guess costs). */
#include "kernels/cuda/cuda_select.h"

#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/select_fold.cuh"
#include "kernels/cuda/select_parts.cuh"
#include "kernels/cuda/select_products.cuh"
#include "kernels/cuda/select_stage.cuh"

#define MATH_REGISTERS 160 /* 3 * 160 + 32 = the 4 * 128 that a block of 16 warps starts with */
#define COPY_REGISTERS 32
#define AHEAD_MAX 3
#define BARRIER_GROUP 1 /* of threads: one a row group */

template <int HEADS_, int ROWS_> struct shape {
  static constexpr int HEADS = HEADS_;
  static constexpr int ROWS = ROWS_; /* of a row group */
  static constexpr int TILE_ROWS = ROWS * MATH_GROUPS;
  static constexpr int KEYS = 64; /* of a stage */
  static constexpr int COLUMNS = HEADS * ROWS;
  static constexpr int SCORES = ROWS / 2; /* of a lane and 16 keys */
  static constexpr int LINE = 4; /* units in a straight line of code */
  static constexpr int EPOCH = SELECT_EPOCH_KEYS / KEYS / LINE * LINE;
  static constexpr int FIXED_BYTES =
      TILE_ROWS * (HEADS * KEY_BYTES + TOPK_BINS * 4) + MATH_GROUPS * (int)sizeof(struct topk_work) + 4096;
  static constexpr int STAGE_BYTES = KEYS * (KEY_BYTES + 4);
  static constexpr int STAGES_FIT = (SHARED_MAX - FIXED_BYTES) / STAGE_BYTES;
  static constexpr int STAGES = STAGES_FIT < STAGES_MAX ? STAGES_FIT : STAGES_MAX;
  static constexpr int AHEAD = STAGES - 1 < AHEAD_MAX ? STAGES - 1 : AHEAD_MAX;
  static_assert(COLUMNS == 128 && STAGES >= 3, "a shape that fits");
};

template <typename S> struct block_memory {
  struct select_ring<S> ring;
  struct topk_work work[MATH_GROUPS];
  struct topk_segment segment[MATH_GROUPS];
  uint32_t bins[S::TILE_ROWS][TOPK_BINS]; /* of what is in the list */
  uint32_t counts[S::TILE_ROWS];
  uint32_t looked[S::TILE_ROWS];  /* the count when its threshold was last looked at */
  float thresholds[S::TILE_ROWS]; /* NaN: none yet */
};

/* --- multiplying --- */

/* What a multiplying thread knows of its scores. */
template <typename S> struct lane_state {
  int row_group;
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
  state.row_group = math_group;
  state.key = warp * 16 + lane / 4 + lane / 2 % 2 * 8;
  state.tile_row = state.row_group * S::ROWS + lane % 2;
  state.list = args.lists + ((int64_t)blockIdx.x * S::TILE_ROWS + state.tile_row) * SELECT_LIST;
  return state;
}

template <typename S>
QUIRE_DEVICE void lane_item(const struct select_args &args, const struct item &item, struct lane_state<S> *state) {
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    int tile_row = state->tile_row + 2 * o;
    state->span[o] = tile_row < item.tile.rows ? (uint32_t)select_span(args, item.tile.row + tile_row) : 0;
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

/* The threads of a row group, which look after its lists together. */
template <typename S>
QUIRE_DEVICE struct topk_group row_group_of(struct block_memory<S> *shared, const struct lane_state<S> &state) {
  struct topk_group group;
  group.work = &shared->work[state.row_group];
  group.scan = &group.work->scan;
  group.thread = (int)threadIdx.x % 128;
  group.threads = 128;
  group.barrier = BARRIER_GROUP + state.row_group;
  return group;
}

/* A row's list as the one segment. */
template <typename S>
QUIRE_DEVICE struct topk_segments list_of(const struct select_args &args, struct block_memory<S> *shared,
                                          const struct topk_group &group, int tile_row) {
  struct topk_segment *segment = &shared->segment[group.barrier - BARRIER_GROUP];
  if (group.thread == 0) {
    segment->candidates = args.lists + ((int64_t)blockIdx.x * S::TILE_ROWS + tile_row) * SELECT_LIST;
    segment->count = (int32_t)shared->counts[tile_row];
  }
  topk_sync(group);
  struct topk_segments segments = {segment, 1};
  return segments;
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
    shared->thresholds[tile_row] = topk_score((uint32_t)(pivot >> 32));
  }
}

/* Raises a row's threshold to just below the lowest score of the bin in which its k-th best lies. */
template <typename S>
QUIRE_DEVICE void threshold_raise(const struct select_args &args, struct block_memory<S> *shared,
                                  const struct topk_group &group, int tile_row) {
  topk_digit(group, shared->bins[tile_row], TOPK_BINS, (uint32_t)args.topk);
  if (group.thread == 0) {
    shared->looked[tile_row] = shared->counts[tile_row];
    if (group.scan->digit > 0) {
      shared->thresholds[tile_row] = topk_score(topk_bin_key(group.scan->digit) - 1);
    }
  }
}

/* Looks after the lists of the row group and renews the lanes' thresholds. */
template <typename S>
QUIRE_DEVICE void lists_look(const struct select_args &args, struct block_memory<S> *shared,
                             struct lane_state<S> *state) {
  struct topk_group group = row_group_of<S>(shared, *state);
  topk_sync(group);
  for (int r = 0; r < S::ROWS; r++) {
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
  topk_sync(group);
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
  struct topk_group group = row_group_of<S>(shared, state);
  topk_sync(group);
  for (int r = 0; r < S::ROWS; r++) {
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
  topk_sync(group);
}

/* Operands of a row group: the heads of its first rows, the keys of stage 0. */
struct operands {
  uint64_t heads, keys;
};

template <typename S> QUIRE_DEVICE uint64_t keys_at(const struct operands &operands, int stage) {
  return operands.keys + (uint64_t)(stage * (S::KEYS * KEY_BYTES >> 4));
}

/* Scores one unit. The products come in two halves of the rows: those of `low` are under way at the
 * start, and while one half is folded the other is multiplied. MORE: a unit follows, whose first half is begun here. */
template <typename S, bool MORE>
QUIRE_DEVICE void unit_score(struct block_memory<S> *shared, const struct operands &operands,
                             const struct weights<S> &weights, struct turn *turn, float (&low)[S::COLUMNS / 4],
                             float (&sum)[S::ROWS][2]) {
  float high[S::COLUMNS / 4];
  int stage = turn->stage;
  turn_next<S::STAGES>(turn);
  products_issue(high, keys_at<S>(operands, stage), operands.heads + (S::COLUMNS / 2 * KEY_BYTES >> 4));
  products_wait<1>(low);
  products_fold<S>(low, weights, 0, sum);
  if (MORE) {
    hopper_barrier_wait(&shared->ring.full[turn->stage], turn->phase);
    products_issue(low, keys_at<S>(operands, turn->stage), operands.heads);
    products_wait<1>(high);
  } else {
    products_wait<0>(high);
  }
  hopper_barrier_arrive_warp(&shared->ring.empty[stage]);
  products_fold<S>(high, weights, S::ROWS / 2, sum);
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
  float products[S::COLUMNS / 4];
  hopper_barrier_wait(&shared->ring.full[turn->stage], turn->phase);
  products_issue(products, keys_at<S>(bench.operands, turn->stage), bench.operands.heads);
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    float sum[S::ROWS][2];
    float scale = shared->ring.scales[turn->stage][state.key];
    if (unit + 1 < UNITS) {
      unit_score<S, true>(shared, bench.operands, bench.weights, turn, products, sum);
    } else {
      unit_score<S, false>(shared, bench.operands, bench.weights, turn, products, sum);
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
  bench.operands.heads =
      hopper_operand(hopper_shared(shared->ring.heads) + state.row_group * S::COLUMNS * KEY_BYTES);
  bench.operands.keys = hopper_operand(hopper_shared(shared->ring.keys[0]));
  hopper_barrier_wait(&shared->ring.full[turn->stage], turn->phase); /* the weights come with the tile's first keys */
  weights_load<S>(shared->ring.weights + state.row_group * S::COLUMNS, &bench.weights);
#pragma unroll 1
  for (; unit + S::LINE <= end; unit += S::LINE, position += S::LINE * S::KEYS) {
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
    hopper_barrier_arrive_warp(&shared->ring.heads_empty);
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
    ring_init(&shared->ring);
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
    copy_keys<S>(args, &shared->ring);
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

/* Rows of a tile at most, where rows are few a source (select_decode.cu), and where they are many. */
static int tile_rows_few(int32_t heads) { return heads <= 32 ? 4 : 2; }
static int tile_rows_many(int32_t heads) { return heads <= 32 ? 12 : 6; }

static int64_t carve(int64_t *at, int64_t bytes) {
  int64_t begin = *at;
  *at += (bytes + 255) / 256 * 256;
  return begin;
}

/* Rows that one launch of select_decode takes. */
static int32_t few_rows_max(int32_t heads, int32_t m, int32_t limit_max) {
  int64_t keys = (limit_max + SELECT_FEW_KEYS - 1) / SELECT_FEW_KEYS * SELECT_FEW_KEYS;
  int64_t rows = keys > 0 ? SELECT_CANDIDATES / keys : m;
  rows = rows < SELECT_FEW_ROWS ? rows : SELECT_FEW_ROWS;
  if (rows >= m) {
    return m;
  }
  rows = rows / tile_rows_few(heads) * tile_rows_few(heads);
  return rows > 0 ? (int32_t)rows : 1;
}

/* The parts of both kinds of launches; returns their bytes. */
static int64_t scratch_carve_common(struct select_args *args, uint8_t *scratch, int32_t m) {
  int64_t at = 0;
  int64_t heads = padded_heads(args->heads);
  args->heads_padded = (int32_t)heads;
  args->plan = (struct select_plan *)(scratch + carve(&at, sizeof *args->plan));
  args->tiles = (struct select_tile *)(scratch + carve(&at, m * (int64_t)sizeof *args->tiles));
  args->codes = scratch + carve(&at, m * heads * KEY_BYTES);
  args->weights = (float *)(scratch + carve(&at, m * heads * (int64_t)sizeof(float)));
  return at;
}

static int64_t scratch_carve_many(struct select_args *args, uint8_t *scratch, int32_t m, int32_t pieces) {
  int64_t at = scratch_carve_common(args, scratch, m);
  int64_t rows = (int64_t)tile_rows_many(args->heads) * pieces;
  args->lists = (uint64_t *)(scratch + carve(&at, rows * SELECT_LIST * (int64_t)sizeof(uint64_t)));
  args->slots = (uint64_t *)(scratch + carve(&at, rows * 2 * args->topk * (int64_t)sizeof(uint64_t)));
  args->slot_counts = (int32_t *)(scratch + carve(&at, rows * 2 * (int64_t)sizeof(int32_t)));
  return at;
}

static int64_t scratch_carve_few(struct select_args *args, uint8_t *scratch, int32_t m, int32_t pieces,
                                 int32_t limit_max) {
  int32_t rows = few_rows_max(args->heads, m, limit_max);
  int64_t at = scratch_carve_common(args, scratch, rows);
  int64_t keys = (limit_max + SELECT_FEW_KEYS - 1) / SELECT_FEW_KEYS * SELECT_FEW_KEYS;
  int64_t shares = ((int64_t)rows + pieces) * tile_rows_few(args->heads);
  args->tile_of = (int32_t *)(scratch + carve(&at, rows * (int64_t)sizeof(int32_t)));
  args->share_counts = (uint32_t *)(scratch + carve(&at, shares * SELECT_FEW_WARPS * (int64_t)sizeof(uint32_t)));
  args->row_bins = (uint32_t *)(scratch + carve(&at, rows * TOPK_BINS * (int64_t)sizeof(uint32_t)));
  args->row_shares = (uint32_t *)(scratch + carve(&at, rows * (int64_t)sizeof(uint32_t)));
  args->candidates = (uint64_t *)(scratch + carve(&at, rows * keys * (int64_t)sizeof(uint64_t)));
  return at;
}

extern "C" int64_t quire_cuda_select_scratch_bytes(int32_t heads, int32_t topk, int32_t m, int32_t limit_max,
                                                   int32_t multiprocessors) {
  struct select_args args = {};
  QUIRE_ASSERT(heads > 0 && heads <= QUIRE_CUDA_INDEX_HEADS_MAX && topk > 0 && m >= 0 && multiprocessors > 0);
  QUIRE_ASSERT(limit_max >= 0);
  args.heads = heads;
  args.topk = topk;
  int64_t many = scratch_carve_many(&args, NULL, m, multiprocessors);
  /* Of shorter limits a launch takes more rows at a time: as much as the most rows want, and the most candidates. */
  int32_t rows = m < SELECT_FEW_ROWS ? m : SELECT_FEW_ROWS;
  int64_t keys = (limit_max + SELECT_FEW_KEYS - 1) / SELECT_FEW_KEYS * SELECT_FEW_KEYS;
  int64_t candidates = rows * keys < SELECT_CANDIDATES ? rows * keys : SELECT_CANDIDATES;
  int64_t few = scratch_carve_few(&args, NULL, rows, multiprocessors, 0);
  (void)carve(&few, (candidates > keys ? candidates : keys) * (int64_t)sizeof(uint64_t));
  return many > few ? many : few;
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
    return refuse(why_out, "select on CUDA takes 1 to 64 index heads");
  }
  if (op->topk < 1 || op->topk > QUIRE_TOPK_MAX) {
    return refuse(why_out, "select on CUDA takes a top-k of 1 to 2,048");
  }
  if (op->rows.m < 0 || op->limit_max < 0 || op->limit_max > QUIRE_CUDA_LIMIT_MAX) {
    return refuse(why_out, "select on CUDA takes up to 2^31 - 2^15 positions a row");
  }
  return true;
}

/* Rows [row, row + m) of the batch. */
static struct select_args args_of(const struct quire_cuda_select *select, int32_t row, int32_t m) {
  const struct quire_select *op = &select->op;
  struct select_args args = {};
  args.rows = op->rows;
  args.rows.source_of += row;
  args.rows.limit += row;
  args.rows.m = m;
  args.key = op->part.piece[0];
  args.scale = op->part.piece[1];
  args.q = op->q + (int64_t)row * op->heads * QUIRE_INDEX_DIM;
  args.w = op->w + (int64_t)row * op->heads;
  args.scores_out = select->scores_out != NULL ? select->scores_out + row * select->scores_ld : NULL;
  args.scores_ld = select->scores_ld;
  args.indices_out = op->indices_out + (int64_t)row * op->topk;
  args.counts_out = op->counts_out + row;
  args.heads = op->heads;
  args.topk = op->topk;
  args.any_scale = op->any_scale;
  return args;
}

/* Few rows a source, as many a launch as the scratch has room for. */
static enum quire_status select_few(cudaStream_t stream, const struct quire_cuda_select *select) {
  const struct quire_select *op = &select->op;
  int pieces = select->multiprocessors;
  int32_t step = few_rows_max(op->heads, op->rows.m, op->limit_max);
  for (int32_t row = 0; row < op->rows.m; row += step) {
    int32_t m = op->rows.m - row < step ? op->rows.m - row : step;
    struct select_args args = args_of(select, row, m);
    scratch_carve_few(&args, op->scratch, m, pieces, op->limit_max);
    enum quire_status status = select_decode(stream, &args, select->maps, pieces, op->source_rows);
    if (status != QUIRE_OK) {
      return status;
    }
  }
  return QUIRE_OK;
}

extern "C" enum quire_status quire_cuda_select(void *stream, const struct quire_cuda_select *select) {
  const struct quire_select *op = &select->op;
  QUIRE_ASSERT(quire_cuda_select_can(op, NULL) && op->part.kind == QUIRE_PART_INDEX_KEY);
  QUIRE_ASSERT(select->multiprocessors > 0 && op->source_rows >= 0);
  if (op->rows.m == 0) {
    return QUIRE_OK;
  }
  cudaStream_t to = (cudaStream_t)stream;
  if (select->maps != NULL && op->source_rows > 0 && op->source_rows <= tile_rows_few(op->heads)) {
    return select_few(to, select);
  }
  struct select_args args = args_of(select, 0, op->rows.m);
  scratch_carve_many(&args, op->scratch, op->rows.m, select->multiprocessors);
  return args.heads_padded == 64 ? launch<shape<64, 2>>(to, &args, select->multiprocessors)
                                 : launch<shape<32, 4>>(to, &args, select->multiprocessors);
}
