// Rounds BF16 to MXFP8 and widens it again, in blocks of 32 along rows or along columns. Memory-bound.
//
// Along rows four neighbouring lanes have a block. Along columns a thread has one, its neighbours those beside it;
// blocks begin anew with each group of rows.
#include "ops/cuda/kernels/low_precision/mxfp8.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kMxFp8));
constexpr int kBlockLanes = kBlock / 8;

// The values of a block whose largest magnitude has these bits.
struct Rounding {
  float factor, scale;

  __device__ explicit Rounding(unsigned largest) {
    const uint8_t code = e8m0_scale(amax_of_bits(largest));
    factor = e8m0_to_inverse(code);
    scale = e8m0_to_float(code);
  }
  __device__ float operator()(float x) const { return round_to_e4m3(x * factor) * scale; }
};

__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t num_rows, int64_t width, bool vector) {
  const int64_t across = ceil_div(width, int64_t{kBlock});
  const int64_t number = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kBlockLanes;  // of the block
  const int64_t row = number / across;
  const int64_t col = number % across * kBlock + static_cast<int>(threadIdx.x) % kBlockLanes * 8;
  const bool is_there = row < num_rows && col < width;
  float values[8] = {};
  if (is_there) load8(x + row * width, col, width, vector, values);
  unsigned largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, magnitude_bits(value));
#pragma unroll
  for (int offset = kBlockLanes / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  if (!is_there) return;
  const Rounding rounded(largest);
#pragma unroll
  for (float& value : values) value = rounded(value);
  store8(y + row * width, col, width, vector, values);
}

// Row r of y = x's row r, or index[r], rounded with those of its column's block. Grid (blocks of all groups, columns).
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const __nv_bfloat16* x, const int32_t* index, __nv_bfloat16* y, GroupBounds bounds, int num_groups,
                   int64_t width) {
  GroupTileCursor<kBlock> cursor(bounds, num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (col >= width) return;
  const int64_t first = cursor.row_begin() + cursor.row_tile() * kBlock;
  const int num_rows = min(kBlock, cursor.num_rows() - cursor.row_tile() * kBlock);
  float values[kBlock];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    values[i] = 0.0F;
    if (i < num_rows) values[i] = to_float(x[(index == nullptr ? first + i : index[first + i]) * width + col]);
    largest = max(largest, magnitude_bits(values[i]));
  }
  const Rounding rounded(largest);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    if (i < num_rows) y[(first + i) * width + col] = __float2bfloat16_rn(rounded(values[i]));
  }
}

void check_bf16(const Tensor& x, const Tensor& y) {
  NMOE_CHECK(x.dtype() == DType::kBF16 && y.dtype() == DType::kBF16, "{} is not rounded to MXFP8",
             dtype_name(x.dtype()));
}

// y [R, width] = the rows of x in blocks along columns. most_blocks: that the groups can have.
void widen_columns(Context& ctx, const OperandRows& x, Tensor y, const GroupBounds& bounds, int64_t num_groups,
                   int64_t most_blocks) {
  check_bf16(x.source, y);
  if (y.num_elements() == 0) return;
  const dim3 grid(grid_size(most_blocks), short_grid_size(ceil_div<int64_t>(y.dim(1), kThreads)));
  columns_kernel<<<grid, kThreads, 0, ctx.stream>>>(x.source.data<__nv_bfloat16>(), x.index.data_or_null<int32_t>(),
                                                    y.data<__nv_bfloat16>(), bounds, static_cast<int>(num_groups),
                                                    y.dim(1));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void mxfp8_rows(Context& ctx, Tensor x, Tensor y) {
  check_bf16(x, y);
  if (x.num_elements() == 0) return;
  const int64_t width = x.dim(-1), rows = x.num_elements() / width;
  const int64_t threads = rows * ceil_div(width, int64_t{kBlock}) * kBlockLanes;
  rows_kernel<<<grid_size(ceil_div(threads, int64_t{kThreads})), kThreads, 0, ctx.stream>>>(
      x.data<__nv_bfloat16>(), y.data<__nv_bfloat16>(), rows, width, can_vectorise(width, x, y));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void mxfp8_outputs(Context& ctx, Tensor w, Tensor y) {
  const int64_t out = w.dim(-2), in = w.dim(-1), rows = in == 0 ? 0 : w.num_elements() / in;
  NMOE_CHECK(rows <= INT32_MAX - out, "weights {}", w.shape());
  if (rows == 0) return;
  const int64_t experts = rows / out;
  widen_columns(ctx, w.reshape({rows, in}), y.reshape({rows, in}),
                GroupBounds(static_cast<int>(rows), static_cast<int>(out)), experts,
                experts * ceil_div<int64_t>(out, kBlock));
}

void mxfp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, Tensor y) {
  if (offsets.defined()) {
    const int64_t groups = offsets.dim(0) - 1;
    return widen_columns(ctx, x, y, GroupBounds(offsets.data<int32_t>()), groups,
                         x.num_rows() / kBlock + std::min(groups, x.num_rows()));
  }
  const auto rows = static_cast<int>(x.num_rows());
  widen_columns(ctx, x, y, GroupBounds(rows, rows), 1, ceil_div<int64_t>(rows, kBlock));
}

}  // namespace nmoe::cuda
