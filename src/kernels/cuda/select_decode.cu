/* select where rows are few a source: decode, one row a request or one and its drafts. Bound by reading keys.
 *
 * A block works on one piece of the line of units (select_parts.cuh). Three warps have keys copied (select_stream.cuh),
 * twelve multiply, a warp group each 64 of a unit's keys with the heads of all the tile's rows (at most 128 columns). A
 * warp keeps what may be among the best in a run of its own, which has room for all it scores, so nothing is ever cut,
 * counted or waited for on the way: the position in the run is in a register. Scores that were kept are counted in
 * bins; one more warp adds them, again and again, to the bins of the row in memory, where all shares of the row meet,
 * and raises the thresholds below which nothing is kept any more. Nobody waits for it: counts only grow, so what was
 * counted so far is reason enough. Lengths of runs go out at the end of a share; when the row has all its shares, the
 * last launch (select_merge.cu) finds the best in all its runs.
 *
 * Rejected: lists of bounded length that are cut when full (a look at the list is a trip to memory, while keys wait),
 * all scores to memory (3 % more bytes a row, and as much to read again), looks at the bins by those who multiply (a
 * fifteenth of their time). */
#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/select_fold.cuh"
#include "kernels/cuda/select_parts.cuh"
#include "kernels/cuda/select_products.cuh"
#include "kernels/cuda/select_stream.cuh"

#define MATH_REGISTERS 152 /* 3 * 152 + 56 = the 4 * 128 that a block of 16 warps starts with */
#define SIDE_REGISTERS 56
#define LOOK_PAUSE_NS 500
#define FEW_STAGES 4 /* more under way are no faster: the memory then serves multiprocessors less evenly */

template <int HEADS_, int ROWS_> struct shape {
  static constexpr int HEADS = HEADS_;
  static constexpr int ROWS = ROWS_;
  static constexpr int KEYS = 64 * MATH_GROUPS; /* of a unit */
  static constexpr int COLUMNS = HEADS * ROWS;
  static constexpr int SCORES = ROWS > 1 ? ROWS / 2 : 1; /* of a lane and 16 keys */
  static constexpr int PARTS = COLUMNS == 128 ? 2 : 1;   /* of a unit's products, each a chain of its own */
  static constexpr int PART_ROWS = ROWS / PARTS;
  static constexpr int PART_PRODUCTS = PART_ROWS * HEADS / 2;
  static constexpr int LINE = 4; /* units in a straight line of code */
  static constexpr int FIXED_BYTES = HEADS_KEPT * COLUMNS * (KEY_BYTES + 4) + ROWS * TOPK_BINS * 8 + 2048;
  static constexpr int STAGE_BYTES = KEYS * (KEY_BYTES + 4);
  static constexpr int STAGES_FIT = (SHARED_MAX - FIXED_BYTES) / STAGE_BYTES;
  static constexpr int STAGES = STAGES_FIT < FEW_STAGES ? STAGES_FIT : FEW_STAGES;
  static_assert(COLUMNS <= 128 && KEYS == SELECT_FEW_KEYS && MATH_WARPS == SELECT_FEW_WARPS, "as the scratch is laid");
};

template <typename S> struct block_memory {
  struct stream_ring<S> ring;
  uint32_t bins[S::ROWS][TOPK_BINS]; /* of what is kept; read while they are counted in, with hopper_peek */
  uint32_t told[S::ROWS][TOPK_BINS]; /* of them to the bins of the whole row */
  float thresholds[S::ROWS];         /* NaN: none yet; as well */
  uint32_t warps_done;               /* of the multiplying ones, with the scores of all shares so far */
  uint64_t begun, ended;             /* a share: bins are empty; all is kept and written */
};

/* What a multiplying thread knows of its scores. */
template <typename S> struct lane_state {
  int group, warp;          /* of the multiplying ones */
  int key;                  /* its key of a stage, the warp group's 64 */
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
  state.key = state.warp % 4 * 16 + lane / 4 + half * 8;
  state.row = S::ROWS > 1 ? lane % 2 : 0;
  state.rivals = S::ROWS > 1 ? 0x55555555u << lane % 2 : ~0u;
  return state;
}

