/* Hopper's instructions (sm_90a) as functions: barriers in shared memory, copies that run by themselves, warp-group
 * products. Nothing here decides anything; the PTX manual (sections "mbarrier", "cp.async", "wgmma") is the reference.
 *
 * Shared memory that ordinary stores or cp.async wrote and that wgmma or a bulk copy reads next needs hopper_proxy_fence
 * on the way, by the writer before its barrier or by the reader behind it.
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_HOPPER_CUH
#define QUIRE_KERNELS_CUDA_HOPPER_CUH

#include "device/hopper_barrier.cuh"

/* --- barriers in shared memory (device/hopper_barrier.cuh), further --- */

QUIRE_DEVICE void hopper_barrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper_shared(barrier)) : "memory");
}

/* racecheck (of compute-sanitizer) does not see that a lane may arrive for its warp, nor that bar.arrive orders what came
 * before it; built for it (QUIRE_RACECHECK, for no other use) every lane arrives, and whoever tells waits. */
#ifdef QUIRE_RACECHECK
#define HOPPER_WARP_ARRIVALS 32
#else
#define HOPPER_WARP_ARRIVALS 1
#endif

/* Once for a warp that has read what the barrier guards: HOPPER_WARP_ARRIVALS arrivals. */
QUIRE_DEVICE void hopper_barrier_arrive_warp(uint64_t *barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < HOPPER_WARP_ARRIVALS) {
    hopper_barrier_arrive(barrier);
  }
}

/* Barrier `id` (1 to 15) of the block among `threads` of its threads, whole warps. */
QUIRE_DEVICE void hopper_threads_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

QUIRE_DEVICE void hopper_proxy_fence(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* --- copies --- */

/* 16 bytes to shared memory, past the first-level cache; zeros where `read` is false, and then nothing is read. */
QUIRE_DEVICE void hopper_copy16(uint32_t shared, const void *global, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(read ? 16 : 0)
               : "memory");
}

QUIRE_DEVICE void hopper_copy4(uint32_t shared, const void *global, bool read) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(read ? 4 : 0) : "memory");
}

/* Arrives (one of the barrier's counted arrivals) once all earlier hopper_copy of this thread are there. */
QUIRE_DEVICE void hopper_copies_arrive(uint64_t *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(hopper_shared(barrier)) : "memory");
}

/* Copies so far, since the last of these, are a group. */
QUIRE_DEVICE void hopper_copies_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until all of this thread's groups but the last `COUNT` are there. */
template <int COUNT> QUIRE_DEVICE void hopper_copies_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

/* --- launches that overlap --- */

/* The next launch of the stream may begin, where it was made to (programmatic stream serialization). */
QUIRE_DEVICE void hopper_launch_next(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/* Until the launch before this one has ended and its memory is visible. */
QUIRE_DEVICE void hopper_launch_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/* --- registers of a warp group's role --- */

template <int COUNT> QUIRE_DEVICE void hopper_registers_up(void) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> QUIRE_DEVICE void hopper_registers_down(void) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* --- warp-group products --- */

/* Operand of 8-row groups of 128-byte rows in shared memory, 16-byte chunk c of row r at chunk c ^ (r mod 8), 1,024-byte
 * aligned; k runs along the row. A step of 32 bytes along k adds 2 to the lower half; the upper is always the same. */
#define HOPPER_OPERAND_HIGH (1024 >> 4 | 1 << 30)

QUIRE_DEVICE uint32_t hopper_operand_low(uint32_t shared) { return (shared & 0x3ffffu) >> 4 | 1u << 16; }

QUIRE_DEVICE uint64_t hopper_operand(uint32_t shared) {
  return (uint64_t)hopper_operand_low(shared) | (uint64_t)HOPPER_OPERAND_HIGH << 32;
}

QUIRE_DEVICE void hopper_products_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

QUIRE_DEVICE void hopper_products_end(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most `COUNT` of this warp group's products are under way. */
template <int COUNT> QUIRE_DEVICE void hopper_products_wait(void) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

#endif
