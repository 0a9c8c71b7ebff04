// Kernels that start before what is enqueued in front of them has ended (runtime/launch.h, launch_early; CUDA's
// programmatic dependent launch): the start of one, and what it reads that nobody writes, lie beside the end of
// another.
//
// Such a kernel calls both functions in every block. So that a kernel which has ended leaves nothing running that was
// enqueued before it, no thread ends, or touches what others write, before wait_for_work_before().
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

// Returns when all that was enqueued before this kernel is done and can be seen.
__device__ inline void wait_for_work_before() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

// The kernel behind this one may start, once all blocks have called this.
__device__ inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory"); }

// Both, for a kernel that has nothing to do before.
__device__ inline void begin_behind_work_before() {
  let_next_start();
  wait_for_work_before();
}

// Fetches to L2 what a kernel is going to read: a step of generation finds little there of the one before. No value is
// taken, so that others may write it meanwhile.
//
// The 128 bytes around `x`.
__device__ inline void prefetch_line(const void* x) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(x)); }
// `rows` rows of `width` elements, one behind the other: by all threads of a block together.
template <class T>
__device__ void prefetch_rows(const T* first, int64_t rows, int64_t width) {
  constexpr int kLine = 128 / static_cast<int>(sizeof(T));
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kLine; i < rows * width; i += int64_t{kLine} * blockDim.x) {
    prefetch_line(first + i);
  }
}

}  // namespace nmoe::cuda
