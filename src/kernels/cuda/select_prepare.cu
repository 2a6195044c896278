/* Before the scores: block 0 plans the tiles, every other block quantises the heads of one row, or lists all it
 * sees. */
#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/quantise.cuh"
#include "kernels/cuda/select_parts.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define HEADS_A_WARP (QUIRE_CUDA_INDEX_HEADS_MAX / WARPS)

enum scan { SCAN_MAX, SCAN_SUM };

/* Fold of the values of all threads before this one (0, or -1 for SCAN_MAX, before the first). */
template <enum scan SCAN> QUIRE_DEVICE int64_t below(int64_t value, int64_t *warp_fold, int64_t *total_out) {
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  int64_t none = SCAN == SCAN_MAX ? -1 : 0;
  int64_t fold = value;
  for (int step = 1; step < 32; step *= 2) {
    int64_t other = __shfl_up_sync(~0u, fold, step);
    if (lane >= step) {
      fold = SCAN == SCAN_SUM ? fold + other : other > fold ? other : fold;
    }
  }
  if (lane == 31) {
    warp_fold[warp] = fold;
  }
  __syncthreads();
  int64_t before = none;
  int64_t total = none;
  for (int i = 0; i < WARPS; i++) {
    int64_t next = SCAN == SCAN_SUM ? total + warp_fold[i] : warp_fold[i] > total ? warp_fold[i] : total;
    before = i == warp ? total : before;
    total = next;
  }
  int64_t lanes_before = __shfl_up_sync(~0u, fold, 1);
  lanes_before = lane == 0 ? none : lanes_before;
  __syncthreads();
  *total_out = total;
  return SCAN == SCAN_SUM ? before + lanes_before : lanes_before > before ? lanes_before : before;
}

/* The tile that begins at row; no units when none of its rows scores. */
QUIRE_DEVICE struct select_tile tile_at(const struct select_args &args, int32_t row) {
  struct select_tile tile = {0, 0, row, 0, args.rows.source_of[row], 0, 0, 0};
  while (tile.rows < args.tile_rows && row + tile.rows < args.rows.m &&
         args.rows.source_of[row + tile.rows] == tile.source) {
    if (select_span(args, row + tile.rows) > 0 && args.rows.limit[row + tile.rows] > tile.limit) {
      tile.limit = args.rows.limit[row + tile.rows];
    }
    tile.rows++;
  }
  if (tile.limit > 0) {
    tile.units = (tile.limit - select_base(args) + args.unit_keys - 1) / args.unit_keys;
  }
  return tile;
}

QUIRE_DEVICE bool begins_source(const struct select_args &args, int32_t row) {
  return row == 0 || args.rows.source_of[row] != args.rows.source_of[row - 1];
}

/* One block. A thread walks its share of the rows three times: for the start of the source its first row belongs to,
 * for the number of its tiles and units, and to write them. */
QUIRE_DEVICE void plan_tiles(const struct select_args &args) {
  __shared__ int64_t warp_fold[WARPS];
  int32_t each = (args.rows.m + THREADS - 1) / THREADS;
  int32_t begin = threadIdx.x * each < args.rows.m ? threadIdx.x * each : args.rows.m;
  int32_t end = begin + each < args.rows.m ? begin + each : args.rows.m;
  int64_t start = -1;
  int64_t total;
  for (int32_t row = begin; row < end; row++) {
    start = begins_source(args, row) ? row : start;
  }
  start = below<SCAN_MAX>(start, warp_fold, &total);
  int64_t tiles = 0;
  int64_t units = 0;
  int64_t row_units = 0;
  int64_t source_start = start;
  for (int32_t row = begin; row < end; row++) {
    source_start = begins_source(args, row) ? row : source_start;
    if ((row - source_start) % args.tile_rows == 0) {
      struct select_tile next = tile_at(args, row);
      tiles += next.units > 0;
      units += next.units;
      row_units += (int64_t)next.units * next.rows;
    }
  }
  int64_t tile = below<SCAN_SUM>(tiles, warp_fold, &total);
  if (threadIdx.x == 0) {
    args.plan->tiles = (int32_t)total;
  }
  int64_t unit = below<SCAN_SUM>(units, warp_fold, &total);
  if (threadIdx.x == 0) {
    args.plan->units = total;
  }
  int64_t row_unit = below<SCAN_SUM>(row_units, warp_fold, &total);
  source_start = start;
  for (int32_t row = begin; row < end; row++) {
    source_start = begins_source(args, row) ? row : source_start;
    if ((row - source_start) % args.tile_rows == 0) {
      struct select_tile next = tile_at(args, row);
      next.begin = unit;
      next.rows_before = row_unit;
      if (next.units > 0) {
        for (int32_t i = 0; i < next.rows && args.tile_of != NULL; i++) {
          args.tile_of[row + i] = (int32_t)tile;
        }
        args.tiles[tile++] = next;
        unit += next.units;
        row_unit += (int64_t)next.units * next.rows;
      }
    }
  }
}

