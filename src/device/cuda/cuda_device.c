/* GPUs as devices: opening one, and the driver's functions it needs.
 *
 * The program links the CUDA runtime and not the driver; what only the driver offers (virtual memory) is asked for by
 * name through the runtime. Opening a device also says which others reach it: their kernels read and write its memory
 * in place. */
#include <string.h>

#include "base/assert.h"
#include "device/cuda/cuda_private.h"
#include "device/device_info.h"

enum quire_status quire_cuda_fault(cudaError_t error, const char *what, struct quire_error *error_out) {
  QUIRE_ASSERT(error != cudaSuccess);
  enum quire_status status = error == cudaErrorMemoryAllocation ? QUIRE_ERR_MEMORY : QUIRE_ERR_RANK;
  return quire_error_set(error_out, status, "cuda", "%s: %s", what, cudaGetErrorString(error));
}

/* Looks up all names; the name of the first that is missing, or NULL. */
static const char *find_driver(struct quire_cuda_driver *driver) {
  struct {
    const char *name;
    void *slot;
  } const wanted[] = {
      {"cuDeviceGetAttribute", &driver->device_attribute},
      {"cuMemGetAllocationGranularity", &driver->granularity},
      {"cuMemCreate", &driver->create},
      {"cuMemRelease", &driver->release},
      {"cuMemAddressReserve", &driver->reserve},
      {"cuMemAddressFree", &driver->unreserve},
      {"cuMemMap", &driver->map},
      {"cuMemUnmap", &driver->unmap},
      {"cuMemSetAccess", &driver->access},
      {"cuMemExportToShareableHandle", &driver->export_handle},
      {"cuMemImportFromShareableHandle", &driver->import_handle},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(wanted[i].name, &function, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || function == NULL) {
      return wanted[i].name;
    }
    memcpy(wanted[i].slot, &function, sizeof function); /* the slot is a pointer to a function */
  }
  return NULL;
}

static CUmemAllocationProp properties_of(const struct quire_cuda_device *device, int handle_types) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device->front.index;
  properties.requestedHandleTypes = (CUmemAllocationHandleType)handle_types;
  return properties;
}

/* The richest set of handles that an allocation of one granule gets. What a device claims to support may still be
 * refused (a fabric without its channel), so it is tried. */
static int probe_handles(const struct quire_cuda_device *device) {
  QUIRE_ASSERT(device->granularity > 0);
  static const int sets[] = {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC,
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_FABRIC};
  for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
    CUmemAllocationProp properties = properties_of(device, sets[i]);
    CUmemGenericAllocationHandle handle = 0;
    if (device->driver.create(&handle, device->granularity, &properties, 0) == CUDA_SUCCESS) {
      (void)device->driver.release(handle);
      return sets[i];
    }
  }
  return 0;
}

/* Which devices reach this one's memory; the runtime's own allocations need it said once a pair. */
static void find_peers(struct quire_cuda_device *device) {
  QUIRE_ASSERT(device->peers == 0);
  int devices = 0;
  device->peer[device->peers++] = device->front.index;
  (void)cudaGetDeviceCount(&devices);
  for (int i = 0; i < devices && device->peers < QUIRE_CUDA_PEERS_MAX; i++) {
    int can = 0;
    if (i != device->front.index && cudaDeviceCanAccessPeer(&can, i, device->front.index) == cudaSuccess && can != 0) {
      (void)cudaDeviceEnablePeerAccess(i, 0); /* our kernels on its memory; already enabled is as good */
      (void)cudaGetLastError();
      device->peer[device->peers++] = i;
    }
  }
}

static enum quire_status cuda_start(struct quire_cuda_device *device, struct quire_error *error_out) {
  cudaError_t error = cudaSetDevice(device->front.index);
  error = error == cudaSuccess ? cudaFree(NULL) : error; /* makes the context */
  if (error != cudaSuccess) {
    return quire_cuda_fault(error, "the device cannot be used", error_out);
  }
  const char *missing = find_driver(&device->driver);
  if (missing != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda",
                           "the driver has no %s; it needs CUDA 12.0 or newer", missing);
  }
  int processors = 0;
  CUmemAllocationProp properties = properties_of(device, 0);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device->front.index);
  if (device->driver.granularity(&device->granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
          CUDA_SUCCESS ||
      device->granularity == 0) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "GPU %d has no virtual memory management",
                           (int)device->front.index);
  }
  device->processors = processors;
  device->handle_types = probe_handles(device);
  find_peers(device);
  return QUIRE_OK;
}

static enum quire_status cuda_open(const struct quire_env *env, int32_t index, struct quire_device **device_out,
                                   struct quire_error *error_out) {
  struct quire_cuda_info info;
  if (!quire_cuda_describe(&info)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "GPU %d: %s", (int)index, info.why);
  }
  if (index < 0 || index >= info.devices) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "GPU %d: there are %d", (int)index, info.devices);
  }
  struct quire_cuda_device *device = quire_env_zalloc(env, 1, sizeof *device);
  if (device == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "cuda", "no memory for the record of GPU %d", (int)index);
  }
  device->front = (struct quire_device){&quire_device_cuda_ops, env, index};
  enum quire_status status = cuda_start(device, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, device, 1, sizeof *device);
    return status;
  }
  *device_out = &device->front;
  return QUIRE_OK;
}

static void cuda_close(struct quire_device *device) {
  quire_env_free(device->env, device, 1, sizeof(struct quire_cuda_device));
}

static bool cuda_reaches(const struct quire_device *device, const struct quire_device *other) {
  const struct quire_cuda_device *owner = (const struct quire_cuda_device *)other;
  QUIRE_ASSERT(owner->peers > 0 && owner->peers <= QUIRE_CUDA_PEERS_MAX);
  for (int32_t i = 0; i < owner->peers; i++) {
    if (owner->peer[i] == device->index) {
      return true;
    }
  }
  return false;
}

const struct quire_device_ops quire_device_cuda_ops = {
    .kind = QUIRE_DEVICE_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .reaches = cuda_reaches,
    .memory = quire_cuda_memory,
    .adopt = quire_cuda_adopt,
    .host = quire_cuda_host,
    .import = quire_cuda_import,
    .stream = quire_cuda_stream,
};
