#include "support/gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "device/device_info.h"

#define SKIPPED 77

void test_needs_gpus(int32_t devices) {
  struct quire_cuda_info info;
  if (quire_cuda_describe(&info) && info.devices >= devices) {
    return;
  }
  if (info.devices == 0) {
    printf("skipped: no CUDA: %s\n", info.why);
  } else {
    printf("skipped: needs %d GPUs, there %s %d\n", (int)devices, info.devices == 1 ? "is" : "are", (int)info.devices);
  }
  exit(SKIPPED);
}
