/* What attend needs of Hopper beyond hopper.cuh: products of 64 query heads, copies that keep rows in the second-level
 * cache, matrix stores, fast exponentials.
 *
 * Shared memory operands lie in tiles of rows of 128 bytes (64 bf16), 16-byte chunk c of row r at chunk c ^ (r mod 8).
 * Read along the row (K-major: queries and keys of q k^T) eight rows are 1,024 bytes. Read across it (MN-major: the
 * values of p v, whose columns run along the row) a tile is 64 columns wide and the next 64 columns lie a tile further.
 *
 * Internal to the cuda kernels. */
#ifndef QUIRE_KERNELS_CUDA_ATTEND_PTX_CUH
#define QUIRE_KERNELS_CUDA_ATTEND_PTX_CUH

#include <stdint.h>

#include "kernels/cuda/hopper.cuh"

QUIRE_DEVICE void hopper_threads_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same for memory that was written and that those who wait will read. */
QUIRE_DEVICE void hopper_threads_tell(int id, int threads) {
#ifdef QUIRE_RACECHECK
  hopper_threads_sync(id, threads);
#else
  hopper_threads_arrive(id, threads);
#endif
}

QUIRE_DEVICE uint64_t hopper_policy_keep(void) {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/* hopper_copy16 of a row that others will want from the second-level cache. */
QUIRE_DEVICE void hopper_copy16_keep(uint32_t shared, const void *global, bool read, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2, %3;" ::"r"(shared), "l"(global),
               "r"(read ? 16 : 0), "l"(policy)
               : "memory");
}

/* 16 and 8 bytes of a row. */
QUIRE_DEVICE uint4 hopper_load16(const void *global) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

QUIRE_DEVICE float2 hopper_load8(const void *global) {
  float2 v;
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(global));
  return v;
}

QUIRE_DEVICE void hopper_store16(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/* --- a pair: two blocks of a cluster, which reach each other's shared memory --- */

QUIRE_DEVICE uint32_t hopper_pair_rank(void) {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/* Both blocks, all threads. */
QUIRE_DEVICE void hopper_pair_sync(void) {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address at which block `rank` has what this one has at `shared`. */
QUIRE_DEVICE uint32_t hopper_peer(uint32_t shared, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}

/* Bytes of this block's shared memory to the other's, counted by a barrier there. Multiples of 16. */
QUIRE_DEVICE void hopper_copy_peer(uint32_t there, uint32_t here, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(there),
      "r"(here), "r"(bytes), "r"(barrier)
      : "memory");
}

QUIRE_DEVICE void hopper_barrier_arrive_peer(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Operand read across its rows: 64 columns a tile, tiles `tile_bytes` apart, eight rows 1,024 bytes. */
QUIRE_DEVICE uint64_t hopper_operand_across(uint32_t shared, uint32_t tile_bytes) {
  return (uint64_t)((shared & 0x3ffffu) >> 4) | (uint64_t)(tile_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}

/* A value that the compiler may not use above this point: a load before it is waited for behind it. */
QUIRE_DEVICE int32_t hopper_hold(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
QUIRE_DEVICE const uint8_t *hopper_hold(const uint8_t *x) {
  asm volatile("" : "+l"(x));
  return x;
}

/* Keeps the compiler from moving uses of accumulators across. */
template <int COUNT> QUIRE_DEVICE void hopper_hold(float (&x)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    asm volatile("" : "+f"(x[i])::"memory");
  }
}

#define QUIRE_F4(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3])
#define QUIRE_F16(a, i) QUIRE_F4(a, i), QUIRE_F4(a, i + 4), QUIRE_F4(a, i + 8), QUIRE_F4(a, i + 12)
#define QUIRE_F32(a) QUIRE_F16(a, 0), QUIRE_F16(a, 16)
#define QUIRE_F128(a)                                                                                                  \
  QUIRE_F16(a, 0), QUIRE_F16(a, 16), QUIRE_F16(a, 32), QUIRE_F16(a, 48), QUIRE_F16(a, 64), QUIRE_F16(a, 80),           \
      QUIRE_F16(a, 96), QUIRE_F16(a, 112)

/* d[64, 64] (+)= a[64, 16] b[64, 16]^T, both K-major in shared memory; !accumulate: d starts at zero. */
QUIRE_DEVICE void hopper_product_64x64(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
               "}, %32, %33, p, 1, 1, 0, 0;\n}"
               : QUIRE_F32(d)
               : "l"(a), "l"(b), "r"((int)accumulate));
}

/* d[64, 64] += a[64, 16] b[16, 64]: a in registers, b MN-major. */
QUIRE_DEVICE void hopper_product_64x64_registers(float (&d)[32], const uint32_t *a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : QUIRE_F32(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d[64, 256] += a[64, 16] b[16, 256]: a in registers, b MN-major. */
QUIRE_DEVICE void hopper_product_64x256_registers(float (&d)[128], const uint32_t *a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
               "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
               : QUIRE_F128(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same with a K-major in shared memory. */
QUIRE_DEVICE void hopper_product_64x256(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
               "}, %128, %129, 1, 1, 1, 0, 1;"
               : QUIRE_F128(d)
               : "l"(a), "l"(b));
}

/* Four 8 x 8 matrices of bf16, held as accumulators are, to the rows whose addresses the lanes give. */
QUIRE_DEVICE void hopper_store_matrices(uint32_t to, const uint32_t *v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

QUIRE_DEVICE float hopper_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
QUIRE_DEVICE float hopper_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* Two f32 to a pair of bf16, RNE; the first in the lower half. */
QUIRE_DEVICE uint32_t hopper_bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif
