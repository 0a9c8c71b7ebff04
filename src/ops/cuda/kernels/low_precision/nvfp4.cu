// Rounds BF16 to NVFP4 and widens it again, in two passes: tensors' largest magnitudes, then blocks. Memory-bound.
//
// Along rows two neighbouring lanes have a block, and a thread block some rows of one group. A tile of weights is a
// warp's. Along columns a thread has a block, its neighbours those beside it; the first pass leaves the transformed
// values in y, where the second rounds them.
#include <algorithm>

#include "ops/cuda/kernels/low_precision/nvfp4.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kNvFp4));
constexpr int kLaneValues = 8, kBlockLanes = kBlock / kLaneValues;
constexpr int kRowLanes = 16, kRowsAtOnce = kThreads / kRowLanes;  // of a thread block that rounds rows
constexpr int kTileRows = 2 * kRowsAtOnce;
constexpr uint64_t kExpertBlocks = first_block_of(1);

// How the blocks of a tensor are rounded.
struct Rounding {
  const int64_t* key;  // null: to nearest
  uint64_t stream;
  const int32_t* experts;  // which expert of all a group is; null: that of its number

  __device__ random::Words bytes(int group, uint64_t block) const {
    const int expert = experts == nullptr ? group : experts[group];
    return rounding_bytes(static_cast<uint64_t>(*key), stream, expert * kExpertBlocks + block);
  }
};

// A block whose largest magnitude has these bits.
class BlockRounding {
 public:
  __device__ BlockRounding(unsigned largest, float tensor_factor) {
    const uint8_t code = nvfp4_scale(amax_of_bits(largest), tensor_factor);
    factor_ = nvfp4_block_factor(code, tensor_factor);
    scale_ = e4m3_to_float(code);
  }
  __device__ float nearest(float x) const { return e2m1_to_float(float_to_e2m1(x * factor_)) * scale_; }
  __device__ float random(float x, uint8_t byte) const {
    return e2m1_to_float(float_to_e2m1(x * factor_, byte)) * scale_;
  }

 private:
  float factor_, scale_;
};

__device__ float tensor_factor_of(const float* amax) {
  return nvfp4_tensor_factor(amax_of_bits(magnitude_bits(*amax)));
}

// Of all threads of a block. Integers: a maximum has no order.
__device__ void add_to_amax(unsigned largest, unsigned* amax) {
  __shared__ unsigned shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  atomicMax(&shared, largest);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(amax, __float_as_uint(amax_of_bits(shared)));
}

struct Rows {
  const __nv_bfloat16* x;
  const int32_t* index;  // may be null
  __nv_bfloat16* y;
  int64_t width;
  int num_groups;
  bool vector;  // whole 16 bytes

  __device__ const __nv_bfloat16* source(int64_t row) const {
    return x + (index == nullptr ? row : index[row]) * width;
  }
};

// kMeasures: amax alone, else y alone. A thread block has kTileRows rows of a group.
template <bool kMeasures>
__global__ void __launch_bounds__(kThreads) rows_kernel(Rows rows, GroupBounds bounds, float* amax, Rounding rounding) {
  GroupTileCursor<kTileRows> cursor(bounds, rows.num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int first = cursor.row_tile() * kTileRows;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int64_t across = ceil_div(rows.width, int64_t{kBlock});
  const float tensor_factor = kMeasures ? 0.0F : tensor_factor_of(amax + cursor.expert());
  unsigned most = 0;
  for (int i = static_cast<int>(threadIdx.x) / kRowLanes; i < kTileRows; i += kRowsAtOnce) {
    const int64_t row = cursor.row_begin() + first + i;
    const bool row_is_there = first + i < cursor.num_rows();
    const __nv_bfloat16* const source = row_is_there ? rows.source(row) : nullptr;
    for (int64_t at = 0; at < rows.width; at += kRowLanes * kLaneValues) {  // all lanes together
      const int64_t col = at + lane * kLaneValues;
      const bool is_there = row_is_there && col < rows.width;
      float values[kLaneValues] = {};
      if (is_there) load8(source, col, rows.width, rows.vector, values);
      unsigned largest = 0;
#pragma unroll
      for (const float value : values) largest = max(largest, magnitude_bits(value));
      if constexpr (kMeasures) {
        most = max(most, largest);
      } else {
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, kBlockLanes / 2));
        if (!is_there) continue;
        const BlockRounding block(largest, tensor_factor);
        if (rounding.key == nullptr) {
#pragma unroll
          for (float& value : values) value = block.nearest(value);
        } else {
          const random::Words words = rounding.bytes(cursor.expert(), (first + i) * across + col / kBlock);
          const int half = static_cast<int>(col % kBlock);
#pragma unroll
          for (int j = 0; j < kLaneValues; ++j) values[j] = block.random(values[j], byte_of(words, half + j));
        }
        store8(rows.y + row * rows.width, col, rows.width, rows.vector, values);
      }
    }
  }
  if constexpr (kMeasures) add_to_amax(most, reinterpret_cast<unsigned*>(amax) + cursor.expert());
}

