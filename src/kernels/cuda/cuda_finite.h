/* finite on a CUDA device: flags rows that hold what cannot be stored (kernels.h). Any stream of the current device. */
#ifndef QUIRE_KERNELS_CUDA_CUDA_FINITE_H
#define QUIRE_KERNELS_CUDA_CUDA_FINITE_H

#include "base/status.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues on stream, a cudaStream_t. QUIRE_ERR_RANK when the device refuses the launch. */
enum quire_status quire_cuda_finite(void *stream, const struct quire_finite *finite);

#ifdef __cplusplus
}
#endif
#endif
