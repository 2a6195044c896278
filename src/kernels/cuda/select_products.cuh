/* Products of a warp group for select: 64 keys by N heads, 128 e4m3 values deep, as one chain of four wgmma of 32, from 0.
 *
 * Internal to select. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_PRODUCTS_CUH
#define QUIRE_KERNELS_CUDA_SELECT_PRODUCTS_CUH

#include "kernels/cuda/hopper.cuh"

#define PRODUCTS_R8(d, i)                                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
      "+f"(d[i + 7])
#define PRODUCTS_R16(d, i) PRODUCTS_R8(d, i), PRODUCTS_R8(d, i + 8)
#define PRODUCTS_R32(d, i) PRODUCTS_R16(d, i), PRODUCTS_R16(d, i + 16)

/* sum = 0 or sum, plus keys * heads. sum[4 j + 2 r + e]: key row 16 warp + lane / 4 + 8 r, head 8 j + 2 (lane mod 4) + e. */
QUIRE_DEVICE void products_step(float (&sum)[16], uint64_t keys, uint64_t heads, bool goes_on) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
               "%16, %17, p, 1, 1;\n}\n"
               : PRODUCTS_R16(sum, 0)
               : "l"(keys), "l"(heads), "r"((int)goes_on));
}

/* sum = 0 or sum, plus keys * heads. sum[4 j + 2 r + e]: key row 16 warp + lane / 4 + 8 r, head 8 j + 2 (lane mod 4) + e. */
QUIRE_DEVICE void products_step(float (&sum)[32], uint64_t keys, uint64_t heads, bool goes_on) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "%32, %33, p, 1, 1;\n}\n"
               : PRODUCTS_R32(sum, 0)
               : "l"(keys), "l"(heads), "r"((int)goes_on));
}

/* sum = 0 or sum, plus keys * heads. sum[4 j + 2 r + e]: key row 16 warp + lane / 4 + 8 r, head 8 j + 2 (lane mod 4) + e. */
QUIRE_DEVICE void products_step(float (&sum)[64], uint64_t keys, uint64_t heads, bool goes_on) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "%64, %65, p, 1, 1;\n}\n"
               : PRODUCTS_R32(sum, 0), PRODUCTS_R32(sum, 32)
               : "l"(keys), "l"(heads), "r"((int)goes_on));
}

/* keys, heads: addresses in shared memory. */
template <int COUNT> QUIRE_DEVICE void products_run(float (&sum)[COUNT], uint32_t keys, uint32_t heads) {
  hopper_products_begin();
#pragma unroll
  for (int step = 0; step < 4; step++) {
    products_step(sum, hopper_operand(keys + 32 * step), hopper_operand(heads + 32 * step), step > 0);
  }
  hopper_products_end();
  hopper_products_wait<0>();
}

#endif
