// The Tensor Memory Accelerator: bulk copies between global and shared memory that one thread starts.
// Semantics: PTX ISA 8.x, "Data Movement and Conversion Instructions: cp.async.bulk".
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"

namespace nmoe::cuda::sm90 {

// What this thread wrote to shared memory becomes visible to TMA and wgmma, which reach memory by another way (the
// async proxy). A barrier must follow before another thread starts them.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// --- loads, which complete on an mbarrier
__device__ inline void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// The map's box whose first element is (column, row), to shared memory. Its bytes count towards those that the phase of
// `barrier` expects. What lies outside of the tensor comes as zeros, and counts too.
__device__ inline void tma_load(const CUtensorMap& map, int column, int row, void* target, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(shared_address(target)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
// The same of a head_map (vendor/tensor_map.h): the box whose first element is (value, head, position, sequence).
struct HeadPlace {
  int value, head, position, sequence;
};
__device__ inline void tma_load(const CUtensorMap& map, const HeadPlace& at, void* target, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];\n" ::"r"(shared_address(target)),
      "l"(&map), "r"(at.value), "r"(at.head), "r"(at.position), "r"(at.sequence), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace nmoe::cuda::sm90
