/* attend where rows are few (attend_few.cu): the same bits by more multiprocessors. Internal to attend. */
#ifndef QUIRE_KERNELS_CUDA_ATTEND_FEW_CUH
#define QUIRE_KERNELS_CUDA_ATTEND_FEW_CUH

#include <cuda_runtime.h>

#include "base/status.h"

struct attend_args;

#define ATTEND_FEW_ITEMS 16 /* rows times groups of 64 heads at most */

/* Is it to be taken? The launch has scratch, lists of up to QUIRE_TOPK_MAX, and few items for the device. */
bool attend_few_can(const struct attend_args *a, int processors);
/* Scratch for launches of up to `items`. */
int64_t attend_few_scratch_bytes(int32_t items);
/* Enqueues; QUIRE_ERR_RANK when the device refuses. */
enum quire_status attend_few(cudaStream_t stream, const struct attend_args *a);

#endif
