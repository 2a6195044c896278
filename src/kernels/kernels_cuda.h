/* The operations that a GPU has, as a table of launchers like the CPU's: what a view calls. Numerics id family sm90
 * (docs/arithmetic.md 13): stored rows are the CPU's to the byte, lists and outputs are exact within the family.
 *
 * Slots: quantise_latent, quantise_index, select, attend and finite; the other operations of the forward pass are not
 * there yet, and calling one is a bug (assertion). Formats bf16 and fp8. A launch that a device refuses fails its
 * stream (quire_stream_check). Arrays are device memory, rows and rings at multiples of 16 bytes. Threads as kernels.h
 * says. */
#ifndef QUIRE_KERNELS_KERNELS_CUDA_H
#define QUIRE_KERNELS_KERNELS_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL in a build without CUDA. */
const struct quire_kernels *quire_kernels_cuda(void);

/* What select and attend will be given at most: their limits are of these numbers. */
struct quire_kernels_cuda_shape {
  enum quire_kv_format format; /* bf16 or fp8 */
  int32_t heads;               /* from 1 */
  int32_t index_heads;         /* 1 to 64 */
  int32_t topk;                /* 1 to QUIRE_TOPK_MAX */
  int32_t rows;                /* of a launch: rows x groups of 64 heads are below 2^31 */
  int32_t limit_max;           /* positions of a source, up to 2^31 - 2^15 */
};

/* Do the kernels take it? why_out (may be NULL) gets the reason when not, which also is that the build has no CUDA.
 * Pure; needs no GPU. */
bool quire_kernels_cuda_can(const struct quire_kernels_cuda_shape *shape, const char **why_out);

/* What a step will run, run once before any step, on rows that see nothing: the driver loads a kernel's code, and
 * reserves what its threads need, at its first launch, and a step allocates nothing. */
struct quire_kernels_cuda_load {
  struct quire_device *device;
  uint8_t *select_scratch, *attend_scratch; /* for this shape; their contents are lost */
  struct quire_kernels_cuda_shape shape;
};

/* Takes some memory of the device while it runs, and blocks. QUIRE_ERR_UNSUPPORTED with the reason of
 * quire_kernels_cuda_can; QUIRE_ERR_MEMORY, QUIRE_ERR_RANK. */
enum quire_status quire_kernels_cuda_load(const struct quire_kernels_cuda_load *load, struct quire_error *error_out);

/* Does select read the keys of decode's rows as a stream of whole pages? Where not, why_out (may be NULL) gets the
 * reason (the driver makes no tensor maps, or the build has no CUDA), and these rows are scored as prefill's are: the
 * same lists, slower. The driver is asked once. Threads: any. */
bool quire_cuda_select_streams(const char **why_out);

/* Scratch of select for up to that on the device, in place of quire_select_scratch_bytes. 0 for what
 * quire_kernels_cuda_can refuses. */
int64_t quire_cuda_select_scratch(const struct quire_device *device, const struct quire_kernels_cuda_shape *shape);
/* Likewise of attend, in place of quire_attend_scratch_bytes, at multiples of 16 bytes: with it few rows are spread
 * over more of the device, for the same bits (cuda_attend.h). */
int64_t quire_cuda_attend_scratch(const struct quire_kernels_cuda_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
