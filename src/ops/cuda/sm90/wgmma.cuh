// wgmma: matrix products of a warpgroup, with operands in shared memory and sums in registers.
// Semantics: PTX ISA 8.x, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"

namespace nmoe::cuda::sm90 {

// Operands are bf16 in panels of 64 x 64 (8 KiB, aligned to 1024): rows of 128 bytes, swizzled by 128 bytes as TMA
// writes them (panel_map in vendor/tensor_map.h). A panel has rows of i with k along them (K-major), or rows of k with
// i along them (MN-major).
constexpr int kPanel = 64;
constexpr int kPanelBytes = kPanel * kPanel * 2;
constexpr int kPanelAlignment = 1024;  // bytes; the swizzle is a function of the address
constexpr int kProductDepth = 16;      // of k, a wgmma
static_assert(kPanelBytes % kPanelAlignment == 0);

// The matrix descriptor of the operand that begins at `panel`; more of i are in the panels behind it, where k is not
// along the rows. Panels may have another number of rows, a multiple of 8.
template <int kBytes = kPanelBytes>
__device__ uint64_t wgmma_descriptor(const void* panel) {
  static_assert(kBytes % kPanelAlignment == 0);
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 8 * 128 / 16;  // between groups of eight rows, in 16 bytes
  constexpr uint64_t kNextPanel = kBytes / 16;   // between panels of i, where k is not along the rows
  return kSwizzle128 | kEightRows << 32 | kNextPanel << 16 | (shared_address(panel) & 0x3FFFF) >> 4;
}
// What to add to it for the next kProductDepth of k.
template <bool kKMajor>
__device__ constexpr uint64_t wgmma_descriptor_step() {
  return (kKMajor ? kProductDepth * 2 : kProductDepth * 128) / 16;
}

// Before the first wgmma of a warpgroup, and after registers that one reads or writes were touched otherwise.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Waits until at most kPending groups are under way.
template <int kPending>
__device__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// kCount of a thread's sums, from the kFirst'th on.
template <int kFirst, int kCount, int kValues>
__device__ auto part_of(float (&c)[kValues]) -> float (&)[kCount] {
  static_assert(kFirst + kCount <= kValues);
  return *reinterpret_cast<float(*)[kCount]>(&c[kFirst]);
}

// Thread t of the warpgroup holds, in d[4 j + 2 h + p], C[16 (t / 32) + 8 h + t % 32 / 4, 8 j + 2 (t % 4) + p].
// kTransA and kTransB: i, not k, is along the rows.
#define NMOE_EIGHT(d, i)                                                                                            \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])

// D[64, 256] = A B, or += with `accumulate`. 128 values a thread.
template <bool kTransA, bool kTransB>
__device__ inline void wgmma_n256(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24), NMOE_EIGHT(d, 32), NMOE_EIGHT(d, 40),
        NMOE_EIGHT(d, 48), NMOE_EIGHT(d, 56), NMOE_EIGHT(d, 64), NMOE_EIGHT(d, 72), NMOE_EIGHT(d, 80),
        NMOE_EIGHT(d, 88), NMOE_EIGHT(d, 96), NMOE_EIGHT(d, 104), NMOE_EIGHT(d, 112), NMOE_EIGHT(d, 120)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));
}

// D[64, 128] = A B, or += with `accumulate`. 64 values a thread, the first of d.
template <bool kTransA, bool kTransB, int kValues>
__device__ void wgmma_n128(float (&d)[kValues], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, %67, %68;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24), NMOE_EIGHT(d, 32), NMOE_EIGHT(d, 40),
        NMOE_EIGHT(d, 48), NMOE_EIGHT(d, 56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));
}

// D[64, 64]. 32 values a thread.
template <bool kTransA, bool kTransB>
__device__ void wgmma_n64(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, %35, %36;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));
}

// D[64, 32] = A B, or += with `accumulate`. 16 values a thread.
template <bool kTransA, bool kTransB>
__device__ void wgmma_n32(float (&d)[16], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, p, 1, 1, %19, %20;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));
}
// D[64, 192] = A B, or += with `accumulate`. 96 values a thread.
template <bool kTransA, bool kTransB>
__device__ void wgmma_n192(float (&d)[96], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, p, 1, 1, %99, %100;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24), NMOE_EIGHT(d, 32), NMOE_EIGHT(d, 40),
        NMOE_EIGHT(d, 48), NMOE_EIGHT(d, 56), NMOE_EIGHT(d, 64), NMOE_EIGHT(d, 72), NMOE_EIGHT(d, 80), NMOE_EIGHT(d, 88)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));
}

// D = A B, or += with `accumulate`, with A[64, 16] in registers: thread t holds, in a[2 i + h], A[16 (t / 32) + 8 h + t
// % 32 / 4, 8 i + 2 (t % 4)] and the value behind it. So the sums of a product are, in pairs of bf16, the operand of
// the next. NOTE: the registers are read until wgmma_wait_group() says that the product is done.

// D[64, 64]. 32 values a thread.
template <bool kTransB>
__device__ void wgmma_rows(float (&d)[32], const uint32_t* a, uint64_t b, bool accumulate = true) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransB));
}
// D[64, 128]. 64 values a thread.
template <bool kTransB>
__device__ void wgmma_rows(float (&d)[64], const uint32_t* a, uint64_t b, bool accumulate = true) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24), NMOE_EIGHT(d, 32), NMOE_EIGHT(d, 40),
        NMOE_EIGHT(d, 48), NMOE_EIGHT(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransB));
}

#undef NMOE_EIGHT

}  // namespace nmoe::cuda::sm90
