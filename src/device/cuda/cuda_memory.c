/* Memory of a GPU: virtual addresses of our own over one handle, so that peers in this process reach it at the same
 * address and another process maps the same bytes.
 *
 *     handle  (physical, rounded up to the granularity, 2 MiB)  --map at offset 0-->  [base, base + mapped)
 *                      |                                                              read and write: every peer
 *                      +-- descriptor, fabric handle (cuda: what the probe found) --> quire_memory_send
 *
 * A handle can be mapped from its first byte only, so whoever interleaves GPUs in one range needs a handle a piece; a
 * rank's slab is one piece and takes one handle, and one descriptor, however large it is. Poison as on the CPU. */
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/cuda/cuda_private.h"
#include "device/device_info.h"

#define POISON 0xFF
#define NONE (-1)

enum cuda_memory_kind { MEMORY_OWN, MEMORY_ADOPTED, MEMORY_HOST };

struct cuda_memory {
  struct quire_memory front;
  struct quire_cuda_device *device;
  enum cuda_memory_kind kind;
  CUmemGenericAllocationHandle handle;
  size_t mapped;
  int handle_types;
};

static void unmap(const struct quire_cuda_driver *driver, CUdeviceptr base, size_t mapped) {
  CUresult unmapped = driver->unmap(base, mapped);
  CUresult freed = driver->unreserve(base, mapped);
  QUIRE_ASSERT((unmapped == CUDA_SUCCESS && freed == CUDA_SUCCESS) || cudaDeviceSynchronize() != cudaSuccess);
}

static void cuda_memory_destroy(struct quire_memory *front) {
  struct cuda_memory *memory = (struct cuda_memory *)front;
  QUIRE_ASSERT(front->base != NULL);
  (void)cudaSetDevice(memory->device->front.index);
  (void)cudaDeviceSynchronize(); /* what was enqueued on it has run */
  if (memory->kind == MEMORY_HOST) {
    (void)cudaFreeHost(front->base);
  } else if (memory->kind == MEMORY_OWN) {
    unmap(&memory->device->driver, (CUdeviceptr)(uintptr_t)front->base, memory->mapped);
    (void)memory->device->driver.release(memory->handle);
  }
  quire_env_free(front->env, memory, 1, sizeof *memory);
}

static enum quire_status cuda_memory_share(const struct quire_memory *front, struct quire_share *share_out,
                                           struct quire_error *error_out) {
  const struct cuda_memory *memory = (const struct cuda_memory *)front;
  const struct quire_cuda_driver *driver = &memory->device->driver;
  struct quire_share share = {.bytes = front->bytes, .mapped_bytes = memory->mapped, .descriptor = NONE};
  if (memory->kind != MEMORY_OWN) {
    return quire_memory_not_shareable(front, share_out, error_out);
  }
  QUIRE_ASSERT(sizeof(CUmemFabricHandle) == QUIRE_SHARE_FABRIC_BYTES);
  if ((memory->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 &&
      driver->export_handle(&share.descriptor, memory->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
          CUDA_SUCCESS) {
    share.descriptor = NONE;
  }
  share.has_fabric = (memory->handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 &&
                     driver->export_handle(share.fabric, memory->handle, CU_MEM_HANDLE_TYPE_FABRIC, 0) == CUDA_SUCCESS;
  if (share.descriptor == NONE && !share.has_fabric) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "device memory",
                           "GPU %d gives no handle that another process could map", (int)memory->device->front.index);
  }
  *share_out = share;
  return QUIRE_OK;
}

static const struct quire_memory_ops cuda_memory_ops = {.destroy = cuda_memory_destroy, .share = cuda_memory_share};

/* Reserves addresses for memory->handle and lets every peer of the device use them. */
static CUresult map_handle(struct cuda_memory *memory, CUdeviceptr *base_out) {
  const struct quire_cuda_device *device = memory->device;
  QUIRE_ASSERT(device->peers > 0 && memory->mapped > 0 && memory->mapped % device->granularity == 0);
  const struct quire_cuda_driver *driver = &device->driver;
  CUmemAccessDesc access[QUIRE_CUDA_PEERS_MAX];
  CUdeviceptr base = 0;
  memset(access, 0, sizeof access);
  for (int32_t i = 0; i < device->peers; i++) {
    access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[i].location.id = device->peer[i];
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  CUresult result = driver->reserve(&base, memory->mapped, device->granularity, 0, 0);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = driver->map(base, memory->mapped, 0, memory->handle, 0);
  if (result != CUDA_SUCCESS) {
    (void)driver->unreserve(base, memory->mapped);
    return result;
  }
  result = driver->access(base, memory->mapped, access, (size_t)device->peers);
  if (result != CUDA_SUCCESS) {
    unmap(driver, base, memory->mapped);
    return result;
  }
  *base_out = base;
  return CUDA_SUCCESS;
}

static enum quire_status record_of(struct quire_device *device, size_t bytes, enum cuda_memory_kind kind,
                                   struct cuda_memory **memory_out, struct quire_error *error_out) {
  QUIRE_ASSERT(device->ops == &quire_device_cuda_ops);
  if (bytes == 0 || bytes > SIZE_MAX / 2) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "device memory", "a size of %zu bytes was asked for", bytes);
  }
  struct cuda_memory *memory = quire_env_zalloc(device->env, 1, sizeof *memory);
  if (memory == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory", "no memory for its record");
  }
  memory->front = (struct quire_memory){&cuda_memory_ops, device->env, NULL, bytes};
  memory->device = quire_cuda_device_of(device);
  memory->kind = kind;
  *memory_out = memory;
  return QUIRE_OK;
}