// y [E, rows, cols]: a warp a tile, two lanes a row of it.
__global__ void __launch_bounds__(kThreads) tiles_kernel(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t num_matrices,
                                                         int64_t rows, int64_t cols, const float* amax, bool vector) {
  const int64_t down = ceil_div(rows, int64_t{kBlock}), across = ceil_div(cols, int64_t{kBlock});
  const int64_t tile = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int64_t matrix = tile / (down * across);
  if (matrix >= num_matrices) return;  // the whole warp
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = tile / across % down * kBlock + lane / kBlockLanes;
  const int64_t col = tile % across * kBlock + lane % kBlockLanes * kLaneValues;
  const bool is_there = row < rows && col < cols;
  const int64_t offset = (matrix * rows + row) * cols;
  float values[kLaneValues] = {};
  if (is_there) load8(x + offset, col, cols, vector, values);
  unsigned largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, magnitude_bits(value));
  largest = __reduce_max_sync(kAllLanes, largest);
  if (!is_there) return;
  const BlockRounding block(largest, tensor_factor_of(amax + matrix));
#pragma unroll
  for (float& value : values) value = block.nearest(value);
  store8(y + offset, col, cols, vector, values);
}

// Blocks of all groups are numbered as they lie in y. Grid (blocks, columns).
__global__ void __launch_bounds__(kThreads)
    transform_kernel(Rows rows, GroupBounds bounds, bool transform, float* amax) {
  GroupTileCursor<kBlock> cursor(bounds, rows.num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const bool is_there = col < rows.width;
  const int first = cursor.row_tile() * kBlock, num_rows = min(kBlock, cursor.num_rows() - first);
  float values[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    values[i] = is_there && i < num_rows ? to_float(rows.source(cursor.row_begin() + first + i)[col]) : 0.0F;
  }
  if (transform) random_hadamard(values);
  unsigned largest = 0;
  __nv_bfloat16* const y = rows.y + static_cast<int64_t>(blockIdx.x) * kBlock * rows.width + col;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    largest = max(largest, magnitude_bits(values[i]));
    if (is_there) y[i * rows.width] = __float2bfloat16_rn(values[i]);
  }
  add_to_amax(largest, reinterpret_cast<unsigned*>(amax) + cursor.expert());
}

__global__ void __launch_bounds__(kThreads)
    columns_kernel(Rows rows, GroupBounds bounds, const float* amax, Rounding rounding) {
  GroupTileCursor<kBlock> cursor(bounds, rows.num_groups, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (col >= rows.width) return;
  __nv_bfloat16* const y = rows.y + static_cast<int64_t>(blockIdx.x) * kBlock * rows.width + col;
  float values[kBlock];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    values[i] = to_float(y[i * rows.width]);
    largest = max(largest, magnitude_bits(values[i]));
  }
  const BlockRounding block(largest, tensor_factor_of(amax + cursor.expert()));
  if (rounding.key == nullptr) {
#pragma unroll
    for (float& value : values) value = block.nearest(value);
  } else {
    const random::Words words = rounding.bytes(cursor.expert(), cursor.row_tile() * rows.width + col);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) values[i] = block.random(values[i], byte_of(words, i));
  }
#pragma unroll
  for (int i = 0; i < kBlock; ++i) y[i * rows.width] = __float2bfloat16_rn(values[i]);
}

// One warp.
__global__ void __launch_bounds__(kWarp)
    column_offsets_kernel(const int32_t* offsets, int num_groups, int32_t* padded) {
  const int lane = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int first = 0; first < num_groups; first += kWarp) {
    const int group = first + lane;
    int end = group < num_groups ? ceil_div(offsets[group + 1] - offsets[group], kBlock) * kBlock : 0;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end, offset);
      if (lane >= offset) end += below;
    }
    end += before;
    if (group < num_groups) padded[group + 1] = end;
    before = __shfl_sync(kAllLanes, end, kWarp - 1);
  }
  if (lane == 0) padded[0] = 0;
}

__global__ void __launch_bounds__(kThreads)
    expert_scales_kernel(const float* amax_a, const float* amax_b, float* scale, int count) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count) scale[i] = nvfp4_product_scale(amax_a[i], amax_b[i]);
}
__global__ void scale_kernel(const float* amax_a, const float* amax_b, bool adds, float* scale) {
  scale[0] = nvfp4_product_scale(*amax_a, *amax_b);
  scale[1] = adds ? 1.0F : 0.0F;
}

void check_bf16(const Tensor& x, const Tensor& y) {
  NMOE_CHECK(x.dtype() == DType::kBF16 && y.dtype() == DType::kBF16, "{} is not rounded to NVFP4",
             dtype_name(x.dtype()));
}

