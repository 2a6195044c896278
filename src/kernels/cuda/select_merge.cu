/* Rows whose keys were split over pieces: the best of the best.
 *
 * Of tiles that pieces cut, a block takes one row of the tile in which a border between two pieces lies; of several
 * borders in one tile the first does the work. Where rows are few a source a block takes one row of the batch. */
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
  struct topk_group group = {&work, &work.scan, (int)threadIdx.x, THREADS, 1};
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

/* --- shares --- */

#define SHARE_THREADS 1024

struct shares {
  struct select_tile tile;
  int32_t row;      /* of the tile */
  int64_t at;       /* of the first piece's share of that row; the next is args.tile_rows further */
  int first, count; /* pieces */
};

/* The shares of a row of the batch, which scores. */
QUIRE_DEVICE struct shares shares_of(const struct select_args &args, int32_t row, int pieces) {
  struct shares shares;
  int32_t index = args.tile_of[row];
  int64_t units = args.plan->units;
  shares.tile = args.tiles[index];
  shares.row = row - shares.tile.row;
  shares.first = select_piece_of(units, shares.tile.begin, pieces);
  shares.count = select_piece_of(units, shares.tile.begin + shares.tile.units - 1, pieces) - shares.first + 1;
  shares.at = ((int64_t)index + shares.first) * args.tile_rows + shares.row;
  return shares;
}

/* begin and count have room for a run of each warp of each piece, before for one more, piece for pieces. */
struct run_table {
  uint32_t *begin, *count, *before;
  int32_t *units; /* of the tile in a piece, [2 i] from and [2 i + 1] to; as many where the piece has none */
};

/* The units of the pieces; a barrier follows. */
QUIRE_DEVICE void pieces_of(const struct select_args &args, const struct shares &shares, int pieces,
                            const struct run_table &table) {
  for (int i = threadIdx.x; i < shares.count; i += SHARE_THREADS) {
    int64_t begin = select_piece_begin(args.plan->units, shares.first + i, pieces) - shares.tile.begin;
    int64_t end = select_piece_begin(args.plan->units, shares.first + i + 1, pieces) - shares.tile.begin;
    table.units[2 * i] = begin > 0 ? (int32_t)begin : 0;
    table.units[2 * i + 1] = end < shares.tile.units ? (int32_t)end : shares.tile.units;
  }
}

/* The runs of all warps in all shares. Pieces without units are runs of 0. */
QUIRE_DEVICE struct topk_runs runs_of(const struct select_args &args, const struct shares &shares,
                                      const struct run_table &table, const struct topk_group &group) {
  int64_t origin = select_run_begin(shares.tile, shares.row, 0, 0, 0);
  int32_t runs = shares.count * SELECT_FEW_WARPS;
  uint32_t chunks = 0; /* of all runs so far */
  for (int32_t base = 0; base < runs; base += group.threads) {
    int32_t run = base + group.thread;
    uint32_t count = 0;
    if (run < runs) {
      int piece = run / SELECT_FEW_WARPS;
      int warp = run % SELECT_FEW_WARPS;
      int32_t begin = table.units[2 * piece];
      int32_t units = table.units[2 * piece + 1] - begin;
      if (units > 0) {
        count = args.share_counts[(shares.at + (int64_t)piece * args.tile_rows) * SELECT_FEW_WARPS + warp];
      }
      table.begin[run] = (uint32_t)(select_run_begin(shares.tile, shares.row, begin, units, warp) - origin);
      table.count[run] = count;
    }
    uint32_t total;
    uint32_t before = topk_sum_below(group, (count + TOPK_RUN_CHUNK - 1) / TOPK_RUN_CHUNK, &total);
    if (run < runs) {
      table.before[run] = chunks + before;
    }
    chunks += total;
  }
  if (group.thread == 0) {
    table.before[runs] = chunks;
  }
  topk_sync(group);
  struct topk_runs from = {args.candidates + origin, table.begin, table.count, table.before, runs};
  return from;
}

#define CLOSE 4096   /* candidates of the border's bin that are looked at in shared memory */
#define FINE_BITS 11 /* of the key, below those that make a bin and as many as a digit has */

struct share_memory {
  struct topk_work work;
  uint32_t bins[TOPK_BINS];
  uint32_t fine[1 << FINE_BITS];
  uint64_t close[CLOSE];
  uint32_t closer;   /* candidates in close */
  uint32_t table[1]; /* of runs and pieces, as long as it needs to be */
};

QUIRE_DEVICE uint32_t fine_digit(uint64_t candidate) {
  return (uint32_t)(candidate >> (32 + TOPK_BIN_SHIFT - FINE_BITS)) & ((1u << FINE_BITS) - 1);
}

/* Sets the bits of the `left` best of the border bin's candidates, all in memory->close; false, and no more than some
 * of them set, if too many of them are nearly equal. */
QUIRE_DEVICE bool close_list(const struct topk_group &group, struct share_memory *memory, uint32_t bucket,
                             uint32_t left) {
  struct topk_work *work = group.work;
  for (uint32_t i = (uint32_t)group.thread; i < bucket; i += (uint32_t)group.threads) {
    atomicAdd(&memory->fine[fine_digit(memory->close[i])], 1u);
  }
  if (group.thread == 0) {
    work->kept = 0;
  }
  topk_sync(group);
  topk_digit(group, memory->fine, 1 << FINE_BITS, left);
  uint32_t digit = group.scan->digit;
  uint32_t count = group.scan->bucket;
  left -= group.scan->above;
  if (count > TOPK_CLOSE) {
    return false;
  }
  for (uint32_t i = (uint32_t)group.thread; i < bucket; i += (uint32_t)group.threads) {
    uint64_t candidate = memory->close[i];
    if (fine_digit(candidate) > digit) {
      topk_bit(work->bitmap, topk_position(candidate));
    } else if (fine_digit(candidate) == digit) {
      work->close[atomicAdd(&work->kept, 1u)] = candidate;
    }
  }
  topk_sync(group);
  topk_rank(group, count, [=](uint64_t candidate, uint32_t better) {
    if (better < left) {
      topk_bit(work->bitmap, topk_position(candidate));
    }
  });
  topk_sync(group);
  return true;
}

