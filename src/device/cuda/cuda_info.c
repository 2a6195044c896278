/* What the CUDA driver says. The runtime is part of the program and opens the driver's library at its first call, so a
 * machine without a driver is an answer here and not an error of the loader. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/device_info.h"

#define CAPABILITY_MAJOR 9

/* Why the driver's library cannot be opened, or NULL: the runtime's own code for that also means a driver that is too
 * old. */
static const char *library_fault(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    return dlerror();
  }
  (void)dlclose(library);
  return NULL;
}

/* What the driver answered in place of a number of devices, with what to do. */
static void say_why_none(cudaError_t error, struct quire_cuda_info *info) {
  const int driver = info->driver, runtime = info->runtime;
  QUIRE_ASSERT(info->devices == 0);
  if (error == cudaErrorInsufficientDriver) {
    (void)snprintf(info->why, sizeof info->why,
                   "the driver is of CUDA %d.%d, this build needs %d.%d; update the driver", driver / 1000,
                   driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
    (void)snprintf(info->why, sizeof info->why,
                   "the driver shows no device; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES");
  } else {
    (void)snprintf(info->why, sizeof info->why, "the driver does not start: %s (%d); look at nvidia-smi",
                   cudaGetErrorString(error), (int)error);
  }
}

static bool is_usable(int32_t device) {
  int major = 0, minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == CAPABILITY_MAJOR && minor == 0;
}

/* All devices must be of the kind, since ranks are numbered as the driver numbers devices. */
static void refuse_others(int32_t devices, struct quire_cuda_info *info) {
  int32_t others = 0, first = -1;
  struct cudaDeviceProp properties;
  for (int32_t i = devices - 1; i >= 0; i--) {
    if (!is_usable(i)) {
      first = i;
      others++;
    }
  }
  if (others > 0 && cudaGetDeviceProperties(&properties, first) == cudaSuccess) {
    (void)snprintf(info->why, sizeof info->why,
                   "%d of %d devices are not of compute capability 9.0 (%d: %.40s); name the others in "
                   "CUDA_VISIBLE_DEVICES",
                   (int)others, (int)devices, (int)first, properties.name);
  } else if (others > 0) {
    (void)snprintf(info->why, sizeof info->why, "device %d does not answer; look at nvidia-smi", (int)first);
  }
}

bool quire_cuda_describe(struct quire_cuda_info *info_out) {
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  int driver = 0, runtime = 0, devices = 0;
  struct cudaDeviceProp properties;
  (void)cudaRuntimeGetVersion(&runtime);
  info_out->runtime = runtime;
  const char *fault = library_fault();
  if (fault != NULL) {
    (void)snprintf(info_out->why, sizeof info_out->why, "there is no driver: %s", fault);
    return false;
  }
  (void)cudaDriverGetVersion(&driver);
  info_out->driver = driver;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    say_why_none(error, info_out);
    (void)cudaGetLastError(); /* said; it is no launch's */
    return false;
  }
  refuse_others(devices, info_out);
  if (info_out->why[0] != '\0') {
    (void)cudaGetLastError();
    return false;
  }
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
    (void)snprintf(info_out->name, sizeof info_out->name, "%.95s", properties.name);
    info_out->processors = properties.multiProcessorCount;
    info_out->memory_bytes = (int64_t)properties.totalGlobalMem;
  }
  info_out->devices = devices;
  return true;
}
