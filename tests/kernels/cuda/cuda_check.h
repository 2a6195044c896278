/* Ends a program with a line when a call of the CUDA runtime fails: what it would measure or compare means nothing. */
#ifndef QUIRE_TESTS_CUDA_CHECK_H
#define QUIRE_TESTS_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudaError_t cuda_result = (call);                                                                                  \
    if (cuda_result != cudaSuccess) {                                                                                  \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(cuda_result));                           \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