/* Begins a share. */
template <typename S>
QUIRE_DEVICE void share_begin(const struct select_args &args, const struct item &item, struct lane_state<S> *state) {
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    int row = state->row + 2 * o;
    bool twin = S::ROWS == 1 && threadIdx.x % 4 >= 2;
    state->span[o] = row < item.tile.rows && !twin ? (uint32_t)select_span(args, item.tile.row + row) : 0;
    state->run[o] = args.candidates + select_run_begin(item.tile, row < item.tile.rows ? row : 0, item.begin,
                                                       item.end - item.begin, state->warp);
    asm("" : "+l"(state->run[o])); /* so that it is not computed anew for every candidate */
    state->kept[o] = 0;
  }
}

/* Writes out what the merge needs to know of a share. */
template <typename S>
QUIRE_DEVICE void share_end(const struct select_args &args, const struct item &item,
                            const struct lane_state<S> &state) {
  int64_t share = ((int64_t)item.index + blockIdx.x) * S::ROWS;
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    if (threadIdx.x % 32 == state.row) {
      args.share_counts[(share + state.row + 2 * o) * MATH_WARPS + state.warp] = state.kept[o];
    }
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

/* Where `keeps`, writes a candidate and counts it, without a branch: products are under way. The merge reads it soon:
 * keys that stream by should not push it out of the second-level cache. */
QUIRE_DEVICE void candidate_keep(bool keeps, uint64_t *to, float score, int32_t position, uint32_t *bin) {
  asm volatile("{\n.reg .pred p;\n.reg .b64 policy;\nsetp.ne.s32 p, %0, 0;\n"
               "createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
               "@p st.global.L2::cache_hint.v2.b32 [%1], {%2, %3}, policy;\n"
               "@p red.shared.add.u32 [%4], 1;\n}" ::"r"((int)keeps),
               "l"(to), "r"(~position), "r"(quire_bits_of(score)), "r"(hopper_shared(bin))
               : "memory");
}

/* Keeps scores, or writes them out (DUMP). `seen`: their position, from first on. */
template <typename S, bool DUMP>
QUIRE_DEVICE void scores_keep(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, const float (&scores)[S::SCORES], uint32_t seen) {
  int32_t position = args.rows.first + (int32_t)seen;
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
    bool keeps = (int)(seen < state->span[o]) & (int)!(score <= state->threshold[o]);
    uint32_t keepers = __ballot_sync(~0u, keeps) & state->rivals;
    uint32_t at = state->kept[o] + (uint32_t)__popc(keepers & ((1u << threadIdx.x % 32) - 1));
    candidate_keep(keeps, state->run[o] + at, score, position, &shared->bins[row][score_bin(score)]);
    state->kept[o] += (uint32_t)__popc(keepers);
  }
}

/* Operands: the heads, and the warp group's keys of stage 0. */
struct operands {
  uint64_t heads, keys;
};

/* What a multiplying thread works with. */
template <typename S> struct bench {
  struct operands operands;
  struct weights<S> weights;
  struct turn *turn;
};

/* Begins to multiply the warp group's 64 keys of the stage in turn with the heads of a part. */
template <typename S>
QUIRE_DEVICE void part_multiply(const struct bench<S> &bench, int part, float (&products)[S::PART_PRODUCTS]) {
  products_issue(products, bench.operands.keys + (uint64_t)bench.turn->stage * (64 * KEY_BYTES >> 4),
                 bench.operands.heads + (uint64_t)part * (S::PART_ROWS * S::HEADS * KEY_BYTES >> 4));
}

/* UNITS units from the lane's position `seen` on, in one straight line: where products under way cross the end of a
 * loop the compiler waits for them. Of the parts of all units one is multiplied while the one before is summed up;
 * scores are kept at the end, so that none waits for another. */
