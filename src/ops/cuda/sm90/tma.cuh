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
// The same of a map of three dimensions.
__device__ inline void tma_load(const CUtensorMap& map, int column, int row, int matrix, void* target,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];\n" ::"r"(shared_address(target)),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier))
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
// The same of a unit_map: the box whose first element is (value, unit, part, matrix).
struct UnitPlace {
  int value, unit, part, matrix;
};
__device__ inline void tma_load_units(const CUtensorMap& map, const UnitPlace& at, void* target, uint64_t* barrier) {
  tma_load(map, HeadPlace{at.value, at.unit, at.part, at.matrix}, target, barrier);
}

// --- stores and additions, which complete in groups of the thread that started them
// A box of a map of three dimensions from shared memory, written (=) or added to (+=); what lies outside of the tensor
// is left out.
template <bool kAccumulate>
__device__ inline void tma_store(const CUtensorMap& map, int column, int row, int matrix, const void* source) {
  if constexpr (kAccumulate) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
        "r"(column), "r"(row), "r"(matrix), "r"(shared_address(source))
        : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
                 "r"(column), "r"(row), "r"(matrix), "r"(shared_address(source))
                 : "memory");
  }
}
__device__ inline void tma_commit_group() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Waits until all but kGroups of the thread's groups have read shared memory, or are done.
template <int kGroups>
__device__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kGroups) : "memory");
}
template <int kGroups>
__device__ void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

}  // namespace nmoe::cuda::sm90
