/* select where rows are few a source: decode, one row a request or one and its drafts. Bound by reading keys.
 *
 * A block works on one piece of the line of units (select_parts.cuh). One warp group copies keys, three multiply, each 64
 * of a stage's keys with the heads of all the tile's rows (at most 128 columns). A warp keeps what may be among the best
 * in a run of its own, which has room for all it scores, so nothing is ever cut, counted or waited for on the way: the
 * position in the run is in a register. Scores that were kept are counted in bins; at distances that grow the multiplying
 * warp groups meet and raise the threshold below which nothing is kept any more. Bins and lengths of runs go out at the
 * end of a share, and the last launch (select_merge.cu) finds the best in all runs of a row.
 *
 * Rejected: lists of bounded length that are cut when full (a look at the list is a trip to memory, while keys wait), and
 * all scores to memory (3 % more bytes a row, and as much to read again). */
#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/select_fold.cuh"
#include "kernels/cuda/select_parts.cuh"
#include "kernels/cuda/select_products.cuh"
#include "kernels/cuda/select_stage.cuh"

#define FIRST_LOOK 12      /* units before the first look at the bins; then a quarter more each time */
#define MATH_REGISTERS 152 /* 3 * 152 + 56 = the 4 * 128 that a block of 16 warps starts with */
#define COPY_REGISTERS 56
#define BARRIER_MATH 1
#define BARRIER_GROUP 2 /* one a warp group */

template <int HEADS_, int ROWS_> struct shape {
  static constexpr int HEADS = HEADS_;
  static constexpr int ROWS = ROWS_;
  static constexpr int TILE_ROWS = ROWS_;
  static constexpr int KEY_GROUPS = MATH_GROUPS;
  static constexpr int KEYS = 64 * KEY_GROUPS; /* of a stage */
  static constexpr int COLUMNS = HEADS * ROWS;
  static constexpr int SCORES = ROWS > 1 ? ROWS / 2 : 1; /* of a lane and 16 keys */
  static constexpr int HEADS_KEPT = 2;
  static constexpr bool READERS_FENCE = true;
  static constexpr int FIXED_BYTES = HEADS_KEPT * COLUMNS * (KEY_BYTES + 4) + ROWS * TOPK_BINS * 4 + 2048;
  static constexpr int STAGE_BYTES = KEYS * (KEY_BYTES + 4);
  static constexpr int STAGES_FIT = (SHARED_MAX - FIXED_BYTES) / STAGE_BYTES;
  static constexpr int STAGES = STAGES_FIT < STAGES_MAX ? STAGES_FIT : STAGES_MAX;
  static_assert(COLUMNS <= 128 && KEYS == SELECT_FEW_KEYS && MATH_WARPS == SELECT_FEW_WARPS, "as the scratch is laid");
};

template <typename S> struct block_memory {
  struct select_ring<S> ring;
  uint32_t bins[S::ROWS][TOPK_BINS]; /* of what is kept */
  float thresholds[S::ROWS];         /* NaN: none yet */
  struct topk_scan scan[MATH_GROUPS];
};

QUIRE_DEVICE void math_sync(void) { hopper_threads_sync(BARRIER_MATH, MATH_GROUPS * 128); }

/* What a multiplying thread knows of its scores. */
template <typename S> struct lane_state {
  int group, warp;          /* of the multiplying ones */
  int key;                  /* its key of a stage */
  int row;                  /* of its first score; the next is two further */
  uint32_t rivals;          /* lanes with scores of the same row */
  uint32_t span[S::SCORES]; /* positions its rows score, from first on; 0 where another lane has the same score */
  float threshold[S::SCORES];
  uint64_t *run[S::SCORES];
  uint32_t kept[S::SCORES]; /* in the runs; the same for all rivals */
};

