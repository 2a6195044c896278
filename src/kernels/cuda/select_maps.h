/* Tensor maps of all memory, with which the copy engine brings keys as tensor cores expect them (select_stream.cuh).
 *
 * It swizzles only what a tensor map describes, and pages lie anywhere, in several devices. So the maps describe all
 * memory, which is addresses below 2^49: rows of a key's bytes from one of eight origins 16 bytes apart, 2^30 rows a
 * layer, and some more, so that a page that begins near the end of a layer is in it. They depend on nothing and are
 * made by the host, once for all devices and streams.
 *
 * Plain data. Threads: any. What fails is the driver: it has no tensor maps, or makes none of these. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_MAPS_H
#define QUIRE_KERNELS_CUDA_SELECT_MAPS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEMORY_ORIGINS 8     /* 16 bytes apart; together a row */
#define MEMORY_LAYER_BITS 37 /* of an address */
#define MEMORY_LAYERS (1 << 12)
#define MEMORY_BOX_ROWS 64

struct quire_cuda_maps {
  CUtensorMap of[MEMORY_ORIGINS];
};

/* Makes the map of the rows from an address on; false: refused. */
typedef bool (*quire_cuda_map_encode)(void *context, uintptr_t origin, CUtensorMap *map_out);

/* Makes the maps; encode NULL: the driver has none. False if one is refused; the maps are of no use then, and why_out
 * (may be NULL) gets the reason, a text that stays. */
bool quire_cuda_maps_make(quire_cuda_map_encode encode, void *context, struct quire_cuda_maps *maps_out,
                          const char **why_out);

#ifdef __cplusplus
}
#endif
#endif
