/* The matrix product with weights that were packed when they were loaded, lane by lane, as gemm_packed.h packs them on
 * the way. One layout serves any number of rows: panels of 32 columns lie one behind another, each
 *
 *      bf16   [16 positions][steps][32 columns]   u32, a pair of k of every column
 *      fp8    [16 positions][steps][32 columns]   u16, likewise; columns in the order 0-3 16-19 4-7 20-23 8-11 ...,
 *                                                 which decoding by tables (e4m3_avx512.h) puts right
 *
 * where a step is 32 elements of k and positions are lanes in the order of the tree (gemm_packed.h). Few rows read it
 * as one stream of memory from beginning to end and fold by additions, where rows of a checkpoint take a transposition
 * for each 16 columns and sixteen streams. There are four ways:
 *
 *      a row alone    x where it is, packed where it would not stay in the first level cache
 *      short k        x where it is; weights of one block of k stay in registers while rows go by, of more they are
 *                     taken two lanes at a time
 *      middle k       bf16 of many rows: x packed, two lanes at a time, so that half of the sums stay in registers
 *      all others     tiles of gemm_packed.h, x packed
 *
 * Every output is the same sequence of roundings as in gemm.h. Internal to the cpu kernels. Call with FTZ and DAZ set,
 * quire_prepacked_run apart. */
#ifndef QUIRE_KERNELS_CPU_GEMM_PREPACKED_H
#define QUIRE_KERNELS_CPU_GEMM_PREPACKED_H

#include "kernels/cpu/gemm_packed.h"

#define QUIRE_PREPACKED_SHORT_STEPS 8
#define QUIRE_PREPACKED_SHORT_ROWS 32 /* a multiple of four: their sums stay in the first level cache */
#define QUIRE_PREPACKED_SHORT_SUMS (QUIRE_PACKED_LEVELS * QUIRE_PREPACKED_SHORT_ROWS * QUIRE_PACKED_COLUMNS)
#define QUIRE_PREPACKED_MIDDLE_ROWS 64 /* likewise */
#define QUIRE_PREPACKED_MIDDLE_SUMS (QUIRE_PACKED_LEVELS * QUIRE_PREPACKED_MIDDLE_ROWS * QUIRE_PACKED_COLUMNS)

/* One row against panels that follow one another: out[panels * 32]. Pair `step` of the lane at a position is at
 * x + lane[position] + step * step_bytes. */
struct quire_prepacked_row {
  const uint8_t *x;
  const void *w;      /* bf16, or fp8 with */
  const float *scale; /* of each 128 block, from column 0 on */
  float *out;
  int64_t lane[QUIRE_GEMM_LANES];
  int64_t step_bytes;
  int32_t steps;
  int32_t scale_ld;
  int32_t panel, panels;  /* number of the first */
  const uint8_t *ask_end; /* W is asked for ahead, up to here */
};

/* Rows of a short k against a panel of bf16: out[row * out_ld + column], written for rows up to a multiple of four. */
struct quire_prepacked_short {
  const uint16_t *x;
  const uint32_t *w;
  const float *scale; /* of the only block; NULL: not scaled */
  float *sums;        /* QUIRE_PREPACKED_SHORT_SUMS */
  float *out;
  const uint8_t *ask; /* wanted soon: ask_lines lines from here */
  int64_t x_ld, out_ld;
  int32_t steps; /* at most QUIRE_PREPACKED_SHORT_STEPS; of scaled rows those of a block, four */
  int32_t rows;  /* at most QUIRE_PREPACKED_SHORT_ROWS */
  int32_t ask_lines;
};

/* Packed rows of a middle k against a panel of bf16, out as above. What follows a pair of lanes of W in memory is asked
 * for while rows meet that pair. */
struct quire_prepacked_middle {
  const uint32_t *x; /* first row at its first position */
  const uint32_t *w;
  float *sums; /* QUIRE_PREPACKED_MIDDLE_SUMS */
  float *out;
  int64_t x_stride; /* u32 between lanes */
  int64_t out_ld;
  int32_t steps;
  int32_t rows; /* at most QUIRE_PREPACKED_MIDDLE_ROWS */
};

struct quire_prepacked_isa {
  /* A panel of up to 32 rows of a weight: from row `column` on. */
  void (*pack)(const struct quire_weight *rows, int64_t column, void *panel_out);
  /* Whether `row` takes fp8: the processor decodes as fast as it reads. */
  bool (*reads_codes)(void);
  void (*row)(const struct quire_prepacked_row *row);
  void (*short_k)(const struct quire_prepacked_short *rows);
  void (*middle_k)(const struct quire_prepacked_middle *rows);
  /* steps * 32 u16 of fp8 to as many u32 of bf16, asking for what comes after them. */
  void (*decode)(const void *lanes, int64_t steps, uint32_t *lanes_out);
};

extern const struct quire_prepacked_isa quire_prepacked_isa_avx512;

/* A block of rows of a product, for one member. */
struct quire_prepacked_block {
  const struct quire_gemm *gemm;     /* row_begin .. of x and y */
  const struct quire_packed_rows *x; /* by quire_prepacked_x; unused where quire_prepacked_direct */
  uint32_t *lane;                    /* quire_prepacked_lane_words; of fp8 */
  int64_t row;
  int32_t rows; /* at most QUIRE_PACKED_BLOCK */
  bool shared;  /* columns are: what follows them in memory is not the caller's next */
};

/* Whether `rows` rows are read where they are. */
bool quire_prepacked_direct(const struct quire_gemm_isa *isa, const struct quire_weight *w, int64_t rows);

/* Words between lanes of packed x, and its packing, as quire_packed_x_stride and quire_packed_x, for blocks of as many
 * rows; but a row alone may lie by itself, [16 positions][stride]: a sixteenth of the words, in a near cache. */
int64_t quire_prepacked_x_stride(const struct quire_gemm_isa *isa, int64_t rows, int64_t steps);
void quire_prepacked_x(const struct quire_gemm_isa *isa, const struct quire_packed_rows *from, int64_t begin,
                       int64_t end);

int64_t quire_prepacked_lane_words(int32_t k);

/* Computes columns [column_begin, column_end) of a block on the calling thread; column_begin is a multiple of 32.
 * Memory: some 150 KiB of stack. */
void quire_prepacked_compute(const struct quire_gemm_isa *isa, const struct quire_prepacked_block *block,
                             int64_t column_begin, int64_t column_end);

/* Computes a product on a team. */
void quire_prepacked_run(const struct quire_gemm_isa *isa, const struct quire_gemm *gemm, struct quire_team *team);

#endif
