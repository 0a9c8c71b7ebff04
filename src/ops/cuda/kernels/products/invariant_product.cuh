// What the kernels of batch-invariant products (invariant_products.h) share: a product, what a block works on, and what
// becomes of sums.
//
// BF16 in whole 16 bytes goes through tensor cores, by mma.m16n8k16 with the weights as the matrix of 16 rows and the
// tokens as its columns, of which one does not touch another. Every value is one chain of such instructions over all
// of k, each of 16 consecutive k in their natural places, ascending, in one fp32 accumulator. So do wgmma and the
// algorithms that cuBLASLt's heuristic chooses first where k may not be split, so that training's products have these
// bits too (tests/ops/cuda/one_order_test.cpp).
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda::invariant {

using Bf16 = __nv_bfloat16;

// What becomes of sums: they are stored, or an activation (primitives/activation.cuh) stores them rounded, and what it
// makes of these.
struct NoActivation {};

template <class T, class Out>
struct Product {
  const T* x;               // [rows, depth], x_stride apart
  const int32_t* index;     // [rows]: row r is x's row index[r]; null: row r
  const T* w;               // [width, depth], or one for each expert
  const Out* addend;        // [rows, width]; may be y, may be null
  const int32_t* offsets;   // [experts + 1]; null: one matrix for all rows
  Out* y;                   // [rows, width], y_stride apart
  const float* row_weight;  // [rows], of activations; null: 1
  Out* h;                   // [rows, hidden], of activations
  int64_t x_stride, y_stride;
  int64_t x_step, w_step, y_step;  // from a batch, blockIdx.z, to the next
  int num_rows, width, depth, num_experts, num_batches, hidden;
  bool vector;  // rows of x and w in whole 16 bytes
};

template <class T, class Out>
__device__ const T* row_of_x(const Product<T, Out>& p, int row) {
  return p.x + (p.index == nullptr ? row : p.index[row]) * p.x_stride;
}

// That of a block's batch.
template <class T, class Out>
__device__ Product<T, Out> own_batch(Product<T, Out> p) {
  p.x += blockIdx.z * p.x_step;
  p.w += blockIdx.z * p.w_step;
  p.y += blockIdx.z * p.y_step;
  return p;
}

// What a block works on. Of a plain product a tile of rows, which neighbours may share, and tiles of one slice of the
// weights are neighbours; of experts all rows of one: number blockIdx.y among those that have rows.
template <class T>
struct Work {
  int column_tile;
  int row_begin = 0, row_end = 0;
  const T* w = nullptr;
  int matrix = 0;  // which of the weights' that is
};
template <class T, class Out>
__device__ int column_tile(const Product<T, Out>& p) {
  return static_cast<int>(p.offsets == nullptr ? blockIdx.y : blockIdx.x);
}
template <class T, class Out>
__device__ Work<T> find_work(const Product<T, Out>& p, int tile_rows) {
  const int tile = column_tile(p);
  if (p.offsets == nullptr) {
    const int begin = static_cast<int>(blockIdx.x) * tile_rows;
    return {tile, begin, min(begin + tile_rows, p.num_rows), p.w, static_cast<int>(blockIdx.z)};
  }
  // Lanes have consecutive experts each, so that all loads are under way at once.
  const int number = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = ceil_div(p.num_experts, kWarp), first = min(lane * each, p.num_experts);
  const int last = min(first + each, p.num_experts);
  int busy = 0;
#pragma unroll 8
  for (int expert = first; expert < last; ++expert) busy += p.offsets[expert + 1] > p.offsets[expert] ? 1 : 0;
  int through = busy;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += below;
  }
  const unsigned reached = __ballot_sync(kAllLanes, through > number);
  if (reached == 0) return {tile};
  const int source = __ffs(static_cast<int>(reached)) - 1;
  int found = first;
  if (lane == source) {
    for (int left = number - (through - busy); p.offsets[found + 1] == p.offsets[found] || left-- > 0;) ++found;
  }
  found = __shfl_sync(kAllLanes, found, source);
  return {tile, p.offsets[found], p.offsets[found + 1], p.w + static_cast<int64_t>(found) * p.width * p.depth, found};
}

template <class T, class Out>
__device__ void store(const Product<T, Out>& p, int row, int column, float sum) {
  const int64_t at = row * p.y_stride + column;
  if (p.addend != nullptr) sum += to_float(p.addend[at]);
  p.y[at] = from_float<Out>(sum);
}

// A tile's 16 rows of weights, of the `tile`th 16: number r < 16, or the width where there is none. An activation's are
// as many hidden units of each of its parts.
template <class A, class Out>
__device__ int weight_row(const Product<Bf16, Out>& p, int tile, int r) {
  if constexpr (std::is_same_v<A, NoActivation>) {
    return min(tile * 16 + r, p.width);
  } else {
    constexpr int kUnits = 16 / A::kParts;
    const int unit = tile * kUnits + r % kUnits;
    return unit < p.hidden ? unit + r / kUnits * p.hidden : p.width;
  }
}

// The sums of tile `tile`'s weight rows r and r + 8, r < 8, with one row of x: two parts of a hidden unit, or two
// units.
template <class A, class Out>
__device__ void store_pair(const Product<Bf16, Out>& p, int row, int tile, int r, float low, float high) {
  if constexpr (std::is_same_v<A, NoActivation>) {
    if (const int column = tile * 16 + r; column < p.width) store(p, row, column, low);
    if (const int column = tile * 16 + r + 8; column < p.width) store(p, row, column, high);
  } else {
    static_assert(A::kParts <= 2);
    const float weight = p.row_weight != nullptr ? p.row_weight[row] : 1.0F, sums[2] = {low, high};
    Out* const pre = p.y + row * p.y_stride;
    Out* const h = p.h + static_cast<int64_t>(row) * p.hidden;
#pragma unroll
    for (int i = 0; i < 2 / A::kParts; ++i) {
      const int unit = tile * (16 / A::kParts) + r + i * 8;
      if (unit >= p.hidden) continue;
      float parts[A::kParts];
#pragma unroll
      for (int part = 0; part < A::kParts; ++part) {
        const Out value = from_float<Out>(sums[i + part]);
        pre[part * p.hidden + unit] = value;
        parts[part] = to_float(value);
      }
      h[unit] = from_float<Out>(A::template forward<Out>(parts) * weight);
    }
  }
}

// A block for each slice of `columns` rows of weights and, of a plain product, each tile of `rows`; of experts there
// are at most as many with rows as there are rows.
template <class T, class Out>
dim3 grid_of(const Product<T, Out>& p, int columns, int rows) {
  const int64_t slices = ceil_div<int64_t>(p.width, columns);
  if (p.offsets == nullptr) {
    return {grid_size(ceil_div(p.num_rows, rows)), short_grid_size(slices), short_grid_size(p.num_batches)};
  }
  return {grid_size(slices), short_grid_size(std::min(p.num_experts, p.num_rows)), 1};
}

// Few rows (invariant_few_rows.cu) and any number (invariant_many_rows.cu), of operands in whole 16 bytes. A: an
// activation, or NoActivation.
constexpr int kFewRows = 16, kFewExpertRows = 4;  // of a plain product, and of an expert on average
template <class A, class Out>
void few_rows(Context& ctx, const Product<Bf16, Out>& p);
template <class A, class Out>
void many_rows(Context& ctx, const Product<Bf16, Out>& p);

}  // namespace nmoe::cuda::invariant
