/* The bf16 product of many rows and a short k: columns of W are packed into panels, and lanes of registers are columns.
 *
 * A panel is 32 columns and all of k, packed as in gemm_packed.h: [16 positions][steps][32 columns], 16 columns a
 * register, one u32 (a pair of k) a column. The sixteen lanes of arithmetic.md 1.1 are then sixteen sums *beside* each
 * other instead of inside a register, and their tree is plain additions: nothing is shuffled but the weights, once for
 * all rows. Rows meet a panel as they meet one that was packed at load (gemm_prepacked.h, short k), but for fp8 of
 * several blocks of k. That takes lane i and lane i + 8 together, all steps of both, adds them (the first level of the
 * tree), and goes on with the next pair of lanes. Every output is the same sequence of roundings as in gemm.h.
 *
 * Internal to the cpu kernels. Call with FTZ and DAZ set. */
#ifndef QUIRE_KERNELS_CPU_GEMM_PANEL_H
#define QUIRE_KERNELS_CPU_GEMM_PANEL_H

#include "kernels/cpu/gemm_prepacked.h"

#define QUIRE_PANEL_STEPS 16 /* of 32 elements, at most: a panel stays in a near cache */
#define QUIRE_PANEL_ROWS QUIRE_PREPACKED_SHORT_ROWS

/* Rows against a scaled panel: out[row * out_ld + column], written for rows up to a multiple of four. */
struct quire_panel_tile {
  const uint32_t *panel;
  const uint16_t *x;  /* steps * 32 elements of a row */
  const float *scale; /* of each 128 block of k */
  float *out;
  const uint8_t *ask; /* wanted soon: ask_lines lines from here */
  int64_t x_ld, out_ld;
  int32_t steps;
  int32_t rows; /* at most QUIRE_PANEL_ROWS */
  int32_t ask_lines;
};

struct quire_panel_isa {
  void (*tile)(const struct quire_panel_tile *tile);
};

extern const struct quire_panel_isa quire_panel_isa_avx512;

/* Whether a part of a product is one for panels: a bf16 dot of enough rows to pay for the packing, whose k is short
 * enough for one panel. (A longer k would have to keep sixteen lanes of every output between chunks; tiles of gemm.h
 * read them less often.) */
bool quire_panel_suits(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, int64_t rows);

/* Computes such a part on the calling thread. Memory: some 120 KiB of stack. */
void quire_panel_compute(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_gemm_part part);

#endif
