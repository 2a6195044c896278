/* Barriers in shared memory on which copies arrive that run by themselves (sm_90a; the PTX manual, "mbarrier").
 *
 * Internal to the cuda code. */
#ifndef QUIRE_DEVICE_HOPPER_BARRIER_CUH
#define QUIRE_DEVICE_HOPPER_BARRIER_CUH

#include <stdint.h>

#define QUIRE_DEVICE static __device__ __forceinline__

QUIRE_DEVICE uint32_t hopper_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

QUIRE_DEVICE void hopper_barrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(hopper_shared(barrier)), "r"(arrivals) : "memory");
}

/* Makes initialised barriers visible to the copy engine; a __syncthreads follows. */
QUIRE_DEVICE void hopper_barrier_init_fence(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* Arrives and announces bytes that copies will bring. */
QUIRE_DEVICE void hopper_barrier_expect(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(hopper_shared(barrier)), "r"(bytes)
               : "memory");
}

/* Waits until the phase of this parity is over. A barrier's first phase has parity 0. */
QUIRE_DEVICE void hopper_barrier_wait(uint64_t *barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(hopper_shared(barrier)), "r"(parity)
                 : "memory");
  } while (done == 0);
}

#endif
