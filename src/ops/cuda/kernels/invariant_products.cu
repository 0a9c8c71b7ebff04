// y = x w^T with one order of summation for every number of rows.
//
// BF16 in whole 16 bytes: tensor cores, by mma.m16n8k16 with the weights as the matrix of 16 rows and the tokens as its
// columns, of which one does not touch another. A block has a slice of the weights' rows and a tile of tokens; its
// eight warps take turns of 64 k, each keeps a sum of its own, and these are added in the warps' order. Which k goes to
// which of an instruction's places is free as long as both operands agree: a lane takes eight consecutive ones, so that
// all loads are of 16 bytes and go from memory to registers without a stop.
//
// Tiles differ in how many tokens share what is read of the weights, and in nothing that a sum depends on. Bound: with
// few tokens reading the weights, with many reading x again from L2 for every slice.
//
// Else, and in fp32: a warp for a value of up to eight tokens, lanes along k.
#include <algorithm>

#include "ops/cuda/kernels/invariant_products.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kWarps = 8;  // that share k: what the order of sums depends on
constexpr int kThreads = kWarps * kWarp;
constexpr int kTurn = 64;         // consecutive k of a warp
constexpr int kHalf = kTurn / 2;  // what four lanes take at once, eight each
constexpr int kTokens = 8;        // of a warp of the plain kernel

template <class T, class Out>
struct Product {
  const T* x;              // [rows, depth]
  const int32_t* index;    // [rows]: row r is x's row index[r]; null: row r
  const T* w;              // [width, depth], or one for each expert
  const Out* addend;       // [rows, width]; may be y, may be null
  const int32_t* offsets;  // [experts + 1]; null: one matrix for all rows
  Out* y;                  // [rows, width]
  int num_rows, width, depth, num_experts;
  bool vector;  // rows of x and w in whole 16 bytes
};

template <class T, class Out>
__device__ const T* row_of_x(const Product<T, Out>& p, int row) {
  return p.x + static_cast<int64_t>(p.index == nullptr ? row : p.index[row]) * p.depth;
}

// The rows and the matrix of a block: of the expert that is number blockIdx.y among those that have rows.
template <class T>
struct Group {
  int row_begin = 0, row_end = 0;
  const T* w = nullptr;
};
template <class T, class Out>
__device__ Group<T> find_group(const Product<T, Out>& p) {
  if (p.offsets == nullptr) return {0, p.num_rows, p.w};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int number = static_cast<int>(blockIdx.y);
  for (int base = 0; base < p.num_experts; base += kWarp) {
    const int expert = base + lane;
    const int begin = expert < p.num_experts ? p.offsets[expert] : 0;
    const int end = expert < p.num_experts ? p.offsets[expert + 1] : 0;
    const unsigned busy = __ballot_sync(kAllLanes, end > begin);
    const int count = __popc(busy);
    if (number < count) {
      const int source = static_cast<int>(__fns(busy, 0, number + 1));
      const int64_t found = base + source;
      return {__shfl_sync(kAllLanes, begin, source), __shfl_sync(kAllLanes, end, source),
              p.w + found * p.width * p.depth};
    }
    number -= count;
  }
  return {};
}

// The first row of a block's first tile, and how far on its next one is. Tiles of one matrix have blocks of their own.
template <class T, class Out>
__device__ int first_row(const Product<T, Out>& p, const Group<T>& group, int tile) {
  return group.row_begin + (p.offsets == nullptr ? static_cast<int>(blockIdx.y) * tile : 0);
}
template <class T, class Out>
__device__ int row_step(const Product<T, Out>& p, int tile) {
  return p.offsets == nullptr ? static_cast<int>(gridDim.y) * tile : tile;
}

template <class T, class Out>
__device__ void store(const Product<T, Out>& p, int row, int column, float sum) {
  const int64_t at = static_cast<int64_t>(row) * p.width + column;
  if (p.addend != nullptr) sum += to_float(p.addend[at]);
  p.y[at] = from_float<Out>(sum);
}

__device__ uint4 load16(const __nv_bfloat16* row, int k, bool is_there) {
  return is_there ? __ldg(reinterpret_cast<const uint4*>(row + k)) : make_uint4(0, 0, 0, 0);
}