QUIRE_DEVICE void take_all(const struct select_args &args, int32_t row) {
  int32_t visible = args.rows.limit[row] - args.rows.first;
  int32_t count = visible > 0 ? visible : 0;
  for (int32_t i = threadIdx.x; i < args.topk; i += THREADS) {
    args.indices_out[(int64_t)row * args.topk + i] = i < count ? args.rows.first + i : -1;
  }
  if (threadIdx.x == 0) {
    args.counts_out[row] = count;
  }
}

/* A warp a head, and all its loads before it works on any. Weights lie as multiplying lanes take them, four at a time:
 * of heads 16 i + 2 t, + 1, + 8, + 9 for t = 0..3. */
QUIRE_DEVICE void quantise_row(const struct select_args &args, int32_t row) {
  int lane = threadIdx.x % 32;
  float4 q[HEADS_A_WARP];
  float w[HEADS_A_WARP];
#pragma unroll
  for (int i = 0; i < HEADS_A_WARP; i++) {
    int head = threadIdx.x / 32 + i * WARPS;
    if (head < args.heads) {
      int64_t from = (int64_t)row * args.heads + head;
      q[i] = quantise_load(args.q + from * QUIRE_INDEX_DIM + lane * 4);
      w[i] = args.w[from];
    }
  }
#pragma unroll
  for (int i = 0; i < HEADS_A_WARP; i++) {
    int head = threadIdx.x / 32 + i * WARPS;
    if (head >= args.heads_padded) {
      break;
    }
    int64_t to = (int64_t)row * args.heads_padded + head;
    uint32_t codes = 0;
    float weight = 0.0f;
    if (head < args.heads) {
      float scale;
      codes = quantise_block(q[i], args.any_scale, &scale);
      weight = __fmul_rn(w[i], scale);
    }
    *(uint32_t *)(args.codes + (to - head) * QUIRE_INDEX_DIM + select_swizzled(head, lane / 4) + lane % 4 * 4) = codes;
    if (lane == 0) {
      args.weights[to - head % 16 + head % 8 / 2 * 4 + head / 8 % 2 * 2 + head % 2] = weight;
    }
  }
}

/* No share of the row has kept anything yet. */
QUIRE_DEVICE void row_begin(const struct select_args &args, int32_t row) {
  for (int i = threadIdx.x; i < TOPK_BINS; i += THREADS) {
    args.row_bins[(int64_t)row * TOPK_BINS + i] = 0;
  }
  if (threadIdx.x == 0) {
    args.row_shares[row] = 0;
  }
}

static __global__ void __launch_bounds__(THREADS) prepare(const struct select_args args) {
  hopper_launch_next();
  if (blockIdx.x == 0) {
    plan_tiles(args);
    return;
  }
  int32_t row = (int32_t)blockIdx.x - 1;
  if (select_span(args, row) > 0) {
    if (args.row_bins != NULL) {
      row_begin(args, row);
    }
    quantise_row(args, row);
  } else if (args.scores_out == NULL) {
    take_all(args, row);
  }
}

void select_prepare(cudaStream_t stream, const struct select_args *args) {
  QUIRE_ASSERT(args->rows.m > 0);
  prepare<<<(uint32_t)args->rows.m + 1, THREADS, 0, stream>>>(*args);
}
