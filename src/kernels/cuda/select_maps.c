#include "kernels/cuda/select_maps.h"

#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <pthread.h>

#include "base/assert.h"
#include "kernels/cuda/cuda_select.h"
#include "layout/parts.h"

static_assert(QUIRE_INDEX_DIM == 1 << 7 && MEMORY_ORIGINS * 16 == QUIRE_INDEX_DIM, "rows that fill a layer");

bool quire_cuda_maps_make(quire_cuda_map_encode encode, void *context, struct quire_cuda_maps *maps_out,
                          const char **why_out) {
  QUIRE_ASSERT(maps_out != NULL);
  const char *why = encode == NULL ? "the driver has no tensor maps" : NULL;
  for (uintptr_t i = 0; i < MEMORY_ORIGINS && why == NULL; i++) {
    if (!encode(context, i * 16, &maps_out->of[i])) {
      why = "the driver refuses a tensor map of all memory";
    }
  }
  if (why != NULL && why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}

/* By the driver's function, which context points to. */
static bool encode_tiled(void *context, uintptr_t origin, CUtensorMap *map_out) {
  static const cuuint64_t extents[3] = {QUIRE_INDEX_DIM, (1u << (MEMORY_LAYER_BITS - 7)) + MEMORY_BOX_ROWS,
                                        MEMORY_LAYERS};
  static const cuuint64_t strides[2] = {QUIRE_INDEX_DIM, 1ull << MEMORY_LAYER_BITS};
  static const cuuint32_t box[3] = {QUIRE_INDEX_DIM, MEMORY_BOX_ROWS, 1};
  static const cuuint32_t every[3] = {1, 1, 1};
  QUIRE_ASSERT(context != NULL && map_out != NULL);
  PFN_cuTensorMapEncodeTiled_v12000 encode = *(PFN_cuTensorMapEncodeTiled_v12000 *)context;
  return encode(map_out, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)origin, extents, strides, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Written once. */
static struct quire_cuda_maps maps;
static const char *refusal = "the driver was not asked for tensor maps";

static void make_once(void) {
  void *symbol = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaFree(NULL); /* makes the context, without which the driver encodes nothing */
  if (error == cudaSuccess) {
    error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &found);
  }
  QUIRE_ASSERT(refusal != NULL);
  if (error != cudaSuccess) {
    (void)cudaGetLastError(); /* said; it is no launch's */
  }
  bool has = error == cudaSuccess && found == cudaDriverEntryPointSuccess && symbol != NULL;
  if (quire_cuda_maps_make(has ? encode_tiled : NULL, &symbol, &maps, &refusal)) {
    refusal = NULL;
  }
}

const struct quire_cuda_maps *quire_cuda_select_maps(const char **why_out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  int failed = pthread_once(&once, make_once);
  QUIRE_ASSERT(failed == 0);
  if (refusal != NULL && why_out != NULL) {
    *why_out = refusal;
  }
  return refusal == NULL ? &maps : NULL;
}
