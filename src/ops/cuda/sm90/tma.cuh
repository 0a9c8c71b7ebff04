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

// --- stores, by one thread, which waits for its own. Shared memory was written before a fence_proxy_async().
// The map's box whose first element is (column, row, matrix) = what lies at `source`; what lies outside of the tensor
// is not written.
__device__ inline void tma_store(const CUtensorMap& map, int column, int row, int matrix, const void* source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(shared_address(source))
               : "memory");
}
// The same, added (+=).
__device__ inline void tma_add(const CUtensorMap& map, int column, int row, int matrix, const void* source) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
      "r"(column), "r"(row), "r"(matrix), "r"(shared_address(source))
      : "memory");
}
__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Until shared memory of all stores that were committed is free, or these are done.
__device__ inline void tma_wait_reads() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }
__device__ inline void tma_wait_writes() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }

}  // namespace nmoe::cuda::sm90
