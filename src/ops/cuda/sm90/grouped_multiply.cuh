// What a consumer of a grouped product on Hopper (grouped_linear.cu) does with the stages of a tile: products by wgmma.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/grouped_layout.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

// Zeros for the rows of k from `first` on, of all panels of a stage, by all consumers together.
template <class L>
__device__ void clear_rows(std::byte* stage, int first) {
  constexpr int kVectorsPerRow = kPanel * 2 / 16;
  const int vectors = (kPanel - first) * kVectorsPerRow;
  for (int panel = 0; panel < L::kPanelsA + L::kPanelsB; ++panel) {
    auto* rows = reinterpret_cast<uint4*>(stage + panel * kPanelBytes) + first * kVectorsPerRow;
    for (int i = static_cast<int>(threadIdx.x) - kWarpgroup; i < vectors; i += kConsumerThreads) {
      rows[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async();
  named_barrier_sync(kConsumerBarrier, kConsumerThreads);
}

// k's 64 of a stage. kStrips, kCols: all of the tile's, or one and kFewCols.
template <class L, int kStrips, int kCols>
__device__ void multiply_stage(const std::byte* stage, int consumer, bool accumulate, typename L::Sums& c) {
  constexpr bool kTransA = !L::kAKMajor, kTransB = !L::kBKMajor;
  constexpr int kFirst = L::kFewCols;
  const uint64_t a = wgmma_descriptor(stage + consumer * kPanelBytes);
  const uint64_t b = wgmma_descriptor(stage + L::kPanelsA * kPanelBytes);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStepK / kProductDepth; ++k) {
    const uint64_t b_k = b + k * wgmma_descriptor_step<L::kBKMajor>();
    const uint64_t b_next = b_k + kFirst / kPanel * kPanelBytes / 16;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const uint64_t a_k = a + strip * (kConsumers * kPanelBytes / 16) + k * wgmma_descriptor_step<L::kAKMajor>();
      if constexpr (kCols == 256 && !L::kWritersApart) {
        wgmma_n256<kTransA, kTransB>(c[strip], a_k, b_k, accumulate || k > 0);
      } else {
        wgmma_n128<kTransA, kTransB>(c[strip], a_k, b_k, accumulate || k > 0);
      }
      if constexpr (kCols == 256 && L::kWritersApart) {
        wgmma_n128<kTransA, kTransB>(part_of<kFirst / 2, 64>(c[strip]), a_k, b_next, accumulate || k > 0);
      } else if constexpr (kCols == 192) {
        wgmma_n64<kTransA, kTransB>(part_of<kFirst / 2, 32>(c[strip]), a_k, b_next, accumulate || k > 0);
      }
    }
  }
  wgmma_commit_group();
}

// The products of a tile's rows, of which `consumer` has 64 a strip. A stage is released when its products are done:
// once the next one's were issued, or before if that one has not come. beside(): called while a stage's products are
// under way. scale: of each expert's sums; kScaled only.
template <class L, int kStrips, int kCols, class Fn>
__device__ void multiply_tile(const Tile& tile, const typename L::Pipeline& pipeline, int consumer,
                              typename L::Pipeline::Position& at, typename L::Sums& c, const float* scale,
                              const Fn& beside) {
  const bool elected = threadIdx.x % kWarp == 0;
  int in_use = -1;  // the stage that is being read
  const int num_steps = num_steps_of(tile);
  for (int step = 0; step < num_steps; ++step) {
    const int k = step * kStepK;
    if (step > 0 && !__any_sync(kAllLanes, pipeline.is_full(at))) {  // late: so that one more is under way meanwhile
      wgmma_wait_group<0>();
      if (in_use >= 0 && elected) pipeline.release(in_use);
      in_use = -1;
    }
    pipeline.wait(at);
    if constexpr (L::kGathers) fence_proxy_async();
    std::byte* const stage = pipeline.stage(at);
    if constexpr (!L::kRagged) {
      if (k + kStepK > tile.depth) clear_rows<L>(stage, tile.depth - k);
    }
    multiply_stage<L, kStrips, kCols>(stage, consumer, step > 0, c);
    beside();
    wgmma_wait_group<1>();
    if (in_use >= 0 && elected) pipeline.release(in_use);
    in_use = at.stage;
    at.advance();
  }
  wgmma_wait_group<0>();
  if (elected) pipeline.release(in_use);
  if constexpr (L::kScaled) {  // here, of those columns that were multiplied: else ptxas waits after every wgmma, too
    const float factor = scale[tile.group];
#pragma unroll
    for (int i = 0; i < kStrips * kCols / 2; ++i) c[i / (kCols / 2)][i % (kCols / 2)] *= factor;
  }
}

}  // namespace nmoe::cuda::sm90
