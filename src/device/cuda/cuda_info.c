/* What the CUDA driver says. The runtime is part of the program and opens the driver's library at its first call, so a
 * machine without a driver is an answer here and not an error of the loader. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"

#define CAPABILITY_MAJOR 9

/* True if the library can be opened at all: the runtime's own code for that also means a driver that is too old. */
static bool has_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    return false;
  }
  (void)dlclose(library);
  return true;
}

static int32_t count_usable(int32_t devices) {
  int32_t usable = 0;
  for (int32_t i = 0; i < devices; i++) {
    int major = 0, minor = 0;
    bool asked = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) == cudaSuccess &&
                 cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) == cudaSuccess;
    usable += asked && major == CAPABILITY_MAJOR && minor == 0 ? 1 : 0;
  }
  return usable;
}

bool quire_cuda_describe(struct quire_cuda_info *info_out) {
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  int driver = 0, runtime = 0, devices = 0;
  struct cudaDeviceProp properties;
  (void)cudaRuntimeGetVersion(&runtime);
  info_out->runtime = runtime;
  if (!has_library()) {
    (void)snprintf(info_out->why, sizeof info_out->why, "the driver's library libcuda.so.1 is not found");
    return false;
  }
  (void)cudaDriverGetVersion(&driver);
  info_out->driver = driver;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    (void)snprintf(info_out->why, sizeof info_out->why, "no device: %s", cudaGetErrorString(error));
    return false;
  }
  info_out->devices = count_usable(devices);
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
    (void)snprintf(info_out->name, sizeof info_out->name, "%.95s", properties.name);
    info_out->processors = properties.multiProcessorCount;
    info_out->memory_bytes = (int64_t)properties.totalGlobalMem;
  }
  if (info_out->devices != devices) {
    (void)snprintf(info_out->why, sizeof info_out->why,
                   "%d of %d devices are not of compute capability 9.0 (the first: %s)", devices - info_out->devices,
                   devices, info_out->name);
    info_out->devices = 0;
    return false;
  }
  return true;
}