/* Empties what runs_list counts and marks in; a barrier follows. */
QUIRE_DEVICE void runs_begin(const struct topk_group &group, struct share_memory *memory, int32_t limit) {
  topk_bits_clear(group, topk_words(0, limit));
  for (int i = group.thread; i < 1 << FINE_BITS; i += group.threads) {
    memory->fine[i] = 0;
  }
  if (group.thread == 0) {
    memory->closer = 0;
  }
}

/* The k best of the runs, ascending; false, with nothing written, where the bitmap or what shared memory has room for
 * does not do. */
QUIRE_DEVICE bool runs_list(const struct topk_group &group, const struct topk_runs &from, struct share_memory *memory,
                            int32_t k, int32_t limit, int32_t *positions_out) {
  struct topk_border border = topk_border_of(group, memory->bins, k);
  int32_t words = topk_words(0, limit);
  if (border.bucket > CLOSE || words * 32 < limit || border.bin == 0 || border.bin == TOPK_BINS - 1) {
    return false;
  }
  int32_t lowest = (int32_t)(topk_bin_key((uint32_t)border.bin) & 0x7fffffffu); /* the bits of a positive score */
  int32_t above = (int32_t)(topk_bin_key((uint32_t)border.bin + 1) & 0x7fffffffu);
  topk_each_held(group, from, [=](uint32_t bits, uint32_t low) {
    if ((int32_t)bits >= above) {
      topk_bit(memory->work.bitmap, (int32_t)~low);
    } else if ((int32_t)bits >= lowest) {
      memory->close[atomicAdd(&memory->closer, 1u)] = (uint64_t)(bits | 0x80000000u) << 32 | low;
    }
  });
  topk_sync(group);
  if (!close_list(group, memory, border.bucket, border.left)) {
    return false;
  }
  topk_bits_list(group, 0, words, positions_out);
  return true;
}

/* Until all shares of the row are scored; a block's barrier follows. One thread. */
QUIRE_DEVICE void shares_wait(const struct shares &shares, const struct run_table &table, const uint32_t *row_shares) {
  uint32_t count = 0; /* pieces that have units of the row */
  for (int i = 0; i < shares.count; i++) {
    count += table.units[2 * i] < table.units[2 * i + 1];
  }
  uint32_t scored;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(scored) : "l"(row_shares) : "memory");
  } while (scored != count);
}

/* Runs beside the scores of other rows: the score kernel lets this launch begin when it has seen the plan itself, all
 * its blocks being there by then, so that they end whatever waits for them here. */
static __global__ void __launch_bounds__(SHARE_THREADS) merge_shares(const struct select_args args, int pieces) {
  extern __shared__ __align__(16) uint8_t share_bytes[];
  struct share_memory *memory = (struct share_memory *)share_bytes;
  int32_t row = (int32_t)blockIdx.x;
  if (select_span(args, row) == 0) {
    hopper_launch_wait();
    return;
  }
  struct topk_group group = {&memory->work, &memory->work.scan, (int)threadIdx.x, SHARE_THREADS, 1};
  struct shares shares = shares_of(args, row, pieces);
  int room = pieces * SELECT_FEW_WARPS;
  struct run_table table = {memory->table, memory->table + room, memory->table + 2 * room,
                            (int32_t *)memory->table + 3 * room + 1};
  int32_t limit = args.rows.limit[row];
  pieces_of(args, shares, pieces, table);
  runs_begin(group, memory, limit);
  topk_sync(group);
  if (threadIdx.x == 0) {
    shares_wait(shares, table, args.row_shares + row);
  }
  topk_sync(group);
  static_assert(SHARE_THREADS == TOPK_BINS, "a thread a bin");
  memory->bins[threadIdx.x] = args.row_bins[(int64_t)row * TOPK_BINS + threadIdx.x];
  struct topk_runs from = runs_of(args, shares, table, group);
  int32_t *to = args.indices_out + (int64_t)row * args.topk;
  if (!runs_list(group, from, memory, args.topk, limit, to)) {
    topk_sync(group);
    topk_list_binned(group, from, args.topk, memory->bins, limit, to);
  }
  if (threadIdx.x == 0) {
    args.counts_out[row] = args.topk;
  }
  hopper_launch_wait(); /* so that what follows this launch follows the one before, too */
}

enum quire_status select_merge_shares(cudaStream_t stream, const struct select_args *args, int pieces) {
  size_t bytes = sizeof(struct share_memory) + (size_t)pieces * (3 * SELECT_FEW_WARPS + 2) * sizeof(uint32_t);
  QUIRE_ASSERT(pieces <= PIECES_MAX);
  if (cudaFuncSetAttribute(merge_shares, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  cudaLaunchAttribute early = select_early();
  cudaLaunchConfig_t config = {dim3((uint32_t)args->rows.m), dim3(SHARE_THREADS), bytes, stream, &early, 1};
  cudaLaunchKernelEx(&config, merge_shares, *args, pieces);
  return QUIRE_OK;
}
