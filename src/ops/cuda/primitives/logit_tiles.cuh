// A warp's share of logits: tiles of kLogitTileCols columns of some rows at once, of which lane l has those at 2 l and
// 2 l + 1 of every 64. Kernels of products and of logits in memory have one order of sums by it (LogitSums in
// contracts/head.h).
#pragma once

#include <cfloat>
#include <climits>

#include "ops/cuda/plans/head.h"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda {

constexpr int kLogitPairs = kLogitTileCols / (2 * kWarp);  // of a lane
constexpr int kLogitLaneCols = 2 * kLogitPairs;
static_assert(kLogitTileCols % (2 * kWarp) == 0);

// The column in the tile of a lane's values 2 i and 2 i + 1.
__device__ inline int logit_column(int pair) { return 2 * kWarp * pair + 2 * (static_cast<int>(threadIdx.x) % kWarp); }

// Of a tile of a row: the highest logit, finite where there is none, and the sum of exp(logit - highest). A NaN is
// passed over in the first, and makes the second NaN.
struct LogitTile {
  float highest, sum;
};

// Logits of columns that do not exist are -infinity.
template <int kRows>
struct LogitRows {
  float values[kRows][kLogitLaneCols];

  // All lanes return the rows' highest logits.
  __device__ void highest(float (&of_rows)[kRows]) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      of_rows[row] = -FLT_MAX;
#pragma unroll
      for (const float value : values[row]) of_rows[row] = fmaxf(of_rows[row], value);
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (float& of_row : of_rows) of_row = fmaxf(of_row, __shfl_xor_sync(kAllLanes, of_row, offset));
    }
  }
  // All lanes return the lowest column of a row that has its highest logit; INT_MAX: none.
  __device__ int column_of(int row, float highest) const {
    int column = INT_MAX;
#pragma unroll
    for (int i = kLogitLaneCols - 1; i >= 0; --i) {
      if (values[row][i] == highest) column = logit_column(i / 2) + i % 2;
    }
    return __reduce_min_sync(kAllLanes, column);
  }
  // The lane that has the row's column writes its logit.
  __device__ void write_logit(int row, int column, float* target) const {
#pragma unroll
    for (int i = 0; i < kLogitLaneCols; ++i) {
      if (column == logit_column(i / 2) + i % 2) *target = values[row][i];
    }
  }
  // Values become exp(value - highest); all lanes return their sums.
  __device__ void exponentials(const float (&highest)[kRows], float (&sums)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (float& value : values[row]) value = flushed_exp(__fsub_rn(value, highest[row]));
      sums[row] = values[row][0];
#pragma unroll
      for (int i = 1; i < kLogitLaneCols; ++i) sums[row] = __fadd_rn(sums[row], values[row][i]);
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (float& sum : sums) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
    }
  }
};

// Of a whole row, by a warp, all lanes of which return it: of num_tiles tiles, tile_of(i) the i-th.
template <class TileOf>
__device__ LogitTile merge_logit_tiles(int num_tiles, const TileOf& tile_of) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float highest = -FLT_MAX;
  for (int i = lane; i < num_tiles; i += kWarp) highest = fmaxf(highest, tile_of(i).highest);
  highest = warp_max(highest);
  float sum = 0.0F;
  for (int i = lane; i < num_tiles; i += kWarp) {
    const LogitTile tile = tile_of(i);
    sum = __fmaf_rn(tile.sum, flushed_exp(__fsub_rn(tile.highest, highest)), sum);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
  }
  return {highest, sum};
}

}  // namespace nmoe::cuda
