/* Sparse MLA attention inside the cpu kernels (arithmetic.md 10). What an instruction set adds to the plain code: the
 * products of gemm.h, the decoding of fp8 rows, and the weighted sum of rows.
 * Internal to the cpu kernels. Call with FTZ and DAZ set. */
#ifndef QUIRE_KERNELS_CPU_ATTEND_H
#define QUIRE_KERNELS_CPU_ATTEND_H

#include "kernels/cpu/gemm.h"
#include "kernels/kernels.h"

#define QUIRE_ATTEND_HEADS 64 /* heads that share a pass over the rows */

struct quire_attend_isa {
  const struct quire_gemm_isa *gemm;
  /* 512 codes and 4 scales at `stored` to bf16. */
  void (*latent_fp8)(const uint8_t *stored, uint16_t *latent_out);
  /* Steps 1 to 3 on the dots of one head: exponentials take their place, as bf16 from its start if asked, up to the
   * next multiple of 16; behind `count` they are zero, and so is the p of a missing last row. Returns the sum;
   * *max_out is m. */
  float (*softmax)(float *scores, int32_t count, float scale, bool bf16, float *max_out);
  /* out[h][512] goes on over pairs of rows: step 4 of arithmetic.md 10. p: heads rows of `p_ld` bf16, two a pair; rows:
   * 576 bf16 each. */
  void (*values_bf16)(const uint16_t *p, int64_t p_ld, int heads, const uint16_t *rows, int pairs, float *out);
  /* Step 5: out[512] divided by the sum, as bf16 or f32. */
  void (*finish)(const float *out, float sum, bool bf16, void *finished_out);
  void (*values_f32)(const float *p, int64_t p_ld, int heads, const float *rows, int count, float *out);
};

extern const struct quire_attend_isa quire_attend_isa_portable;
extern const struct quire_attend_isa quire_attend_isa_avx512;

void quire_attend_portable(struct quire_stream *stream, struct quire_attend attend);
void quire_attend_avx512(struct quire_stream *stream, struct quire_attend attend);

#endif
