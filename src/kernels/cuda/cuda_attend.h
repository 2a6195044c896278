/* attend on Hopper (sm_90a): sparse MLA over selected rows, bf16 or fp8 (docs/arithmetic.md 10, family sm90).
 *
 * Takes the argument struct of the operation (kernels.h) with every pointer in device memory, or in any memory the
 * device can read in place: a row is found through its source's page addresses, so scratch, own pages and another
 * device's pages cost the same instructions. With scratch, few rows are spread over more of the device: the same bits,
 * sooner. */
#ifndef QUIRE_KERNELS_CUDA_CUDA_ATTEND_H
#define QUIRE_KERNELS_CUDA_CUDA_ATTEND_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does the kernel cover these shapes and types? q bf16, out bf16 or f32, format bf16 or fp8, any number of heads
 * (groups of 64, others are padded; below 2^31 with those of all rows), topk of any size. Rows and pages start at
 * multiples of 16 bytes. why_out (may be NULL) gets the reason when not. Reads sizes and types only. */
bool quire_cuda_attend_can(const struct quire_attend *attend, const char **why_out);

/* Scratch for up to m rows of `heads` heads; 16-byte aligned. */
int64_t quire_cuda_attend_scratch_bytes(int32_t heads, int32_t m);

/* Enqueues on a stream of the current device (a cudaStream_t). Entries of a list beyond counts[row], and negative ones,
 * are passed over; a row without any gives out 0 and lse -inf. The bits of a row depend on its query, its list and the
 * rows it names, and on nothing else: not on m, on where rows lie, on scratch (NULL: none), nor on the device's size.
 * QUIRE_ERR_RANK when the launch is refused by the device. */
enum quire_status quire_cuda_attend(void *stream, const struct quire_attend *attend);

#ifdef __cplusplus
}
#endif
#endif
