/* The bf16 product of many rows: columns of W are packed into panels, and lanes of registers are columns.
 *
 * A panel is 32 columns and all of k, 16 columns a register, one u32 (a pair of k) a column. The sixteen lanes of
 * arithmetic.md 1.1 are then sixteen sums *beside* each other instead of inside a register, and their tree is plain
 * additions: nothing is shuffled but the weights, once for all rows. A tile takes lane i and lane i + 8 together, all
 * steps of both, adds them (the first level of the tree), and goes on with the next pair of lanes in the order in which
 * the tree wants them: 0, 4, 2, 6, 1, 5, 3, 7. Every output is the same sequence of roundings as in gemm.h.
 *
 * Internal to the cpu kernels. Call with FTZ and DAZ set. */
#ifndef QUIRE_KERNELS_CPU_GEMM_PANEL_H
#define QUIRE_KERNELS_CPU_GEMM_PANEL_H

#include "kernels/cpu/gemm.h"

#define QUIRE_PANEL_COLUMNS 32
#define QUIRE_PANEL_ROWS 4
#define QUIRE_PANEL_STEPS 16                     /* of 32 elements, at most: a panel stays in a near cache */
#define QUIRE_PANEL_PAIRS (QUIRE_GEMM_LANES / 2) /* of lanes */

/* u32 of a panel of that many steps: [8 pairs of lanes][steps][2 lanes][32 columns]. A line lies behind each pair of
 * lanes, so that their beginnings do not share sets of a cache. */
#define QUIRE_PANEL_PAIR_STRIDE(steps) (((int64_t)(steps)*4 + 1) * 16)
#define QUIRE_PANEL_WORDS(steps) (QUIRE_PANEL_PAIRS * QUIRE_PANEL_PAIR_STRIDE(steps))

/* Up to 4 rows against a panel: out[r * out_ld + c]. */
struct quire_panel_tile {
  const uint32_t *panel;
  const uint16_t *x[QUIRE_PANEL_ROWS]; /* steps * 32 elements each; those past `rows` repeat one that is there */
  const float *scale;                  /* of each 128 block of k; NULL: not scaled */
  float *out;
  int64_t out_ld;
  int32_t steps;
  int32_t rows;
};

struct quire_panel_isa {
  /* 32 rows of steps * 32 bf16, ld elements apart, into a panel. */
  void (*pack)(const uint16_t *w, int64_t ld, int32_t steps, uint32_t *panel_out);
  void (*tile)(const struct quire_panel_tile *tile);
};

extern const struct quire_panel_isa quire_panel_isa_avx512;

/* Whether a part of a product is one for panels: a bf16 dot of enough rows to pay for the packing, whose k is short
 * enough for one panel. (A longer k would have to keep sixteen lanes of every output between chunks; tiles of gemm.h
 * read them less often.) */
bool quire_panel_suits(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, int64_t rows);

/* Computes such a part on the calling thread. Memory: some 70 KiB of stack. */
void quire_panel_compute(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_gemm_part part);

#endif
