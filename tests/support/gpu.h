/* For tests that need GPUs. */
#ifndef QUIRE_SUPPORT_GPU_H
#define QUIRE_SUPPORT_GPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the program as skipped (77), with the reason, unless so many GPUs can be used. Call it first in main. */
void test_needs_gpus(int32_t devices);

#ifdef __cplusplus
}
#endif
#endif