int64_t num_groups_of(const Tensor& offsets) { return offsets.defined() ? offsets.dim(0) - 1 : 1; }

GroupBounds bounds_of(const OperandRows& x, const Tensor& offsets) {
  const auto rows = static_cast<int>(x.num_rows());
  return offsets.defined() ? GroupBounds(offsets.data<int32_t>()) : GroupBounds(rows, rows);
}

// Tiles of `rows` rows that the groups can have.
int64_t most_tiles(const OperandRows& x, const Tensor& offsets, int64_t rows) {
  return x.num_rows() / rows + std::min(num_groups_of(offsets), x.num_rows());
}

Rows rows_of(const OperandRows& x, const Tensor& offsets, const Tensor& y) {
  check_bf16(x.source, y);
  return {.x = x.source.data<__nv_bfloat16>(),
          .index = x.index.data_or_null<int32_t>(),
          .y = y.data<__nv_bfloat16>(),
          .width = x.width(),
          .num_groups = static_cast<int>(num_groups_of(offsets)),
          .vector = can_vectorise(x.width(), x.source, y)};
}

Rounding rounding_of(const RandomRounding& random) {
  return {.key = random.key.data_or_null<int64_t>(),
          .stream = random.stream,
          .experts = random.experts.data_or_null<int32_t>()};
}

void clear(Context& ctx, const Tensor& amax) {
  NMOE_CUDA_CHECK(cudaMemsetAsync(amax.raw(), 0, static_cast<size_t>(amax.num_bytes()), ctx.stream));
}

}  // namespace

void nvfp4_rows(Context& ctx, const OperandRows& x, Tensor offsets, const RandomRounding& random, Tensor y,
                Tensor amax) {
  const Rows rows = rows_of(x, offsets, y);
  clear(ctx, amax);
  if (y.num_elements() == 0) return;
  const GroupBounds bounds = bounds_of(x, offsets);
  const unsigned grid = grid_size(most_tiles(x, offsets, kTileRows));
  rows_kernel<true><<<grid, kThreads, 0, ctx.stream>>>(rows, bounds, amax.data<float>(), {});
  rows_kernel<false><<<grid, kThreads, 0, ctx.stream>>>(rows, bounds, amax.data<float>(), rounding_of(random));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void nvfp4_weights(Context& ctx, Tensor w, Tensor y, Tensor amax) {
  check_bf16(w, y);
  const int64_t matrices = amax.dim(0), rows = w.dim(-2), cols = w.dim(-1);
  abs_max(ctx, {.x = w.reshape({matrices, rows, cols}), .amax = amax});
  if (w.num_elements() == 0) return;
  const int64_t threads = matrices * ceil_div<int64_t>(rows, kBlock) * ceil_div<int64_t>(cols, kBlock) * kWarp;
  tiles_kernel<<<grid_size(ceil_div(threads, int64_t{kThreads})), kThreads, 0, ctx.stream>>>(
      w.data<__nv_bfloat16>(), y.data<__nv_bfloat16>(), matrices, rows, cols, amax.data<float>(),
      can_vectorise(cols, w, y));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void nvfp4_columns(Context& ctx, const OperandRows& x, Tensor offsets, bool transform, const RandomRounding& random,
                   Tensor y, Tensor amax) {
  const Rows rows = rows_of(x, offsets, y);
  clear(ctx, amax);
  if (y.num_elements() == 0) return;
  const GroupBounds bounds = bounds_of(x, offsets);
  const dim3 grid(grid_size(most_tiles(x, offsets, kBlock)), short_grid_size(ceil_div<int64_t>(y.dim(1), kThreads)));
  transform_kernel<<<grid, kThreads, 0, ctx.stream>>>(rows, bounds, transform, amax.data<float>());
  columns_kernel<<<grid, kThreads, 0, ctx.stream>>>(rows, bounds, amax.data<float>(), rounding_of(random));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void nvfp4_column_offsets(Context& ctx, Tensor offsets, Tensor padded) {
  column_offsets_kernel<<<1, kWarp, 0, ctx.stream>>>(offsets.data<int32_t>(), static_cast<int>(num_groups_of(offsets)),
                                                     padded.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void nvfp4_expert_scales(Context& ctx, Tensor amax_a, Tensor amax_b, Tensor scale) {
  const auto count = static_cast<int>(scale.dim(0));
  if (count == 0) return;
  expert_scales_kernel<<<grid_size(ceil_div(count, kThreads)), kThreads, 0, ctx.stream>>>(
      amax_a.data<float>(), amax_b.data<float>(), scale.data<float>(), count);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void nvfp4_dense_scale(Context& ctx, Tensor amax_a, Tensor amax_b, bool adds, Tensor scale) {
  scale_kernel<<<1, 1, 0, ctx.stream>>>(amax_a.data<float>(), amax_b.data<float>(), adds, scale.data<float>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