template <typename S, bool DUMP, int UNITS>
QUIRE_DEVICE void line_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                             struct lane_state<S> *state, const struct bench<S> &bench, uint32_t seen) {
  constexpr int PARTS = UNITS * S::PARTS;
  float products[2][S::PART_PRODUCTS];
  float scores[UNITS][S::SCORES];
  float sum[S::ROWS][2];
  float scale = 0.0f;
  hopper_barrier_wait(&shared->ring.full[state->group][bench.turn->stage], bench.turn->phase);
  part_multiply<S>(bench, 0, products[0]);
  int stage = bench.turn->stage; /* of the part that is summed up */
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    if (part % S::PARTS == 0) {
      stage = bench.turn->stage;
      scale = shared->ring.scales[state->group][stage][state->key];
    }
    if (part + 1 < PARTS) {
      if ((part + 1) % S::PARTS == 0) {
        turn_next<S::STAGES>(bench.turn);
        hopper_barrier_wait(&shared->ring.full[state->group][bench.turn->stage], bench.turn->phase);
      }
      part_multiply<S>(bench, (part + 1) % S::PARTS, products[(part + 1) % 2]);
      products_wait<1>(products[part % 2]);
    } else {
      products_wait<0>(products[part % 2]);
    }
    products_fold<S>(products[part % 2], bench.weights, part % S::PARTS * S::PART_ROWS, sum);
    if ((part + 1) % S::PARTS == 0) {
      hopper_barrier_arrive_warp(&shared->ring.empty[state->group][stage]);
      scores_fold<S>(sum, scale, scores[part / S::PARTS]);
    }
  }
  turn_next<S::STAGES>(bench.turn);
#pragma unroll
  for (int o = 0; o < S::SCORES; o++) {
    state->threshold[o] = quire_float_of(hopper_peek(&shared->thresholds[state->row + 2 * o]));
  }
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    scores_keep<S, DUMP>(args, shared, item, state, scores[unit], seen + unit * S::KEYS);
  }
}

/* Scores the units of the share. */
template <typename S, bool DUMP>
QUIRE_DEVICE void units_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, const struct bench<S> &bench) {
  uint32_t seen =
      (uint32_t)(select_base(args) - args.rows.first + item.begin * S::KEYS + state->group * 64 + state->key);
  int32_t unit = item.begin;
#pragma unroll 1
  for (; unit + S::LINE <= item.end; unit += S::LINE, seen += S::LINE * S::KEYS) {
    line_score<S, DUMP, S::LINE>(args, shared, item, state, bench, seen);
  }
#pragma unroll 1
  for (; unit < item.end; unit++, seen += S::KEYS) {
    line_score<S, DUMP, 1>(args, shared, item, state, bench, seen);
  }
}

template <typename S, bool DUMP>
QUIRE_DEVICE void share_score(const struct select_args &args, struct block_memory<S> *shared, const struct item &item,
                              struct lane_state<S> *state, struct turn *turn, const struct turn &heads) {
  struct bench<S> bench;
  bench.turn = turn;
  bench.operands.keys = hopper_operand(hopper_shared(shared->ring.keys[state->group][0]));
  bench.operands.heads = hopper_operand(hopper_shared(shared->ring.heads[heads.stage]));
  hopper_barrier_wait(&shared->ring.heads_full[heads.stage], heads.phase);
  weights_load<S>(shared->ring.weights[heads.stage], &bench.weights);
  units_score<S, DUMP>(args, shared, item, state, bench);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared->warps_done, 1u);
  }
}

template <typename S, bool DUMP>
QUIRE_DEVICE void multiply(const struct select_args &args, struct block_memory<S> *shared) {
  struct walk walk = walk_begin(args);
  struct item item;
  struct turn turn = {0, 0};
  struct turn heads = {0, 0};
  struct lane_state<S> state = lane_begin<S>();
  uint32_t phase = 0; /* of shares */
  while (walk_next(args, &walk, &item)) {
    share_begin<S>(args, item, &state);
    hopper_barrier_wait(&shared->begun, phase);
    phase ^= 1;
    share_score<S, DUMP>(args, shared, item, &state, &turn, heads);
    hopper_barrier_arrive_warp(&shared->ring.heads_empty[heads.stage]);
    turn_next<HEADS_KEPT>(&heads);
    if (!DUMP) {
      share_end<S>(args, item, state);
    }
    hopper_barrier_arrive_warp(&shared->ended);
  }
}

/* --- looking --- */

QUIRE_DEVICE void bins_add(uint32_t *bin, uint32_t count) {
  if (count != 0) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(bin), "r"(count) : "memory");
  }
}