template <typename S> QUIRE_DEVICE struct lane_state<S> lane_begin(void) {
  int lane = threadIdx.x % 32;
  struct lane_state<S> state;
  state.group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* so that the compiler knows it is one for the warp */
  state.warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
  int half = S::ROWS > 1 ? lane / 2 % 2 : lane % 2;
  state.key = state.warp * 16 + lane / 4 + half * 8;
  state.row = S::ROWS > 1 ? lane % 2 : 0;
  state.rivals = S::ROWS > 1 ? 0x55555555u << lane % 2 : ~0u;
  return state;
}

/* Empties bins and thresholds, once all are done with the share before. */
template <typename S>
QUIRE_DEVICE void share_begin(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state) {
  math_sync();
  for (int i = threadIdx.x; i < S::ROWS * TOPK_BINS; i += MATH_GROUPS * 128) {
    shared->bins[i / TOPK_BINS][i % TOPK_BINS] = 0;
  }
  if (threadIdx.x < S::ROWS) {
    shared->thresholds[threadIdx.x] = quire_float_of(0x7fc00000u);
  }
  math_sync();
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    int row = state->row + 2 * o;
    bool twin = S::ROWS == 1 && threadIdx.x % 4 >= 2;
    state->span[o] = row < item.tile.rows && !twin ? (uint32_t)select_span(args, item.tile.row + row) : 0;
    state->threshold[o] = quire_float_of(0x7fc00000u);
    state->run[o] = args.candidates + select_run_begin(item.tile, row < item.tile.rows ? row : 0, item.begin,
                                                       item.end - item.begin, state->warp);
    asm("" : "+l"(state->run[o])); /* so that it is not computed anew for every candidate */
    state->kept[o] = 0;
  }
}

/* Writes out what the merge needs to know of a share. */
template <typename S>
QUIRE_DEVICE void share_end(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                            const struct lane_state<S> &state) {
  int64_t share = ((int64_t)item.index + blockIdx.x) * S::ROWS;
  math_sync();
  for (int i = threadIdx.x; i < S::ROWS * TOPK_BINS; i += MATH_GROUPS * 128) {
    args.share_bins[share * TOPK_BINS + i] = shared->bins[i / TOPK_BINS][i % TOPK_BINS];
  }
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    if (threadIdx.x % 32 == state.row) {
      args.share_counts[(share + state.row + 2 * o) * MATH_WARPS + state.warp] = state.kept[o];
    }
  }
}

/* Raises thresholds to just below the lowest score of the bin in which a row's k-th best lies. */
template <typename S>
QUIRE_DEVICE void thresholds_look(const struct select_args &args, struct block_memory<S> *shared,
                                  struct lane_state<S> *state) {
  struct topk_group group = {NULL, &shared->scan[state->group], (int)threadIdx.x % 128, 128,
                             BARRIER_GROUP + state->group};
  math_sync();
  for (int row = state->group; row < S::ROWS; row += MATH_GROUPS) {
    uint32_t kept = topk_digit(group, shared->bins[row], TOPK_BINS, (uint32_t)args.topk);
    if (group.thread == 0 && kept >= (uint32_t)args.topk && group.scan->digit > 0) {
      shared->thresholds[row] = topk_score(topk_bin_key(group.scan->digit) - 1);
    }
  }
  math_sync();
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    state->threshold[o] = shared->thresholds[state->row + 2 * o];
  }
}

/* A score as runs hold it: NaN as -inf, -0 as +0. */
QUIRE_DEVICE float score_ranked(float score) {
  float ranked;
  asm("max.f32 %0, %1, 0fff800000;" : "=f"(ranked) : "f"(score)); /* of a NaN and a number the number */
  return __fadd_rn(ranked, 0.0f);
}

/* topk_bin of the key of a ranked score. */
QUIRE_DEVICE int score_bin(float score) {
  int bin = ((int)quire_bits_of(score) >> TOPK_BIN_SHIFT) - (TOPK_BIN_FIRST - (int)(0x80000000u >> TOPK_BIN_SHIFT));
  return min(max(bin, 0), TOPK_BINS - 1);
}

