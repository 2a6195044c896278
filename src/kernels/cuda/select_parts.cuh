/* What the launches of select share: the plan of tiles, the layout of the scratch, the arguments.
 *
 * A tile is up to tile_rows neighbouring rows of one source; a unit is unit_keys positions of a tile, from a multiple
 * of 64 at or below `first`. Units of all tiles form one line, which is cut into equal pieces, one a multiprocessor. A
 * tile that lies in one piece is finished there; one that is cut leaves the best of each piece in a slot, and a last
 * launch merges them. A piece cuts at most two tiles: the one it begins in (slot 0) and the one it ends in (slot 1).
 *
 * Where rows are few a source (select_decode.cu) nothing is finished in a piece: a share is what one piece has of one
 * tile, and a last launch takes the best of all shares of a row. Share i + p is that of tile i and piece p.
 *
 * Scratch:  plan | tiles [m] | codes [m][padded heads][128], swizzled | weights [m][padded heads]
 *   many    | lists [pieces][rows a tile][LIST] | slots [pieces][2][rows a tile][topk] | counts of the slots
 *   few     | tile of each row [m] | counts [shares][rows a tile][WARPS] | bins and shares of each row [m] |
 *           candidates [keys of all rows]
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_PARTS_CUH
#define QUIRE_KERNELS_CUDA_SELECT_PARTS_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_select.h"

#define SELECT_LIST 16384      /* candidates of a row at work */
#define SELECT_EPOCH_KEYS 2048 /* positions between looks at the lists; none can grow by more */

/* Where rows are few a source. A launch takes up to FEW_ROWS rows and CANDIDATES / limit_max; room for each key of each
 * row, a unit of FEW_KEYS being whole. */
#define SELECT_FEW_KEYS 192
#define SELECT_FEW_WARPS 12
#define SELECT_FEW_ROWS 1024
#define SELECT_CANDIDATES (36 << 20)

struct select_plan {
  int64_t units;
  int32_t tiles;
  int32_t pad;
};

struct select_tile {
  int64_t begin; /* its first unit */
  int32_t units;
  int32_t row; /* its first row */
  int32_t rows;
  int32_t source;
  int32_t limit; /* the largest of the rows that score */
  int32_t pad;
  int64_t rows_before; /* units times rows of all tiles before it */
};

/* Arguments of all launches, by value. */
struct select_args {
  struct quire_rows rows;
  struct quire_piece key, scale;
  const float *q, *w;
  float *scores_out;
  int64_t scores_ld;
  int32_t *indices_out, *counts_out;
  struct select_plan *plan;
  struct select_tile *tiles;
  uint8_t *codes;
  float *weights;
  uint64_t *lists, *slots;
  int32_t *slot_counts;
  int32_t *tile_of; /* [m] of a row that scores; NULL: nobody asks */
  uint32_t *share_counts;
  uint32_t *row_bins;   /* [m][TOPK_BINS] of what all shares keep of a row; they grow while it is scored */
  uint32_t *row_shares; /* [m] of a row, that are scored to their end */
  uint64_t *candidates;
  int32_t heads, heads_padded; /* padding: codes and weights 0 */
  int32_t topk;
  int32_t tile_rows, unit_keys;
  bool any_scale;
};

/* The first unit of a piece. */
static inline __device__ int64_t select_piece_begin(int64_t units, int piece, int pieces) {
  return units * piece / pieces;
}

/* The tile in which a unit lies. A whole warp's work. */
static inline __device__ int32_t select_tile_of(const struct select_args &args, int64_t unit) {
  int32_t low = 0;
  int32_t count = args.plan->tiles;
  while (count > 1) {
    int32_t step = (count + 31) / 32;
    int32_t at = (int32_t)(threadIdx.x % 32) * step;
    bool before = at < count && args.tiles[low + at].begin <= unit;
    int32_t skipped = (__popc(__ballot_sync(~0u, before)) - 1) * step;
    low += skipped;
    count = count - skipped < step ? count - skipped : step;
  }
  return low;
}

/* Positions a row scores: 0 where it takes all it sees. */
static inline __device__ int32_t select_span(const struct select_args &args, int32_t row) {
  int32_t visible = args.rows.limit[row] - args.rows.first;
  return visible > args.topk ? visible : 0;
}

static inline __device__ int32_t select_base(const struct select_args &args) { return args.rows.first / 64 * 64; }

/* The piece in which a unit lies; pieces without units are none. */
static inline __device__ int32_t select_piece_of(int64_t units, int64_t unit, int pieces) {
  return (int32_t)(((unit + 1) * pieces - 1) / units);
}

/* Where among the candidates the run of a warp begins: what it keeps of one row of a tile, in `units` units from
 * `begin` on. */
static inline __device__ int64_t select_run_begin(const struct select_tile &tile, int row, int32_t begin, int32_t units,
                                                  int warp) {
  int64_t row_begin = (tile.rows_before + (int64_t)row * tile.units) * SELECT_FEW_KEYS;
  return row_begin + (int64_t)begin * SELECT_FEW_KEYS + (int64_t)warp * units * (SELECT_FEW_KEYS / SELECT_FEW_WARPS);
}

/* Where chunk `chunk` of 16 bytes of a row of QUIRE_INDEX_DIM bytes lies, as tensor cores expect it. */
static inline __device__ uint32_t select_swizzled(int row, int chunk) {
  return (uint32_t)(row * QUIRE_INDEX_DIM + ((chunk ^ (row & 7)) << 4));
}

/* Lets a launch begin before the one in front of it ends; what it reads of that stands behind hopper_launch_wait. */
static inline cudaLaunchAttribute select_early(void) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

/* select_prepare.cu: quantises q, lists rows that take all, and writes the plan. */
void select_prepare(cudaStream_t stream, const struct select_args *args);
/* select_merge.cu: of tiles that pieces cut; of shares. */
void select_merge(cudaStream_t stream, const struct select_args *args, int pieces);
enum quire_status select_merge_shares(cudaStream_t stream, const struct select_args *args, int pieces);
/* select_decode.cu: all launches of up to SELECT_FEW_ROWS rows; `source_rows` at most 2 with 64 heads, 4 with 32. */
enum quire_status select_decode(cudaStream_t stream, struct select_args *args, const struct quire_cuda_maps *maps,
                                int pieces, int source_rows);

#endif
