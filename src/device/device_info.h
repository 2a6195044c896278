/* What the machine offers, as `quire info` prints it and as plans of threads and memory need it.
 *
 * Reads the affinity mask, the limits of the control group and the processor's feature bits. A number that cannot be
 * learnt is 0, a text "". Memory: the caller's struct. Threads: any. Cannot fail. */
#ifndef QUIRE_DEVICE_DEVICE_INFO_H
#define QUIRE_DEVICE_DEVICE_INFO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct quire_device_info {
  char name[96];           /* the processor's own name */
  char isa[128];           /* feature words kernels care for: "avx2 fma f16c avx512f avx512bf16 amx_bf16" */
  int32_t cores;           /* processors this process may run on: affinity, then the group's quota rounded up; >= 1 */
  int32_t cores_online;    /* processors of the machine */
  int32_t numa_nodes;      /* >= 1 */
  int64_t memory_bytes;    /* of the machine, or of the group where that is less */
  int64_t available_bytes; /* what could be had now without swapping, within the same limits */
  int64_t page_bytes;      /* of virtual memory */
};

void quire_device_describe(struct quire_device_info *info_out);

/* info.cores alone, learnt once. */
int32_t quire_device_cores(void);

#ifdef __cplusplus
}
#endif
#endif
