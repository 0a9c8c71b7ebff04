// Hopper's own instructions (sm_90a): barriers in shared memory, the bulk copy engine (TMA), warpgroup matrix products.
// Semantics: PTX ISA 8.x, sections on mbarrier, cp.async.bulk and wgmma.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/shared_memory.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kWarpgroup = 128;  // threads that issue a wgmma together

// --- barriers. A phase ends when `arrivals` arrived and the bytes that were announced have come; phases alternate in
// parity, from 0.
__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After initialising, before anyone else uses the barriers.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Until the phase of that parity has ended.
__device__ inline void wait_phase(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// A barrier of `threads` of a block's threads; 0 is __syncthreads()'s.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// What this thread wrote to shared memory becomes visible to the copy engine and to wgmma (a barrier must follow).
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// --- the bulk copy engine
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// The map's box whose first element is (column, row), to shared memory; announced bytes of `barrier`. What lies outside
// of the tensor comes as zeros.
__device__ inline void load_box(const CUtensorMap& map, int column, int row, void* target, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(shared_address(target)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
// `bytes` (a multiple of 16) of shared memory to global, both aligned to 16.
__device__ inline void store_bytes(void* target, const void* source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(target),
               "r"(shared_address(source)), "r"(bytes)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Until at most kPending groups of this thread's stores have not yet read their source.
template <int kPending>
__device__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

// --- registers of the calling warpgroup's threads, of what the block has
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Four 8 x 8 matrices of bf16 pairs to shared memory; lane l names row l % 8 of matrix l / 8.
__device__ inline void store_matrices(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(row)), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// --- wgmma. Operands are bf16 in panels of 64 x 64 (8 KiB, aligned to 1024), rows of 128 bytes, swizzled by 128 bytes
// as the copy engine does: rows of i with k along them (K-major), or rows of k with i along them.
constexpr int kPanel = 64;
constexpr int kPanelBytes = kPanel * kPanel * 2;

// Describes the operand that begins at `panel`; more of i are in the panels behind it.
__device__ inline uint64_t operand(const void* panel) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 8 * 128 / 16;      // between groups of eight rows, in 16 bytes
  constexpr uint64_t kNextPanel = kPanelBytes / 16;  // between panels of i, where k is not along the rows
  return kSwizzle128 | kEightRows << 32 | kNextPanel << 16 | (shared_address(panel) & 0x3FFFF) >> 4;
}
// The same, k further by 16.
template <bool kKMajor>
__device__ constexpr uint64_t operand_step() {
  return (kKMajor ? 16 * 2 : 16 * 128) / 16;
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
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

// D[64, 128] = A B, or += with `accumulate`. 64 values a thread.
template <bool kTransA, bool kTransB>
__device__ inline void wgmma_n128(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
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

#undef NMOE_EIGHT

}  // namespace nmoe::cuda::sm90
