/* The matrix product inside the cpu kernels: attention scores and experts use it besides the launcher.
 *
 * A product is cut into n-tiles of 16 columns, blocks of 64 rows and chunks of k. Inside, a tile computes 16 outputs
 * with 16 lanes each, in one of the shapes 4x4, 2x8, 1x16 (rows x columns); which shape computes an output, and with
 * what neighbours, does not show in it. What an instruction set adds is the tile and the widening of weights.
 *
 * Internal to the cpu kernels. Call with FTZ and DAZ set. Memory: the caller's, plus some 360 KiB of stack. */
#ifndef QUIRE_KERNELS_CPU_GEMM_H
#define QUIRE_KERNELS_CPU_GEMM_H

#include "kernels/kernels.h"

#define QUIRE_GEMM_COLUMNS 16
#define QUIRE_GEMM_OUTPUTS 16
#define QUIRE_GEMM_LANES 16
#define QUIRE_GEMM_ROW_STEP 64 /* of k, when few rows meet weights */
#define QUIRE_GEMM_AHEAD 16384 /* bytes of W that few rows ask for ahead */

/* One chunk of k of 16 outputs: out[r * out_ld + c] for r < 4, 2, 1 and c < 4, 8, 16. x and w hold bf16 or f32 as the
 * tile function says; k is a multiple of its step (32, 16). */
struct quire_gemm_tile {
  const void *x;
  const void *w;
  int64_t x_ld;
  int64_t w_ld;
  const float *scale; /* of each 128 block of the chunk; NULL: not scaled */
  float *lanes;       /* [16 outputs][16 lanes] between chunks */
  float *out;
  int64_t out_ld;
  const uint8_t *ask_w; /* strips: soon wanted from here, as many bytes as a row of w has; NULL: nothing */
  const uint8_t *ask_x; /* the same of four rows, x_ld apart */
  int32_t k;
  int32_t rows;
  bool first; /* lanes start from zero */
  bool last;  /* lanes fold into out */
};

/* A few rows by 16 columns, all of k, a multiple of QUIRE_GEMM_ROW_STEP: out[r * 16 + c]. */
struct quire_gemm_row {
  const uint16_t *x;
  const void *w;      /* bf16, or fp8 with */
  const float *scale; /* of each 128 block */
  int64_t x_ld;
  int64_t w_ld;
  float *out;
  int64_t k;
  int32_t rows; /* 1, 2 or 4; fp8: 1 */
};

struct quire_panel_isa;
struct quire_packed_isa;
struct quire_prepacked_isa;

struct quire_gemm_isa {
  const struct quire_panel_isa *panel;         /* gemm_panel.h; NULL: tiles serve any number of rows */
  const struct quire_packed_isa *packed;       /* gemm_packed.h; NULL: as above */
  const struct quire_prepacked_isa *prepacked; /* gemm_prepacked.h; NULL: weights are rows */
  /* Reads weights where they lie, decodes them in registers, and asks for those that come next in the order of memory:
   * few rows are bound by reading them. False, and nothing done, where the processor cannot. */
  bool (*row)(const struct quire_gemm_row *row);
  void (*tile_bf16)(const struct quire_gemm_tile *tile);
  void (*tile_f32)(const struct quire_gemm_tile *tile);
  /* Four tiles of four rows side by side, not scaled: one call for 4 x 16 outputs, lanes of one tile after another. */
  void (*strip_bf16)(const struct quire_gemm_tile *tile);
  void (*e4m3_to_bf16)(const uint8_t *x, uint16_t *y, int64_t n);
  void (*e4m3_to_f32)(const uint8_t *x, float *y, int64_t n);
};

extern const struct quire_gemm_isa quire_gemm_isa_portable;
extern const struct quire_gemm_isa quire_gemm_isa_avx512;

/* A part of a product: rows [row_begin, row_end) x columns [column_begin, column_end). column_begin is a multiple
 * of 16. */
struct quire_gemm_part {
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;
};

/* Computes one part of a product whose weight is rows, on the calling thread. */
void quire_gemm_compute(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_gemm_part part);

/* The part of a member: columns where there are enough of them, else rows. */
struct quire_gemm_part quire_gemm_share(const struct quire_gemm *gemm, int member, int threads);

/* Exact widening, any instruction set. */
void quire_bf16_to_f32(const uint16_t *x, float *y, int64_t n);

void quire_gemm_portable(struct quire_stream *stream, struct quire_gemm gemm);
void quire_gemm_avx512(struct quire_stream *stream, struct quire_gemm gemm);
void quire_weight_pack_avx512(const struct quire_weight *rows, void *data, struct quire_weight *packed_out);

#endif
