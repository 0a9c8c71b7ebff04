// tcgen05: matrix products with operands in shared memory and sums in tensor memory, which are started by one thread.
// Semantics: PTX ISA 9.0, "Tensorcore 5th Generation Family Instructions". Descriptors: descriptors.h.
//
// Tensor memory is 128 lanes of 512 columns of 32 bits. An address has the lane in bits 16 to 31 and the column in bits
// 0 to 15. A product of M = 128 has row i in lane i, and one column each of N. A warp reads the 32 lanes
// 32 (warp % 4) ... alone.
//
// Order. Products and copies that one thread starts take effect in order. Between threads it takes an mbarrier:
// products arrive on it by tcgen05_commit(), and reads of tensor memory are over after tensor_wait_load(); each side
// then puts a fence between the barrier and its tcgen05 instructions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/sm100/descriptors.h"

namespace nmoe::cuda::sm100 {

constexpr int kTensorColumns = 512;  // all there are

// One lane of a warp, always the same. By all lanes.
__device__ inline bool elect_one() {
  uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// --- all of tensor memory, by one warp: the address is left in shared memory. The same warp gives it back, before the
// block ends and after all that use it are done.
__device__ inline void tensor_allocate(uint32_t* address) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n" ::"r"(shared_address(address)),
               "n"(kTensorColumns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n");
}
__device__ inline void tensor_free(uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;\n" ::"r"(address), "n"(kTensorColumns));
}

// --- order between threads: before an arrival, and after a wait
__device__ inline void tcgen05_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;\n" ::: "memory"); }
__device__ inline void tcgen05_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;\n" ::: "memory"); }
// `barrier` gets an arrival when all that this thread has started is done.
__device__ inline void tcgen05_commit(uint64_t* barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];\n" ::"r"(shared_address(barrier))
      : "memory");
}

// --- products: columns from `sums` on = a b^T, or += with `accumulate`
__device__ inline void multiply_bf16(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
      : "memory");
}
// a_scales, b_scales: columns of tensor memory, a block's kScaleColumns for each 128 rows.
__device__ inline void multiply_mxfp8(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, uint32_t a_scales,
                                      uint32_t b_scales, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(static_cast<uint32_t>(accumulate))
      : "memory");
}
__device__ inline void multiply_nvfp4(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, uint32_t a_scales,
                                      uint32_t b_scales, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], p;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(static_cast<uint32_t>(accumulate))
      : "memory");
}
// A block of scales (scale_descriptor) to kScaleColumns columns, for each 32 lanes.
__device__ inline void copy_scales(uint32_t columns, uint64_t block) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;\n" ::"r"(columns), "l"(block) : "memory");
}

// --- sums to registers, by a warp: 32 columns of its 32 lanes, lane by lane. They are there after tensor_wait_load().
#define NMOE_FOUR(d, i) "=r"((d)[i]), "=r"((d)[(i) + 1]), "=r"((d)[(i) + 2]), "=r"((d)[(i) + 3])
__device__ inline void tensor_load(uint32_t address, uint32_t (&d)[32]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n"
      : NMOE_FOUR(d, 0), NMOE_FOUR(d, 4), NMOE_FOUR(d, 8), NMOE_FOUR(d, 12), NMOE_FOUR(d, 16), NMOE_FOUR(d, 20),
        NMOE_FOUR(d, 24), NMOE_FOUR(d, 28)
      : "r"(address));
}
#undef NMOE_FOUR
// NOTE: the registers of loads before it are operands, so that nothing reads them ahead of the wait.
__device__ inline void tensor_wait_load(uint32_t (&d)[32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;\n" ::: "memory");
#pragma unroll
  for (uint32_t& value : d) asm volatile("" : "+r"(value));
}

}  // namespace nmoe::cuda::sm100