/* Four bins that others add to meanwhile. */
QUIRE_DEVICE uint4 bins_read(const uint32_t *bins) {
  uint4 four;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "l"(bins)
               : "memory");
  return four;
}

/* Adds what is new in the share's bins to those of the row. Returns the first of the highest 128 bins of the share that
 * are not empty; 0 if all are. A warp's work. */
QUIRE_DEVICE int bins_tell(const uint32_t *bins, uint32_t *told, uint32_t *row_bins) {
  int lane = threadIdx.x % 32;
  int highest = 0;
#pragma unroll 1
  for (int first = 0; first < TOPK_BINS; first += 128) {
    int at = first + lane * 4;
    uint4 now = hopper_peek4(bins + at);
    if (__any_sync(~0u, (now.x | now.y | now.z | now.w) != 0)) {
      highest = first;
      uint4 before = *(const uint4 *)(told + at);
      bins_add(row_bins + at, now.x - before.x);
      bins_add(row_bins + at + 1, now.y - before.y);
      bins_add(row_bins + at + 2, now.z - before.z);
      bins_add(row_bins + at + 3, now.w - before.w);
      *(uint4 *)(told + at) = now;
    }
  }
  return highest;
}

/* The bin in which the k-th best of what all shares of the row have told so far lies, those above bin top + 127 left
 * out; 0 if that is fewer. A warp's work. */
QUIRE_DEVICE uint32_t bins_look(const uint32_t *row_bins, int top, uint32_t k) {
  int lane = threadIdx.x % 32;
  uint32_t above = 0;
#pragma unroll 1
  for (; top >= 0; top -= 128) { /* of 128 bins a lane has four, lane 0 the highest */
    int at = top + 124 - lane * 4;
    uint4 four = bins_read(row_bins + at);
    uint32_t sum = four.x + four.y + four.z + four.w;
    uint32_t total = __reduce_add_sync(~0u, sum);
    if (above + total < k) {
      above += total;
      continue;
    }
    above += topk_warp_sum_below(sum, lane);
    uint32_t bin = 0;
    if (above < k && k <= above + sum) {
      uint32_t two = above + four.w + four.z;
      bin = (uint32_t)(at + 3) - (above + four.w < k) - (two < k) - (two + four.y < k);
    }
    return __reduce_max_sync(~0u, bin);
  }
  return 0;
}

/* Empties the share's bins. */
template <typename S> QUIRE_DEVICE void bins_begin(struct block_memory<S> *shared) {
  int lane = threadIdx.x % 32;
  for (int i = lane; i < S::ROWS * TOPK_BINS; i += 32) {
    shared->bins[i / TOPK_BINS][i % TOPK_BINS] = 0;
    shared->told[i / TOPK_BINS][i % TOPK_BINS] = 0;
  }
  if (lane < S::ROWS) {
    shared->thresholds[lane] = quire_float_of(0x7fc00000u);
  }
  hopper_barrier_arrive_warp(&shared->begun);
}

/* One look at the bins of all rows of a tile. */
template <typename S>
QUIRE_DEVICE void bins_look_all(const struct select_args &args, struct block_memory<S> *shared,
                                const struct item &item) {
  for (int row = 0; row < item.tile.rows; row++) {
    uint32_t *row_bins = args.row_bins + (int64_t)(item.tile.row + row) * TOPK_BINS;
    int highest = bins_tell(shared->bins[row], shared->told[row], row_bins);
    uint32_t bin = bins_look(row_bins, highest, (uint32_t)args.topk);
    if (bin > 0 && threadIdx.x % 32 == 0) {
      hopper_poke(&shared->thresholds[row], quire_bits_of(topk_score(topk_bin_key(bin) - 1)));
    }
  }
}

/* The end of a share, when nobody counts any more: tells the rest, and then that the row has one share more, for which
 * the merge waits; what the multiplying warps wrote before they arrived is there by then. */
template <typename S>
QUIRE_DEVICE void bins_end(const struct select_args &args, struct block_memory<S> *shared, const struct item &item) {
  for (int row = 0; row < item.tile.rows; row++) {
    bins_tell(shared->bins[row], shared->told[row], args.row_bins + (int64_t)(item.tile.row + row) * TOPK_BINS);
  }
  __syncwarp();
  if ((int)threadIdx.x % 32 < item.tile.rows) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(args.row_shares + item.tile.row + threadIdx.x % 32)
                 : "memory");
  }
}