/* Where `keeps`, writes a candidate and counts it, without a branch: products are under way. */
QUIRE_DEVICE void candidate_keep(bool keeps, uint64_t *to, float score, int32_t position, uint32_t *bin) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n"
               "@p st.global.v2.b32 [%1], {%2, %3};\n"
               "@p red.shared.add.u32 [%4], 1;\n}" ::"r"((int)keeps),
               "l"(to), "r"(~position), "r"(quire_bits_of(score)), "r"(hopper_shared(bin))
               : "memory");
}

/* Keeps scores, or writes them out (DUMP). `seen` counts positions from first on. */
template <typename S, bool DUMP>
QUIRE_DEVICE void scores_keep(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, const float (&scores)[S::SCORES], int32_t position) {
  uint32_t seen = (uint32_t)(position - args.rows.first);
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    int row = state->row + 2 * o;
    if (DUMP) {
      if (seen < state->span[o]) {
        args.scores_out[(item.tile.row + row) * args.scores_ld + position] = scores[o];
      }
      continue;
    }
    float score = score_ranked(scores[o]);
    bool keeps = seen < state->span[o] && !(score <= state->threshold[o]);
    uint32_t keepers = __ballot_sync(~0u, keeps) & state->rivals;
    uint32_t at = state->kept[o] + (uint32_t)__popc(keepers & ((1u << threadIdx.x % 32) - 1));
    candidate_keep(keeps, state->run[o] + at, score, position, &shared->bins[row][score_bin(score)]);
    state->kept[o] += (uint32_t)__popc(keepers);
  }
}

/* Operands: the heads, and the warp group's keys of stage 0. */
struct operands {
  uint32_t heads, keys;
};

/* Begins to multiply the warp group's 64 keys of a stage, once they are there. */
template <typename S>
QUIRE_DEVICE void stage_multiply(struct block_memory<S> *shared, const struct operands &operands,
                                 const struct turn &turn, float (&products)[S::COLUMNS / 2]) {
  hopper_barrier_wait(&shared->ring.full[turn.stage], turn.phase);
  hopper_proxy_fence();
  products_issue(products, operands.keys + (uint32_t)turn.stage * (S::KEYS * KEY_BYTES >> 4), operands.heads);
}

/* Sums of the products under way over heads, and the key's scale; gives the stage back. */
template <typename S>
QUIRE_DEVICE float stage_fold(struct block_memory<S> *shared, const struct weights<S> &weights, struct turn *turn,
                              int key, float (&products)[S::COLUMNS / 2], float (&sum)[S::ROWS][2]) {
  float scale = shared->ring.scales[turn->stage][key];
  products_wait<0>(products);
  hopper_barrier_arrive_warp(&shared->ring.empty[turn->stage]);
  turn_next<S::STAGES>(turn);
  products_fold<S, 0>(products, weights, sum);
  return scale;
}

/* What a multiplying thread works with. */
template <typename S> struct bench {
  struct operands operands;
  struct weights<S> weights;
  struct turn *turn;
};

/* Neighbouring units of a tile, at least one. */
struct units {
  int32_t begin, end;
};

/* Scores units of the share. While the products of one are on their way the scores of the
 * one before are kept. */
template <typename S, bool DUMP>
QUIRE_DEVICE void units_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, const struct bench<S> &bench, struct units units) {
  int32_t position = select_base(args) + units.begin * S::KEYS + state->key;
  struct turn *turn = bench.turn;
  float products[S::COLUMNS / 2];
  float sum[S::ROWS][2];
  float scores[S::SCORES];
  stage_multiply<S>(shared, bench.operands, *turn, products);
#pragma unroll 1
  for (int32_t unit = units.begin; unit < units.end - 1; unit++, position += S::KEYS) {
    float scale = stage_fold<S>(shared, bench.weights, turn, state->key, products, sum);
    stage_multiply<S>(shared, bench.operands, *turn, products);
    scores_fold<S>(sum, scale, scores);
    scores_keep<S, DUMP>(args, shared, item, state, scores, position);
  }
  float scale = stage_fold<S>(shared, bench.weights, turn, state->key, products, sum);
  scores_fold<S>(sum, scale, scores);
  scores_keep<S, DUMP>(args, shared, item, state, scores, position);
}

