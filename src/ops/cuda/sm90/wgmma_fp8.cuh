// wgmma in FP8. Operands are E4M3 in rows of 128 bytes, k along them, swizzled by 128 bytes as TMA writes them: the
// same bytes as K-major panels of BF16 (wgmma.cuh), whose descriptors and layout of sums serve here. There is no other
// layout. Sums keep 13 fraction bits below their largest term's exponent (MMA-Sim, arXiv 2511.10909), so that few may
// follow one another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kFp8Depth = 32;                       // of k, a wgmma
constexpr int kFp8DescriptorStep = kFp8Depth / 16;  // to the next of k, as a descriptor counts

#define NMOE_EIGHT(d, i)                                                                                            \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])

// D[64, 128] = A B, or += with `accumulate`. 64 values a thread.
__device__ inline void wgmma_fp8_n128(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24), NMOE_EIGHT(d, 32), NMOE_EIGHT(d, 40),
        NMOE_EIGHT(d, 48), NMOE_EIGHT(d, 56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

#undef NMOE_EIGHT

}  // namespace nmoe::cuda::sm90