// Tiles of 16 kColumnTiles columns of y and 8 kRowTiles rows. kTurns: turns of a warp whose loads are under way at
// once.
template <int kColumnTiles, int kRowTiles, int kTurns, class Out>
__global__ void __launch_bounds__(kThreads) mma_kernel(Product<__nv_bfloat16, Out> p) {
  constexpr int kColumns = 16 * kColumnTiles, kRows = 8 * kRowTiles;
  constexpr int kSumRowTiles = kRowTiles < 4 ? kRowTiles : 4;  // whose sums are added up at once
  constexpr int kSumRows = 8 * kSumRowTiles, kPitch = kColumns + 4;
  __shared__ float warp_sums[kWarps][kSumRows][kPitch];
  const Group<__nv_bfloat16> group = find_group(p);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;  // as the instruction numbers rows and columns
  const int column_begin = static_cast<int>(blockIdx.x) * kColumns;

  for (int tile = first_row(p, group, kRows); tile < group.row_end; tile += row_step(p, kRows)) {
    const __nv_bfloat16* x[kRowTiles];  // null: there is no such row
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = tile + j * 8 + g;
      x[j] = row < group.row_end ? row_of_x(p, row) : nullptr;
    }
    float sums[kColumnTiles][kRowTiles][4] = {};
    for (int turn = warp; turn * kTurn < p.depth; turn += kWarps * kTurns) {
      uint4 a[kTurns][2][kColumnTiles][2], b[kTurns][2][kRowTiles];
#pragma unroll
      for (int t = 0; t < kTurns; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = (turn + t * kWarps) * kTurn + half * kHalf + q * 8;
          const bool in_depth = k < p.depth;
#pragma unroll
          for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
            for (int low = 0; low < 2; ++low) {
              const int column = column_begin + i * 16 + low * 8 + g;
              a[t][half][i][low] =
                  load16(group.w + static_cast<int64_t>(column) * p.depth, k, in_depth && column < p.width);
            }
          }
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            b[t][half][j] = load16(x[j], k, in_depth && x[j] != nullptr);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTurns; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < kColumnTiles; ++i) {
            const uint4 upper = a[t][half][i][0], lower = a[t][half][i][1];
            const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y};
            const unsigned second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              const uint4 values = b[t][half][j];
              gemm::multiply_add(sums[i][j], first, values.x, values.y);
              gemm::multiply_add(sums[i][j], second, values.z, values.w);
            }
          }
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kRowTiles; part += kSumRowTiles) {
      __syncthreads();  // what was there has been read
#pragma unroll
      for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kSumRowTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            warp_sums[warp][j * 8 + q * 2 + c % 2][i * 16 + g + c / 2 * 8] = sums[i][part + j][c];
          }
        }
      }
      __syncthreads();
      for (int at = static_cast<int>(threadIdx.x); at < kSumRows * kColumns; at += kThreads) {
        const int row = tile + part * 8 + at / kColumns, column = column_begin + at % kColumns;
        if (row >= group.row_end || column >= p.width) continue;
        float sum = warp_sums[0][at / kColumns][at % kColumns];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += warp_sums[w][at / kColumns][at % kColumns];
        store(p, row, column, sum);
      }
    }
  }
}

template <class T, class Out>
__global__ void __launch_bounds__(kThreads) plain_kernel(Product<T, Out> p) {
  const Group<T> group = find_group(p);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (column >= p.width) return;
  const T* w = group.w + static_cast<int64_t>(column) * p.depth;
  for (int tile = first_row(p, group, kTokens); tile < group.row_end; tile += row_step(p, kTokens)) {
    float sums[kTokens] = {};
    for (int k = lane * 8; k < p.depth; k += kWarp * 8) {
      float weights[8];
      load8(w, k, p.depth, p.vector, weights);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (tile + t >= group.row_end) continue;
        float values[8];
        load8(row_of_x(p, tile + t), k, p.depth, p.vector, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t] += values[i] * weights[i];
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[t]);
      if (lane == 0 && tile + t < group.row_end) store(p, tile + t, column, sum);
    }
  }
}

template <class T, class Out>
void run(Context& ctx, const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  const bool grouped = offsets.defined();
  const int64_t num_rows = x.num_rows(), width = y.dim(1), depth = x.width(), num_experts = grouped ? w.dim(0) : 1;
  NMOE_CHECK(num_rows <= INT32_MAX && width <= INT32_MAX && depth <= INT32_MAX / 2, "a product of {} and {}",
             x.source.shape(), w.shape());
  const Product<T, Out> product{.x = x.source.data<T>(),
                                .index = x.index.defined() ? x.index.data<int32_t>() : nullptr,
                                .w = w.data<T>(),
                                .addend = addend.defined() ? addend.data<Out>() : nullptr,
                                .offsets = grouped ? offsets.data<int32_t>() : nullptr,
                                .y = y.data<Out>(),
                                .num_rows = static_cast<int>(num_rows),
                                .width = static_cast<int>(width),
                                .depth = static_cast<int>(depth),
                                .num_experts = static_cast<int>(num_experts),
                                .vector = can_vectorise(depth, x.source, w)};
  constexpr int64_t kMaxTiles = 65535;  // along a grid's second dimension; a block takes several where there are more
  const auto launch = [&](auto kernel, int columns, int rows) {
    const int64_t tiles =
        grouped ? std::min(num_experts, num_rows) : std::min(kMaxTiles, ceil_div<int64_t>(num_rows, rows));
    kernel<<<dim3(grid_size(ceil_div<int64_t>(width, columns)), short_grid_size(tiles)), kThreads, 0, ctx.stream>>>(
        product);
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (product.vector) {
      // Of experts, by how many rows one has on average: it may have more.
      const int64_t rows = ceil_div(num_rows, num_experts);
      if (rows <= (grouped ? 4 : 8)) return launch(mma_kernel<1, 1, 4, Out>, 16, 8);
      if (rows <= 32) return launch(mma_kernel<2, 4, 1, Out>, 32, 32);
      return launch(mma_kernel<2, 8, 1, Out>, 32, 64);
    }
  }
  launch(plain_kernel<T, Out>, kWarps, kTokens);
}

void dispatch(Context& ctx, const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  NMOE_CHECK(w.dtype() == x.source.dtype() && (y.dtype() == w.dtype() || y.dtype() == DType::kF32),
             "product of {} and {} into {}", dtype_name(x.source.dtype()), dtype_name(w.dtype()),
             dtype_name(y.dtype()));
  dispatch_act(w.dtype(), [&](auto element) {
    using T = decltype(element);
    if (y.dtype() == DType::kF32) {
      run<T, float>(ctx, x, w, addend, offsets, y);
    } else {
      run<T, T>(ctx, x, w, addend, offsets, y);
    }
  });
}

}  // namespace

void invariant_product(Context& ctx, Tensor x, Tensor w, Tensor addend, Tensor y) {
  dispatch(ctx, x, w, addend, {}, y);
}

void invariant_grouped_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor y) {
  dispatch(ctx, x, w, {}, offsets, y);
}

}  // namespace nmoe::cuda
