// C in BF16 from a consumer warp's registers to global memory by TMA, as sum_boxes.cuh does it in F32.
//
// A warp's 16 rows go through shared memory in boxes of 16 x 64. Boxes of whole rows of the group leave by TMA, the
// last ones beside the next tile's products. Where the group ends within the 16, the rows behind are the next group's:
// the warp writes its own from shared memory, 16 bytes a lane.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/tma.cuh"

namespace nmoe::cuda::sm90 {

// kBoxes: that have room.
template <int kBoxes>
struct RowBoxes {
  static constexpr int kRows = kWarpRows, kCols = 64;
  static constexpr int kRowBytes = kCols * 2, kBoxBytes = kRows * kRowBytes, kWarpBytes = kBoxes * kBoxBytes;
  static_assert(kRowBytes == 128 && kBoxBytes % 1024 == 0, "the swizzle's rows, and what it repeats after");

  const CUtensorMap* map;  // row_map (vendor/tensor_map.h) of C, in boxes of kRows
  __nv_bfloat16* c;        // C [R, stride]
  int64_t stride;
  int col, row;            // the warp's first element
  int num_rows, num_cols;  // that exist from there on: may be more than the warp has, num_rows also none
  std::byte* staged;       // kWarpBytes, the warp's own, aligned to 1024

  // sums: kTiledCols columns, of which those that exist are stored. By all lanes.
  template <int kTiledCols>
  __device__ void store(const float (&sums)[kTiledCols / 2]) const {
    static_assert(kTiledCols % kCols == 0);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, staged_row = lane % kRows;
#pragma unroll
    for (int box = 0; box < kTiledCols / kCols; ++box) {
      std::byte* const target = staged + box % kBoxes * kBoxBytes;
      if (lane == 0) tma_wait_read<kBoxes - 1>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kCols / 16; ++i) {
        const int at = box * kCols / 2 + 8 * i;
        store_matrices(target + staged_row * kRowBytes + place_of(staged_row, 2 * i + lane / kRows),
                       bf16_pair(sums[at], sums[at + 1]), bf16_pair(sums[at + 2], sums[at + 3]),
                       bf16_pair(sums[at + 4], sums[at + 5]), bf16_pair(sums[at + 6], sums[at + 7]));
      }
      const bool is_whole = num_rows >= kRows;
      if (is_whole) {
        fence_proxy_async();
        __syncwarp();
        if (lane == 0 && box * kCols < num_cols) tma_store(*map, col + box * kCols, row, target);
      } else {
        __syncwarp();
        write_rows_of(target, box * kCols);
      }
      if (lane == 0) tma_commit_group();  // be it empty, so that boxes and groups stay in step
    }
  }

  // Before the block ends.
  __device__ static void finish() {
    if (threadIdx.x % kWarp == 0) tma_wait<0>();
  }

 private:
  // Where 16 bytes of a row of a box lie in it.
  __device__ static int place_of(int row, int vector) { return (vector ^ row % 8) * 16; }
  __device__ void write_rows_of(const std::byte* box, int first_col) const {
    constexpr int kVectors = kRowBytes / 16;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x) % kWarp; i < kRows * kVectors; i += kWarp) {
      const int box_row = i / kVectors, vector = i % kVectors, at = first_col + vector * 8;
      if (box_row >= num_rows || at >= num_cols) continue;
      *reinterpret_cast<uint4*>(c + static_cast<int64_t>(row + box_row) * stride + col + at) =
          *reinterpret_cast<const uint4*>(box + box_row * kRowBytes + place_of(box_row, vector));
    }
  }
};

}  // namespace nmoe::cuda::sm90
