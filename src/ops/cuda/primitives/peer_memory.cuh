// Other ranks' memory as kernels see it, and the accesses that order what is in it.
//
// A rank publishes what it wrote by a release to a flag in another's memory; whoever has acquired that flag sees it
// all. Both are of system scope: the flag and the data may be on another device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/peers.h"

namespace nmoe::cuda {

// The counterparts of one tensor on all ranks of a domain, passed to a kernel by value.
template <class T>
struct PeerPointers {
  T* at[kMaxPeers];
};

template <class T>
PeerPointers<T> peer_pointers(const Peers& peers, const Tensor& mine) {
  PeerPointers<T> pointers{};
  for (int64_t rank = 0; rank < peers.count(); ++rank) pointers.at[rank] = static_cast<T*>(peers.on(rank, mine).raw());
  return pointers;
}

__device__ inline void store_release_system(int64_t* flag, int64_t value) {
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ inline int64_t load_acquire_system(const int64_t* flag) {
  int64_t value;
  asm volatile("ld.acquire.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline int64_t load_relaxed_system(const int64_t* flag) {
  int64_t value;
  asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline int32_t load_relaxed_system(const int32_t* flag) {
  int32_t value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void store_relaxed_system(int32_t* flag, int32_t value) {
  asm volatile("st.relaxed.sys.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

}  // namespace nmoe::cuda
