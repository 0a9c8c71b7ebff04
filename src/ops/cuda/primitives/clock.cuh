// The clock that all multiprocessors of a device share.
#pragma once

#include <cstdint>

namespace nmoe::cuda {

__device__ inline uint64_t global_time_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace nmoe::cuda
