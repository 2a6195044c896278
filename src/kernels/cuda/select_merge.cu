/* Rows whose keys were split over pieces: the best of the best. A block takes one row of the tile in which a border
 * between two pieces lies; of several borders in one tile the first does the work. */
#include "base/assert.h"
#include "kernels/cuda/cuda_topk.cuh"
#include "kernels/cuda/select_parts.cuh"

#define THREADS 512
#define PIECES_MAX 512

/* The tile that border `piece` is the first to cut; false if there is none. */
QUIRE_DEVICE bool tile_cut(const struct select_args &args, int piece, int pieces, struct select_tile *tile_out) {
  int64_t units = args.plan->units;
  int64_t border = select_piece_begin(units, piece, pieces);
  if (border <= 0 || border >= units) {
    return false;
  }
  *tile_out = args.tiles[select_tile_of(args, border)];
  return tile_out->begin < border && select_piece_begin(units, piece - 1, pieces) <= tile_out->begin;
}

/* The slots of a row of the tile, one a piece. */
QUIRE_DEVICE int collect(const struct select_args &args, const struct select_tile &tile, int piece, int tile_row,
                         struct topk_segment *segments) {
  int pieces = gridDim.x + 1;
  int count = 0;
  for (int at = piece - 1; at < pieces; at++) {
    int64_t begin = select_piece_begin(args.plan->units, at, pieces);
    int64_t end = select_piece_begin(args.plan->units, at + 1, pieces);
    if (begin >= tile.begin + tile.units) {
      break;
    }
    if (begin < end) {
      int64_t slot = ((int64_t)at * 2 + (begin <= tile.begin ? 1 : 0)) * args.tile_rows + tile_row;
      segments[count].candidates = args.slots + slot * args.topk;
      segments[count].count = args.slot_counts[slot];
      count++;
    }
  }
  return count;
}

static __global__ void __launch_bounds__(THREADS) merge(const struct select_args args) {
  __shared__ struct topk_work work;
  __shared__ struct topk_segment segments[PIECES_MAX];
  __shared__ int segment_count;
  struct select_tile tile;
  int piece = (int)blockIdx.x + 1;
  int tile_row = (int)blockIdx.y;
  hopper_launch_wait();
  if (!tile_cut(args, piece, (int)gridDim.x + 1, &tile) || tile_row >= tile.rows ||
      select_span(args, tile.row + tile_row) == 0) {
    return;
  }
  if (threadIdx.x == 0) {
    segment_count = collect(args, tile, piece, tile_row, segments);
  }
  __syncthreads();
  struct topk_group group = {&work, (int)threadIdx.x, THREADS, 1};
  struct topk_segments from = {segments, segment_count};
  int32_t total = 0;
  for (int i = 0; i < segment_count; i++) {
    total += segments[i].count;
  }
  int64_t row = tile.row + tile_row;
  uint64_t pivot = total > args.topk ? topk_pivot(group, from, args.topk) : 0;
  topk_list(group, from, pivot, args.rows.limit[row], args.indices_out + row * args.topk);
  if (threadIdx.x == 0) {
    args.counts_out[row] = args.topk;
  }
}

void select_merge(cudaStream_t stream, const struct select_args *args, int pieces) {
  QUIRE_ASSERT(pieces <= PIECES_MAX);
  if (pieces > 1) {
    cudaLaunchAttribute early = select_early();
    cudaLaunchConfig_t config = {
        dim3((uint32_t)pieces - 1, (uint32_t)args->tile_rows), dim3(THREADS), 0, stream, &early, 1};
    cudaLaunchKernelEx(&config, merge, *args);
  }
}
