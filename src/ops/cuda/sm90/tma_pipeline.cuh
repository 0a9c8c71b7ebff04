// A ring of stages in shared memory between a producer that fills them by TMA and consumers that read them.
//
// Every stage has two mbarriers. `full` completes when the bytes that the producer announced have come, and the copies
// of the threads that help it are done; `empty` when every consumer has released the stage. Each side keeps its own
// Position in the ring and advances it by a stage at a time. The producer's first round finds all stages empty.
//
//   producer, one thread                          consumers
//     acquire(at)     wait until it is empty        wait(at)            until it is full
//     header(at) =    what the stage is             read header(at) and stage(at)
//     expect(at, n)   announce n bytes              release(at.stage)   one thread of each arriving party
//     tma_load(..., stage(at), full(at))            at.advance()
//     at.advance()
//
// Threads that fill a part of each stage by asynchronous copies of their own (row_gather.cuh) acquire it too, begin to
// copy, and commit_copies(at): `num_copiers` of init() says how many threads do.
//
// Consumers may be any number of warps or warpgroups, with one Position each or several (ping-pong schedules advance by
// whole tiles): `num_releases` of init() says how many release() calls empty a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/sm90/mbarrier.cuh"

namespace nmoe::cuda::sm90 {

// Stages that need no header.
struct NoHeader {};

// Header: what the producer tells consumers of a stage, beside its bytes; trivially copyable.
template <int kNumStages, int kNumBytes, class Header = NoHeader>
class TmaPipeline {
  static constexpr int kHeaderBytes = std::is_empty_v<Header> ? 0 : static_cast<int>(sizeof(Header));

 public:
  static constexpr int kStages = kNumStages;
  static constexpr int kStageBytes = kNumBytes;  // of one stage
  static constexpr int kBarrierBytes = kStages * (kHeaderBytes + 2 * static_cast<int>(sizeof(uint64_t)));
  static_assert(kStages >= 2, "one stage is filled while another is read");
  static_assert(kStageBytes > 0 && kStageBytes % 1024 == 0, "TMA's swizzle of 128 bytes wants stages aligned to 1024");
  static_assert(kStageBytes < (1 << 20), "an mbarrier counts at most 2^20 - 1 bytes a phase");
  static_assert(kHeaderBytes % alignof(uint64_t) == 0, "mbarriers lie behind the headers, aligned to 8 bytes");

  // Where a side is in the ring.
  struct Position {
    int stage = 0, parity = 0;
    __device__ void advance() {
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  // `stages`: kStages * kStageBytes of shared memory, aligned to 1024. `control`: kBarrierBytes of it, aligned as
  // Header is, and to 8.
  __device__ TmaPipeline(std::byte* stages, std::byte* control)
      : stages_(stages),
        headers_(reinterpret_cast<Header*>(control)),
        full_(reinterpret_cast<uint64_t*>(control + kStages * kHeaderBytes)),
        empty_(full_ + kStages) {}

  // By one thread, before a __syncthreads() that all threads pass.
  __device__ void init(int num_copiers, int num_releases) const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full_[i], 1 + num_copiers);
      mbarrier_init(&empty_[i], num_releases);
    }
    mbarrier_init_fence();
  }

  __device__ std::byte* stage(const Position& at) const { return stages_ + at.stage * kStageBytes; }
  __device__ Header& header(const Position& at) const { return headers_[at.stage]; }

  // --- the producer's side
  __device__ void acquire(const Position& at) const { mbarrier_wait(&empty_[at.stage], at.parity ^ 1); }
  __device__ void expect(const Position& at, int bytes) const { mbarrier_arrive_expect_tx(full(at), bytes); }
  __device__ uint64_t* full(const Position& at) const { return &full_[at.stage]; }
  // A stage that is nothing but its header.
  __device__ void commit_header(const Position& at) const { mbarrier_arrive(full(at)); }
  // By each copying thread, for every stage, one that is nothing but its header included.
  __device__ void commit_copies(const Position& at) const { mbarrier_arrive_after_copies(full(at)); }

  // --- the consumers' side
  __device__ bool is_full(const Position& at) const { return mbarrier_test(full(at), at.parity); }
  __device__ void wait(const Position& at) const { mbarrier_wait(full(at), at.parity); }
  // NOTE: reads by wgmma must have completed (wgmma_wait_group).
  __device__ void release(int stage) const { mbarrier_arrive(empty(stage)); }
  // For those whose release is an arrival that hardware makes (tcgen05.commit).
  __device__ uint64_t* empty(int stage) const { return &empty_[stage]; }

 private:
  std::byte* stages_;
  Header* headers_;
  uint64_t* full_;
  uint64_t* empty_;
};

}  // namespace nmoe::cuda::sm90