enum quire_status quire_cuda_memory(struct quire_device *front, size_t bytes, struct quire_memory **memory_out,
                                    struct quire_error *error_out) {
  struct quire_cuda_device *device = quire_cuda_device_of(front);
  struct cuda_memory *memory = NULL;
  CUmemAllocationProp properties;
  CUdeviceptr base = 0;
  enum quire_status status = record_of(front, bytes, MEMORY_OWN, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  QUIRE_ASSERT(device->granularity > 0);
  (void)cudaSetDevice(front->index);
  memory->mapped = (bytes + device->granularity - 1) / device->granularity * device->granularity;
  memory->handle_types = device->handle_types;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = front->index;
  properties.requestedHandleTypes = (CUmemAllocationHandleType)memory->handle_types;
  CUresult result = device->driver.create(&memory->handle, memory->mapped, &properties, 0);
  if (result != CUDA_SUCCESS) {
    goto free_record;
  }
  result = map_handle(memory, &base);
  if (result != CUDA_SUCCESS) {
    goto release_handle;
  }
  memory->front.base = (void *)(uintptr_t)base;
  if (cudaMemset(memory->front.base, POISON, memory->mapped) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
    cuda_memory_destroy(&memory->front);
    return quire_error_set(error_out, QUIRE_ERR_RANK, "device memory", "GPU %d has failed", (int)front->index);
  }
  *memory_out = &memory->front;
  return QUIRE_OK;

release_handle:
  (void)device->driver.release(memory->handle);
free_record:
  quire_env_free(front->env, memory, 1, sizeof *memory);
  return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory",
                         "GPU %d refuses %zu bytes (driver error %d); give the cache fewer pages", (int)front->index,
                         bytes, (int)result);
}

enum quire_status quire_cuda_adopt(struct quire_device *front, void *base, size_t bytes,
                                   struct quire_memory **memory_out, struct quire_error *error_out) {
  if (base == NULL || bytes == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "device memory", "nothing to adopt: %zu bytes at %p", bytes,
                           base);
  }
  struct cuda_memory *memory = NULL;
  enum quire_status status = record_of(front, bytes, MEMORY_ADOPTED, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  memory->front.base = base;
  *memory_out = &memory->front;
  return QUIRE_OK;
}

enum quire_status quire_cuda_host(struct quire_device *front, size_t bytes, struct quire_memory **memory_out,
                                  struct quire_error *error_out) {
  struct cuda_memory *memory = NULL;
  enum quire_status status = record_of(front, bytes, MEMORY_HOST, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  /* pinned pages are the system's, whoever keeps the record: more than there is would end the process */
  status = quire_device_check_available(quire_env_default(), bytes, "device memory", error_out);
  if (status != QUIRE_OK) {
    quire_env_free(front->env, memory, 1, sizeof *memory);
    return status;
  }
  (void)cudaSetDevice(front->index);
  cudaError_t error = cudaHostAlloc(&memory->front.base, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  QUIRE_ASSERT(error != cudaSuccess || memory->front.base != NULL);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    quire_env_free(front->env, memory, 1, sizeof *memory);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory", "no pinned host memory of %zu bytes: %s",
                           bytes, cudaGetErrorString(error));
  }
  memset(memory->front.base, POISON, bytes);
  *memory_out = &memory->front;
  return QUIRE_OK;
}

enum quire_status quire_cuda_import(struct quire_device *front, const struct quire_share *share,
                                    struct quire_memory **memory_out, struct quire_error *error_out) {
  struct quire_cuda_device *device = quire_cuda_device_of(front);
  QUIRE_ASSERT(device->granularity > 0);
  if (share->bytes == 0 || share->mapped_bytes < share->bytes || share->mapped_bytes > SIZE_MAX / 2 ||
      share->mapped_bytes % device->granularity != 0) {
    return quire_error_set(error_out, QUIRE_ERR_PEER, "device memory", "%llu of %llu bytes are not a handle's",
                           (unsigned long long)share->bytes, (unsigned long long)share->mapped_bytes);
  }
  struct cuda_memory *memory = NULL;
  CUdeviceptr base = 0;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  enum quire_status status = record_of(front, share->bytes, MEMORY_OWN, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  (void)cudaSetDevice(front->index);
  memory->mapped = share->mapped_bytes;
  if (share->descriptor != NONE) {
    result = device->driver.import_handle(&memory->handle, (void *)(uintptr_t)share->descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  } else if (share->has_fabric) {
    struct quire_share copy = *share;
    result = device->driver.import_handle(&memory->handle, copy.fabric, CU_MEM_HANDLE_TYPE_FABRIC);
  }
  if (result == CUDA_SUCCESS) {
    result = map_handle(memory, &base);
    if (result != CUDA_SUCCESS) {
      (void)device->driver.release(memory->handle);
    }
  }
  if (result != CUDA_SUCCESS) {
    quire_env_free(front->env, memory, 1, sizeof *memory);
    return quire_error_set(error_out, QUIRE_ERR_PEER, "device memory",
                           "GPU %d cannot map the peer's %llu bytes (driver error %d)", (int)front->index,
                           (unsigned long long)share->bytes, (int)result);
  }
  memory->front.base = (void *)(uintptr_t)base;
  *memory_out = &memory->front;
  return QUIRE_OK;
}
