/* Hopper's instructions (sm_90a) as functions: barriers in shared memory, copies that run by themselves, warp-group
 * products. Nothing here decides anything; the PTX manual (sections "mbarrier", "cp.async", "wgmma") is the reference.
 *
 * Shared memory that ordinary stores or cp.async wrote and that wgmma or a bulk copy reads next needs
 * hopper_proxy_fence on the way, by the writer before its barrier or by the reader behind it.
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_HOPPER_CUH
#define QUIRE_KERNELS_CUDA_HOPPER_CUH

#include "device/hopper_barrier.cuh"

/* --- barriers in shared memory (device/hopper_barrier.cuh), further --- */

QUIRE_DEVICE void hopper_barrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper_shared(barrier)) : "memory");
}

/* Announces bytes that copies will bring, without arriving (hopper_barrier_expect arrives too). */
QUIRE_DEVICE void hopper_barrier_announce(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(hopper_shared(barrier)), "r"(bytes)
               : "memory");
}

/* racecheck (of compute-sanitizer) does not see that a lane may arrive for its warp, nor that bar.arrive orders what
 * came before it; built for it (QUIRE_RACECHECK, for no other use) every lane arrives, and whoever tells waits. */
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

/* --- shared memory that others of the block change meanwhile --- */

/* Reads of what threads write with hopper_poke or atomics, and such a write: one after the other in some order, no
 * more. racecheck takes atomics alone for that. */
#ifdef QUIRE_RACECHECK
QUIRE_DEVICE uint32_t hopper_peek(const void *word) { return atomicOr((uint32_t *)word, 0u); }
QUIRE_DEVICE void hopper_poke(void *word, uint32_t value) { atomicExch((uint32_t *)word, value); }
#else
QUIRE_DEVICE uint32_t hopper_peek(const void *word) {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(hopper_shared(word)) : "memory");
  return value;
}

QUIRE_DEVICE void hopper_poke(void *word, uint32_t value) {
  asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(hopper_shared(word)), "r"(value) : "memory");
}
#endif

/* Four words, each by itself. */
QUIRE_DEVICE uint4 hopper_peek4(const uint32_t *words) {
#ifdef QUIRE_RACECHECK
  return make_uint4(hopper_peek(words), hopper_peek(words + 1), hopper_peek(words + 2), hopper_peek(words + 3));
#else
  uint4 four;
  asm volatile("ld.relaxed.cta.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "r"(hopper_shared(words))
               : "memory");
  return four;
#endif
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

/* The copy engine's: bytes in one piece, 16-byte aligned, a multiple of 16; the barrier counts those that are there. */
QUIRE_DEVICE void hopper_copy_bulk(uint32_t shared, const void *global, uint32_t bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(hopper_shared(barrier))
               : "memory");
}

/* A box of a tensor of three dimensions, from x 0, y, z on, as its map lays it; it need not stay in the second-level
 * cache. */
QUIRE_DEVICE void hopper_copy_box(uint32_t shared, const void *map, int32_t y, int32_t z, uint64_t *barrier) {
  asm volatile("{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
               "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
               "[%1, {0, %2, %3}], [%4], policy;\n}" ::"r"(shared),
               "l"(map), "r"(y), "r"(z), "r"(hopper_shared(barrier))
               : "memory");
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

/* Operand of 8-row groups of 128-byte rows in shared memory, 16-byte chunk c of row r at chunk c ^ (r mod 8),
 * 1,024-byte aligned; k runs along the row. A step of 32 bytes along k adds 2 to the lower half; the upper is always
 * the same. */
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
