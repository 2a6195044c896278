/* put_rows on a CUDA device: rows to their stored form (arithmetic.md 2 and 8), once, and into the pages of their
 * owners.
 *
 * One launch quantises the fresh rows of a layer and writes each to up to two places: packed arrays in batch order (an
 * exchange slot or a fresh segment) and its slot of a page, which may lie in this device's memory or in a peer's. The
 * bytes are those of the cpu family's quantise_latent and quantise_index.
 *
 * All pointers are device memory that stays valid and untouched until the launch has run. Rows of pages and of packed
 * arrays are 16-byte aligned, scales 4. Threads: any; one at a time on a stream. Formats bf16 and fp8. */
#ifndef QUIRE_KERNELS_CUDA_CUDA_PUT_ROWS_H
#define QUIRE_KERNELS_CUDA_CUDA_PUT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a row goes: slot `slot` of the pages of its latent and index key part. A NULL page: not written there. */
struct quire_cuda_row_target {
  uint8_t *latent_page;
  uint8_t *key_page;
  int32_t slot;
  int32_t pad;
};

struct quire_cuda_put_rows {
  const float *latent; /* [m, 512] normed; NULL: keys alone */
  const float *rope;   /* [m, 64] rotated */
  const float *key;    /* [m, 128] normed and rotated; NULL: the layer has no indexer */
  int64_t latent_ld, rope_ld, key_ld;
  uint8_t *latent_out;                         /* packed rows of 1,152 or 656 bytes; NULL: none */
  uint8_t *keys_out;                           /* packed keys of 128 bytes; NULL: none */
  float *scales_out;                           /* [m] beside keys_out */
  const struct quire_cuda_row_target *targets; /* [m]; NULL: none */
  int32_t page_tokens;                         /* of the target pages */
  int32_t m;
  enum quire_kv_format format;
  bool any_scale;
};

/* Enqueues on stream, a cudaStream_t. QUIRE_ERR_RANK when the device refuses the launch. */
enum quire_status quire_cuda_put_rows(void *stream, const struct quire_cuda_put_rows *put);

#ifdef __cplusplus
}
#endif
#endif
