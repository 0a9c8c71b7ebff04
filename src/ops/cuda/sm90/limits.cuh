// What a multiprocessor of Hopper has, and what a kernel may ask of it (compute capability 9.0; CUDA C++ Programming
// Guide, "Technical Specifications per Compute Capability").
#pragma once

#include <cuda_runtime.h>

namespace nmoe::cuda::sm90 {

constexpr int kMaxSharedBytes = 227 * 1024;  // of a block, static and dynamic together
constexpr int kRegistersPerSm = 64 * 1024;   // of 32 bits
constexpr int kMaxThreadRegisters = 255;     // that a thread can name

// The registers that each thread of a block of `threads` begins with when `__launch_bounds__(threads, 1)` gives the
// block a multiprocessor of its own: registers are handed out to warps by 8 a thread.
__host__ __device__ constexpr int launch_registers(int threads) {
  const int even = kRegistersPerSm / threads / 8 * 8;
  return even < kMaxThreadRegisters ? even : 256;
}

// What setmaxnreg takes: multiples of 8 from 24 to 256.
__host__ __device__ constexpr bool is_register_count(int registers) {
  return registers % 8 == 0 && registers >= 24 && registers <= 256;
}

}  // namespace nmoe::cuda::sm90