/* The looking warp's work: tells what the share keeps, and raises thresholds to just below the lowest score of the bin
 * in which the k-th best of all shares of a row lies. */
template <typename S> QUIRE_DEVICE void look(const struct select_args &args, struct block_memory<S> *shared) {
  struct walk walk = walk_begin(args);
  struct item item;
  uint32_t done = 0;
  uint32_t phase = 0; /* of shares */
  while (walk_next(args, &walk, &item)) {
    bins_begin(shared);
    done += MATH_WARPS;
    while (__shfl_sync(~0u, hopper_peek(&shared->warps_done), 0) != done) {
      bins_look_all(args, shared, item);
      __nanosleep(LOOK_PAUSE_NS);
    }
    hopper_barrier_wait(&shared->ended, phase);
    phase ^= 1;
    bins_end(args, shared, item);
  }
}

template <typename S, bool DUMP>
static __global__ void __launch_bounds__(THREADS, 1)
    score_few(const __grid_constant__ struct select_args args, const __grid_constant__ struct quire_cuda_maps maps) {
  extern __shared__ __align__(1024) uint8_t memory[];
  struct block_memory<S> *shared = (struct block_memory<S> *)memory;
  int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    stream_init(&shared->ring);
    shared->warps_done = 0;
    hopper_barrier_init(&shared->begun, HOPPER_WARP_ARRIVALS);
    hopper_barrier_init(&shared->ended, MATH_WARPS * HOPPER_WARP_ARRIVALS);
  }
  __syncthreads();
  hopper_launch_wait();
  hopper_launch_next(); /* not before: the merge reads the plan of the launch in front of this one */
  if (warp >= MATH_WARPS) {
    hopper_registers_down<SIDE_REGISTERS>();
    if (warp < MATH_WARPS + MATH_GROUPS) {
      stream_keys<S>(args, maps, &shared->ring, warp - MATH_WARPS);
    } else {
      look<S>(args, shared);
    }
  } else {
    hopper_registers_up<MATH_REGISTERS>();
    multiply<S, DUMP>(args, shared);
  }
}

/* --- launching --- */

template <typename S>
static enum quire_status launch(cudaStream_t stream, struct select_args *args, const struct quire_cuda_maps *maps,
                                int pieces) {
  int bytes = (int)sizeof(block_memory<S>);
  bool dump = args->scores_out != NULL;
  void (*kernel)(struct select_args, struct quire_cuda_maps) = dump ? score_few<S, true> : score_few<S, false>;
  static_assert(sizeof(block_memory<S>) <= SHARED_MAX, "a shape that fits");
  args->tile_rows = S::ROWS;
  args->unit_keys = S::KEYS;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  select_prepare(stream, args);
  cudaLaunchAttribute early = select_early();
  cudaLaunchConfig_t config = {dim3((uint32_t)pieces), dim3(THREADS), (size_t)bytes, stream, &early, 1};
  cudaLaunchKernelEx(&config, kernel, *args, *maps);
  enum quire_status status = dump ? QUIRE_OK : select_merge_shares(stream, args, pieces);
  return status == QUIRE_OK && cudaGetLastError() != cudaSuccess ? QUIRE_ERR_RANK : status;
}

enum quire_status select_decode(cudaStream_t stream, struct select_args *args, const struct quire_cuda_maps *maps,
                                int pieces, int source_rows) {
  QUIRE_ASSERT(args->rows.m <= SELECT_FEW_ROWS && source_rows > 0 && maps != NULL);
  if (args->heads_padded == 64) {
    QUIRE_ASSERT(source_rows <= 2);
    return source_rows == 2 ? launch<shape<64, 2>>(stream, args, maps, pieces)
                            : launch<shape<64, 1>>(stream, args, maps, pieces);
  }
  QUIRE_ASSERT(args->heads_padded == 32 && source_rows <= 4);
  return source_rows > 2   ? launch<shape<32, 4>>(stream, args, maps, pieces)
         : source_rows > 1 ? launch<shape<32, 2>>(stream, args, maps, pieces)
                           : launch<shape<32, 1>>(stream, args, maps, pieces);
}