template <typename S, bool DUMP>
QUIRE_DEVICE void share_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, struct turn *turn, int kept) {
  struct bench<S> bench;
  bench.turn = turn;
  bench.operands.keys = hopper_operand_low(hopper_shared(shared->ring.keys[0]) + state->group * 64 * KEY_BYTES);
  bench.operands.heads = hopper_operand_low(hopper_shared(shared->ring.heads[kept]));
  hopper_barrier_wait(&shared->ring.full[turn->stage], turn->phase); /* the heads come with the first stage */
  weights_load<S>(shared->ring.weights[kept], &bench.weights);
  int32_t step = FIRST_LOOK; /* units to the next look */
  for (int32_t unit = item.begin; unit < item.end; unit += step) {
    if (!DUMP && unit > item.begin) {
      thresholds_look<S>(args, shared, state);
      step = (unit - item.begin + 3) / 4;
    }
    struct units units = {unit, unit + step < item.end ? unit + step : item.end};
    units_score<S, DUMP>(args, shared, item, state, bench, units);
  }
}

template <typename S, bool DUMP>
QUIRE_DEVICE void multiply(const struct select_args &args, struct block_memory<S> *shared) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct turn turn = {0, 0};
  struct turn heads = {0, 0};
  struct lane_state<S> state = lane_begin<S>();
  while (walk_next(args, &walk, &item)) {
    share_begin<S>(args, shared, item, &state);
    share_score<S, DUMP>(args, shared, item, &state, &turn, heads.stage);
    hopper_barrier_arrive_warp(&shared->ring.heads_empty[heads.stage]);
    turn_next<S::HEADS_KEPT>(&heads);
    if (!DUMP) {
      share_end<S>(args, shared, item, state);
    }
  }
}

template <typename S, bool DUMP>
static __global__ void __launch_bounds__(THREADS, 1) score_few(const __grid_constant__ struct select_args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  struct block_memory<S> *shared = (struct block_memory<S> *)memory;
  if (threadIdx.x == 0) {
    ring_init(&shared->ring);
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

template <typename S> static enum quire_status launch(cudaStream_t stream, struct select_args *args, int pieces) {
  int bytes = (int)sizeof(block_memory<S>);
  bool dump = args->scores_out != NULL;
  void (*kernel)(struct select_args) = dump ? score_few<S, true> : score_few<S, false>;
  static_assert(sizeof(block_memory<S>) <= SHARED_MAX, "a shape that fits");
  args->tile_rows = S::TILE_ROWS;
  args->unit_keys = S::KEYS;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  select_prepare(stream, args);
  cudaLaunchAttribute early = select_early();
  cudaLaunchConfig_t config = {dim3((uint32_t)pieces), dim3(THREADS), (size_t)bytes, stream, &early, 1};
  cudaLaunchKernelEx(&config, kernel, *args);
  enum quire_status status = dump ? QUIRE_OK : select_merge_shares(stream, args, pieces);
  return status == QUIRE_OK && cudaGetLastError() != cudaSuccess ? QUIRE_ERR_RANK : status;
}

enum quire_status select_decode(cudaStream_t stream, struct select_args *args, int pieces, int source_rows) {
  QUIRE_ASSERT(args->rows.m <= SELECT_FEW_ROWS && source_rows > 0);
  if (args->heads_padded == 64) {
    QUIRE_ASSERT(source_rows <= 2);
    return source_rows == 2 ? launch<shape<64, 2>>(stream, args, pieces) : launch<shape<64, 1>>(stream, args, pieces);
  }
  QUIRE_ASSERT(args->heads_padded == 32 && source_rows <= 4);
  return source_rows > 2   ? launch<shape<32, 4>>(stream, args, pieces)
         : source_rows > 1 ? launch<shape<32, 2>>(stream, args, pieces)
                           : launch<shape<32, 1>>(stream, args, pieces);
}
