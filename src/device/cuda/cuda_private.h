/* What the files of this folder share. A cuda_device holds the driver's functions, looked up by name when it is opened:
 * nothing here links to the driver. Memory and threads as device.h says. */
#ifndef QUIRE_DEVICE_CUDA_CUDA_PRIVATE_H
#define QUIRE_DEVICE_CUDA_CUDA_PRIVATE_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/assert.h"
#include "device/device_private.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_CUDA_PEERS_MAX 16

/* The part of the driver that the runtime has no name for. */
struct quire_cuda_driver {
  CUresult (*device_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
  CUresult (*granularity)(size_t *bytes, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags flags);
  CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags);
  CUresult (*release)(CUmemGenericAllocationHandle handle);
  CUresult (*reserve)(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags);
  CUresult (*unreserve)(CUdeviceptr base, size_t bytes);
  CUresult (*map)(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
  CUresult (*unmap)(CUdeviceptr base, size_t bytes);
  CUresult (*access)(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *access, size_t count);
  CUresult (*export_handle)(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                            unsigned long long flags);
  CUresult (*import_handle)(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type);
};

struct quire_cuda_device {
  struct quire_device front;
  struct quire_cuda_driver driver;
  size_t granularity;                 /* of allocations */
  int handle_types;                   /* CUmemAllocationHandleType bits that allocations ask for */
  int32_t peers;                      /* devices that reach this one's memory, itself first */
  int32_t peer[QUIRE_CUDA_PEERS_MAX]; /* their indices */
  int32_t processors;
};

static inline struct quire_cuda_device *quire_cuda_device_of(struct quire_device *device) {
  QUIRE_ASSERT(device->ops == &quire_device_cuda_ops);
  return (struct quire_cuda_device *)device;
}

/* QUIRE_ERR_RANK with the runtime's own words. */
enum quire_status quire_cuda_fault(cudaError_t error, const char *what, struct quire_error *error_out);

enum quire_status quire_cuda_memory(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                    struct quire_error *error_out);
enum quire_status quire_cuda_adopt(struct quire_device *device, void *base, size_t bytes,
                                   struct quire_memory **memory_out, struct quire_error *error_out);
enum quire_status quire_cuda_host(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                  struct quire_error *error_out);
enum quire_status quire_cuda_import(struct quire_device *device, const struct quire_share *share,
                                    struct quire_memory **memory_out, struct quire_error *error_out);
enum quire_status quire_cuda_stream(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                                    uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out);

/* Kernels (cuda_copy.cu, cuda_digest.cu), launched on the current device; loaded when a stream is made, so that no
 * later launch takes memory for their code. */
cudaError_t quire_cuda_load_copies(void);
cudaError_t quire_cuda_load_digests(void);
cudaError_t quire_cuda_copy_list(const struct quire_copy *list, int32_t count, uint32_t bytes_max, int32_t width,
                                 cudaStream_t stream);
cudaError_t quire_cuda_delay(uint32_t ns, cudaStream_t stream);
/* Scratch of quire_cuda_copy_digest, device memory of one stream. */
#define QUIRE_CUDA_DIGEST_BYTES ((size_t)1 << 20)
cudaError_t quire_cuda_copy_digest(void *target, const void *source, size_t bytes, uint64_t *digest_out, void *scratch,
                                   cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
