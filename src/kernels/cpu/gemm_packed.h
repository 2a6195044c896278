/* The bf16 product of many rows and a long k: both operands are packed, lane by lane.
 *
 * The sixteen lanes of arithmetic.md 1.1 are sixteen products of their own: lane i is the product of the pairs (2i,
 * 2i + 1) of every step of 32 elements. Packed so that a lane's pairs lie side by side, each is an ordinary product
 * whose sums stay in registers for all of k; what goes through memory are single numbers of the tree, not sixteen lanes
 * of every output again and again. Lanes come in the order in which the tree wants them, 0 8 4 12 2 10 6 14 1 9 5 13 3
 * 11 7 15, their positions: after position p as many sums are added as p has ones at its end, like carries of a
 * counter.
 *
 *      x    [16 positions][groups of 8 rows][steps][8 rows]     u32, packed once for all columns, by the whole team
 *      W    [16 positions][steps][32 columns]                   u32, a panel at a time: while rows meet one panel the
 *                                                               next one is packed between their tiles
 *
 * Weights that were packed when they were loaded lie in the same panels (gemm_prepacked.h), which shares tiles and x.
 *
 * Every output is the same sequence of roundings as in gemm.h. Internal to the cpu kernels. Call with FTZ and DAZ set,
 * quire_packed_run apart. Memory: the product's scratch, and some 150 KiB of stack. */
#ifndef QUIRE_KERNELS_CPU_GEMM_PACKED_H
#define QUIRE_KERNELS_CPU_GEMM_PACKED_H

#include "kernels/cpu/gemm.h"

#define QUIRE_PACKED_COLUMNS 32
#define QUIRE_PACKED_ROWS 8        /* of a group: 16 sums of 16 columns are in registers */
#define QUIRE_PACKED_BLOCK 256     /* rows packed together */
#define QUIRE_PACKED_LEVELS 4      /* of the tree that wait for their other half */
#define QUIRE_PACKED_TILE_GROUPS 4 /* of a tile, at most */
#define QUIRE_PACKED_SUMS (QUIRE_PACKED_ROWS * QUIRE_PACKED_COLUMNS)

/* Where 16 rows (or columns) go: eight to each half, u32 number i of a step to
 * half[position of i * lane_stride + step * step_stride]. */
struct quire_packed_place {
  uint32_t *half[2];
  int64_t lane_stride;
  int64_t step_stride;
};

/* One lane of some groups of rows against a panel, all of k. */
struct quire_packed_tile {
  const uint32_t *x;  /* [groups][steps][8] */
  const uint32_t *w;  /* [steps][32] */
  const float *scale; /* of each 128 block of k; NULL: not scaled */
  float *sums;        /* [levels][block groups][8][32], from the first of the groups */
  float *out;         /* out[row * out_ld + column], written at the last position */
  int64_t out_ld;
  const uint8_t *ask; /* wanted soon: steps * 128 bytes are asked for from here; NULL: nothing. Not where scaled */
  int32_t steps;
  int32_t rows;     /* that exist, in at most QUIRE_PACKED_TILE_GROUPS groups */
  int32_t position; /* of the lane */
};

/* u32 between levels of sums. */
#define QUIRE_PACKED_LEVEL_STRIDE (QUIRE_PACKED_BLOCK / QUIRE_PACKED_ROWS * QUIRE_PACKED_SUMS)

struct quire_packed_isa {
  /* 16 rows of steps * 32 bf16, ld elements apart. */
  void (*pack)(const uint16_t *from, int64_t ld, int32_t steps, struct quire_packed_place to);
  void (*tile)(const struct quire_packed_tile *tile);
};

extern const struct quire_packed_isa quire_packed_isa_avx512;

/* Rows of x on their way into groups. */
struct quire_packed_rows {
  const uint16_t *x;
  int64_t ld;
  const int32_t *index; /* row i is x[index[i]]; NULL: x[i] */
  int32_t rows, k;
  uint32_t *to;
  int64_t stride; /* u32 between lanes: quire_packed_x_stride */
};

/* The lane of a position in the order of the tree; its own inverse. */
static inline int quire_packed_lane(int position) {
  return (position & 1) << 3 | (position & 2) << 1 | (position & 4) >> 1 | (position & 8) >> 3;
}

int64_t quire_packed_x_stride(int64_t rows, int64_t steps);
/* Words from the first row of packed x, of which a lane has `steps` steps, to row number `row`. */
static inline int64_t quire_packed_x_row(int64_t row, int64_t steps) {
  return row / QUIRE_PACKED_ROWS * QUIRE_PACKED_ROWS * steps + row % QUIRE_PACKED_ROWS;
}

/* Packs rows [begin, end), which begin and end at multiples of 16 or at the last row. */
void quire_packed_x(const struct quire_gemm_isa *isa, const struct quire_packed_rows *from, int64_t begin, int64_t end);

/* Outputs [rows][32] into y at (row, column), as its type. */
void quire_packed_out(const struct quire_gemm *gemm, const float *from, int64_t row, int32_t rows, int64_t column,
                      int32_t columns);

/* Whether a product goes this way: a bf16 dot with scratch, of enough rows and a k long enough to pay for packing. */
bool quire_packed_suits(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm);

/* Computes such a product on a team. */
void quire_packed_run(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_team *team);

#endif
