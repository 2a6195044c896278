/* Products of a warp group for select: 64 keys by N heads, 128 e4m3 values deep, as one chain of four wgmma of 32, from
 * 0.
 *
 * Sums come out as sum[4 j + 2 r + e]: key row 16 warp + lane / 4 + 8 r, head 8 j + 2 (lane mod 4) + e.
 *
 * Internal to select. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_PRODUCTS_CUH
#define QUIRE_KERNELS_CUDA_SELECT_PRODUCTS_CUH

#include "kernels/cuda/hopper.cuh"

#define PRODUCTS_8(d, i)                                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
      "+f"(d[i + 7])
#define PRODUCTS_16(d, i) PRODUCTS_8(d, i), PRODUCTS_8(d, i + 8)
#define PRODUCTS_32(d, i) PRODUCTS_16(d, i), PRODUCTS_16(d, i + 16)

/* keys, heads: operands. */
#define PRODUCTS_WGMMA_32(GOES_ON)                                                                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " GOES_ON ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                                            \
  "%16, %17, p, 1, 1;\n}\n"

QUIRE_DEVICE void products_first(float (&sum)[16], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_32("0") : PRODUCTS_16(sum, 0) : "l"(keys), "l"(heads));
}

QUIRE_DEVICE void products_next(float (&sum)[16], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_32("1") : PRODUCTS_16(sum, 0) : "l"(keys), "l"(heads));
}

#define PRODUCTS_WGMMA_64(GOES_ON)                                                                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " GOES_ON ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                  \
  "%32, %33, p, 1, 1;\n}\n"

QUIRE_DEVICE void products_first(float (&sum)[32], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_64("0") : PRODUCTS_32(sum, 0) : "l"(keys), "l"(heads));
}

QUIRE_DEVICE void products_next(float (&sum)[32], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_64("1") : PRODUCTS_32(sum, 0) : "l"(keys), "l"(heads));
}

#define PRODUCTS_WGMMA_128(GOES_ON)                                                                                    \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " GOES_ON ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                                  \
  "%64, %65, p, 1, 1;\n}\n"

QUIRE_DEVICE void products_first(float (&sum)[64], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_128("0")
               : PRODUCTS_32(sum, 0), PRODUCTS_32(sum, 32)
               : "l"(keys), "l"(heads));
}

QUIRE_DEVICE void products_next(float (&sum)[64], uint64_t keys, uint64_t heads) {
  asm volatile(PRODUCTS_WGMMA_128("1")
               : PRODUCTS_32(sum, 0), PRODUCTS_32(sum, 32)
               : "l"(keys), "l"(heads));
}

/* Only issues; products_wait follows. */
template <int COUNT> QUIRE_DEVICE void products_issue(float (&sum)[COUNT], uint64_t keys, uint64_t heads) {
  hopper_products_begin();
  products_first(sum, keys, heads);
#pragma unroll
  for (int step = 1; step < 4; step++) {
    products_next(sum, keys + 2 * step, heads + 2 * step);
  }
  hopper_products_end();
}

/* Until the products in sum are there, at most `AFTER` of later ones being still under way. Ties the registers to the
 * wait: the compiler may not read them before it. */
template <int AFTER, int COUNT> QUIRE_DEVICE void products_wait(float (&sum)[COUNT]) {
  hopper_products_wait<AFTER>();
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    asm volatile("" : "+f"(sum[i])::"memory");
  }
}

#endif
