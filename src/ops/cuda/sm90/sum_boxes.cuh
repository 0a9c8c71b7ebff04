// C in F32 from a consumer warp's registers to global memory by TMA, written (=) or added to (+=).
//
// A warp's sums are 16 rows of C (epilogue.cuh says which a lane holds). They go through shared memory in boxes of 16 x
// 32, swizzled by 128 bytes as TMA reads them, of which one or two have room: while one is on its way the next is
// filled, and the last ones leave beside the next tile's products. L2 gets whole lines, where a warp's own additions
// are 32 bytes of eight rows each.
//
// One box adds to an element a launch, or several by turns (turns.cuh), so that the result has no order to depend on.
// What of a box lies outside of the expert's C is not written: the map has a dimension of experts.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "ops/contracts/linear.h"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/tma.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kSumBoxRows = 16, kSumBoxCols = 32;

// kBoxes: that have room.
template <int kBoxes>
struct SumBoxes {
  static constexpr int kRows = kSumBoxRows, kCols = kSumBoxCols;
  static constexpr int kRowBytes = kCols * static_cast<int>(sizeof(float)), kBoxBytes = kRows * kRowBytes;
  static constexpr int kWarpBytes = kBoxes * kBoxBytes;
  static_assert(kRowBytes == 128 && kBoxBytes % 1024 == 0, "the swizzle's rows, and what it repeats after");

  const CUtensorMap* map;  // sum_map (vendor/tensor_map.h) of boxes of kRows
  int col, row, group;     // the warp's first element, in the group's C
  int num_rows, num_cols;  // that exist from there on: may be more than the warp has, num_rows also none
  std::byte* staged;       // kWarpBytes, the warp's own, aligned to 1024

  // c: kTiledCols columns, of which those that exist are stored. By all lanes.
  template <int kTiledCols, bool kAccumulate>
  __device__ void store(const float (&c)[kTiledCols / 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, upper = lane / 4;
    std::byte* const corner = staged + upper * kRowBytes + lane % 2 * 8;
#pragma unroll
    for (int box = 0; box < kTiledCols / kCols; ++box) {
      std::byte* const target = corner + box % kBoxes * kBoxBytes;
      if (lane == 0) tma_wait_read<kBoxes - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const int at = box * kCols / 2 + 4 * j,
                  chunk = (2 * j + lane % 4 / 2) ^ upper;  // of 16 bytes; row 8 more: same
        *reinterpret_cast<float2*>(target + chunk * 16) = make_float2(c[at], c[at + 1]);
        *reinterpret_cast<float2*>(target + 8 * kRowBytes + chunk * 16) = make_float2(c[at + 2], c[at + 3]);
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        if (num_rows > 0 && box * kCols < num_cols) {
          tma_store<kAccumulate>(*map, col + box * kCols, row, group, staged + box % kBoxes * kBoxBytes);
        }
        tma_commit_group();  // be it empty, so that boxes and groups stay in step
      }
    }
  }

  // squares: those of the C of all groups, [rows, cols] each, by parts (contracts/linear.h), of which the warp's rows
  // are one row and its columns whole ones. 16 squares at a time are added in F32.
  template <int kTiledCols>
  __device__ void store_squares(const float (&c)[kTiledCols / 2], double* squares, int rows, int cols) const {
    constexpr int kPartRows = static_cast<int>(kSquareRows), kPartCols = static_cast<int>(kSquareCols), kTogether = 16;
    static_assert(kRows == kPartRows && kTiledCols % kPartCols == 0);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const bool has_upper = lane / 4 < num_rows, has_lower = lane / 4 + 8 < num_rows;
    double* const target = squares_of_warp(squares, rows, cols);
#pragma unroll
    for (int part = 0; part < kTiledCols / kPartCols; ++part) {
      double total = 0;
#pragma unroll
      for (int first = 0; first < kPartCols / 2; first += kTogether) {
        float sum = 0;
#pragma unroll
        for (int i = first; i < first + kTogether; ++i) {
          const float value = c[part * kPartCols / 2 + i];
          const bool exists = (i % 4 < 2 ? has_upper : has_lower) && part * kPartCols + i / 4 * 8 < num_cols;
          sum = exists ? fmaf(value, value, sum) : sum;
        }
        total += static_cast<double>(sum);
      }
      total = warp_sum(total);
      if (lane == 0 && num_rows > 0 && part * kPartCols < num_cols) target[part] = total;
    }
  }

  // The same of what is there already, in dw [groups, rows, cols]: of sums over several pieces of rows. Another order.
  template <int kTiledCols>
  __device__ void store_squares_of(const float* dw, double* squares, int rows, int cols) const {
    constexpr int kPartCols = static_cast<int>(kSquareCols);
    static_assert(kPartCols == 4 * kWarp);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float* const first = dw + (static_cast<int64_t>(group) * rows + row) * cols + col + 4 * lane;
    double* const target = squares_of_warp(squares, rows, cols);
    for (int part = 0; part < kTiledCols / kPartCols; ++part) {
      double total = 0;
      for (int i = 0; i < min(num_rows, kRows) && part * kPartCols + 4 * lane < num_cols; ++i) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(first + static_cast<int64_t>(i) * cols +  //
                                                                part * kPartCols));
        total += static_cast<double>(fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))));
      }
      total = warp_sum(total);
      if (lane == 0 && num_rows > 0 && part * kPartCols < num_cols) target[part] = total;
    }
  }

  // Before the block ends.
  __device__ static void finish() {
    if (threadIdx.x % kWarp == 0) tma_wait<0>();
  }

 private:
  // Where the warp's parts have their squares.
  __device__ double* squares_of_warp(double* squares, int rows, int cols) const {
    constexpr int kPartRows = static_cast<int>(kSquareRows), kPartCols = static_cast<int>(kSquareCols);
    const int64_t part_row = static_cast<int64_t>(group) * ceil_div(rows, kPartRows) + row / kPartRows;
    return squares + part_row * ceil_div(cols, kPartCols) + col / kPartCols;
  }
};

}  // namespace nmoe::cuda::sm90
