/* What the machine offers, as `quire info` prints it and as plans of threads and memory need it.
 *
 * Reads the affinity mask, the limits of the control group and the processor's feature bits; asks the CUDA driver where
 * this build has CUDA. A number that cannot be learnt is 0, a text "". Memory: the caller's struct. Threads: any. Only
 * the check of memory fails. */
#ifndef QUIRE_DEVICE_DEVICE_INFO_H
#define QUIRE_DEVICE_DEVICE_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_device_info {
  char name[96];           /* the processor's own name */
  char isa[128];           /* feature words kernels care for: "avx2 fma f16c avx512f avx512bf16 amx_bf16" */
  int32_t cores;           /* processors this process may run on: affinity, then the group's quota rounded up; >= 1 */
  int32_t cores_online;    /* processors of the machine */
  int32_t numa_nodes;      /* >= 1 */
  int64_t memory_bytes;    /* of the machine, or what group or process (ulimit -v) may have where that is less */
  int64_t available_bytes; /* what could be had now without swapping, within the same limits */
  int64_t page_bytes;      /* of virtual memory */
};

void quire_device_describe(struct quire_device_info *info_out);

/* info.cores alone, learnt once. */
int32_t quire_device_cores(void);

/* May bytes (> 0) be taken from env and touched at once? The kernel grants more than there is and then ends a process
 * that touches it, so what comes from the system's own allocator must be available now; another allocator answers for
 * what it gives, and below 64 MiB nobody asks. QUIRE_ERR_MEMORY, said of `where`. */
enum quire_status quire_device_check_available(const struct quire_env *env, size_t bytes, const char *where,
                                               struct quire_error *error_out);

/* GPUs as the CUDA driver shows them, and why there are none. Whatever is on the first of them is said of all. */
struct quire_cuda_info {
  int32_t devices;      /* that this build can run on: compute capability 9.0; 0 when CUDA is off */
  int32_t driver;       /* 1000 * major + 10 * minor of the CUDA version the driver supports; 0 without one */
  int32_t runtime;      /* of the runtime in this build, likewise */
  int32_t processors;   /* multiprocessors of one */
  int64_t memory_bytes; /* of one */
  char name[96];
  /* devices is 0: built without CUDA, no driver, one that is too old or does not start, no device, one of another
   * kind */
  char why[200];
};

/* info_out->devices > 0. May take a second when it is the process's first call to the driver. */
bool quire_cuda_describe(struct quire_cuda_info *info_out);

#ifdef __cplusplus
}
#endif
#endif
