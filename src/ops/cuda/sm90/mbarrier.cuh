// mbarriers: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies.
// Semantics: PTX ISA 8.x, "Parallel Synchronization and Communication Instructions: mbarrier".
//
// A phase completes when the expected number of threads have arrived and all announced bytes have come. Phases
// alternate in parity, from 0; a wait for a parity returns once the phase of that parity has completed, so that a wait
// for parity 1 on a fresh barrier returns at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"

namespace nmoe::cuda::sm90 {

// By one thread. `arrivals`: of threads, a phase.
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By the thread that initialised barriers, before the __syncthreads() after which others use them.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and announces `bytes` more that the phase waits for.
__device__ inline void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Arrives when all asynchronous copies that this thread has begun (copy_async16) are done.
__device__ inline void mbarrier_arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of that parity has completed.
__device__ inline void mbarrier_wait(uint64_t* barrier, int parity) {
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

// Whether the phase of that parity has completed; does not wait.
__device__ inline bool mbarrier_test(uint64_t* barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace nmoe::cuda::sm90
