/* What the launches of select share: the plan of tiles, the layout of the scratch, the arguments.
 *
 * A tile is up to tile_rows neighbouring rows of one source; a unit is unit_keys positions of a tile, from a multiple of
 * 64 at or below `first`. Units of all tiles form one line, which is cut into equal pieces, one a multiprocessor. A tile
 * that lies in one piece is finished there; one that is cut leaves the best of each piece in a slot, and a last launch
 * merges them. A piece cuts at most two tiles: the one it begins in (slot 0) and the one it ends in (slot 1).
 *
 * Scratch:  plan | tiles [m] | codes [m][padded heads][128] | weights [m][padded heads]
 *           | lists [pieces][rows a tile][LIST] | slots [pieces][2][rows a tile][topk] | counts of the slots
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_PARTS_CUH
#define QUIRE_KERNELS_CUDA_SELECT_PARTS_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_select.h"

#define SELECT_LIST 16384      /* candidates of a row at work */
#define SELECT_EPOCH_KEYS 2048 /* positions between looks at the lists; none can grow by more */

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
  int32_t heads, heads_padded; /* padding: codes and weights 0 */
  int32_t topk;
  int32_t tile_rows, unit_keys;
  bool any_scale;
};

/* The first unit of a piece. */
static inline __device__ int64_t select_piece_begin(int64_t units, int piece, int pieces) {
  return units * piece / pieces;
}

/* The tile in which a unit lies. */
static inline __device__ int32_t select_tile_of(const struct select_args &args, int64_t unit) {
  int32_t low = 0;
  int32_t high = args.plan->tiles - 1;
  while (low < high) {
    int32_t middle = (low + high + 1) / 2;
    if (args.tiles[middle].begin <= unit) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Positions a row scores: 0 where it takes all it sees. */
static inline __device__ int32_t select_span(const struct select_args &args, int32_t row) {
  int32_t visible = args.rows.limit[row] - args.rows.first;
  return visible > args.topk ? visible : 0;
}

static inline __device__ int32_t select_base(const struct select_args &args) { return args.rows.first / 64 * 64; }

/* Lets a launch begin before the one in front of it ends; what it reads of that stands behind hopper_launch_wait. */
static inline cudaLaunchAttribute select_early(void) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

/* select_prepare.cu: quantises q, lists rows that take all, and writes the plan. */
void select_prepare(cudaStream_t stream, const struct select_args *args);
/* select_merge.cu */
void select_merge(cudaStream_t stream, const struct select_args *args, int pieces);

#endif
