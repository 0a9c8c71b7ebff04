// Warpgroups: four warps that issue a wgmma together and move registers among themselves together.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/sm90/limits.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kWarpgroup = 128;  // threads

// A barrier of `threads` of the block's threads, by its number from 0 to 15; 0 is that of __syncthreads().
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Counts this warp's threads among them and goes on.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// setmaxnreg, by all warps of a warpgroup: from here on its threads have kRegisters each. `dec` gives registers back to
// the block's pool; `inc` waits until the pool has enough.
//
// NOTE: the compiler only does this in kernels with a register limit at entry, `__launch_bounds__(threads, 1)`, and
// where each role is one branch of a single if; otherwise it ignores the instruction and says so (C7508).
template <int kRegisters>
__device__ void setmaxnreg_inc() {
  static_assert(is_register_count(kRegisters));
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void setmaxnreg_dec() {
  static_assert(is_register_count(kRegisters));
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// How the registers of a block of producer and consumer warpgroups are divided, and of warpgroups that write what
// consumers made, where there are such. Refuses what the hardware would wait for in vain.
template <int kProducers, int kProducerRegs, int kConsumers, int kConsumerRegs, int kWriters = 0,
          int kWriterRegs = kConsumerRegs>
struct WarpgroupRegisters {
  static constexpr int kThreads = (kProducers + kConsumers + kWriters) * kWarpgroup;
  static constexpr int kProducer = kProducerRegs, kConsumer = kConsumerRegs, kWriter = kWriterRegs;
  static constexpr int kTotal =
      (kProducers * kProducerRegs + kConsumers * kConsumerRegs + kWriters * kWriterRegs) * kWarpgroup;

  static_assert(is_register_count(kProducerRegs) && is_register_count(kConsumerRegs) && is_register_count(kWriterRegs));
  static_assert(kTotal <= kRegistersPerSm, "more registers than a multiprocessor has");
  static_assert(kTotal <= launch_registers(kThreads) * kThreads, "more registers than the block was launched with");
  static_assert(kProducerRegs <= launch_registers(kThreads) && kConsumerRegs >= launch_registers(kThreads) &&
                    (kWriters == 0 || kWriterRegs <= launch_registers(kThreads)),
                "producers and writers give registers to consumers");
};

}  // namespace nmoe::cuda::sm90
