// A thread block has some rows of an expert. Memory-bound.
#include "ops/cuda/kernels/low_precision/expert_amax.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 16;
constexpr int kValues = 8;  // of a lane at once

template <class T>
__global__ void __launch_bounds__(kThreads) expert_kernel(const T* x, const int32_t* index, int width, bool vector,
                                                          GroupBounds bounds, int num_experts, unsigned* amax) {
  GroupTileCursor<kTileRows> cursor(bounds, num_experts, /*num_col_tiles=*/1);
  if (!cursor.move_to(static_cast<int>(blockIdx.x))) return;  // all threads
  __shared__ unsigned largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  unsigned bits = 0;
  const int first = cursor.row_tile() * kTileRows, rows = min(kTileRows, cursor.num_rows() - first);
  const int lanes = ceil_div(width, kValues);
  for (int i = static_cast<int>(threadIdx.x); i < rows * lanes; i += kThreads) {
    const int row = cursor.row_begin() + first + i / lanes, col = i % lanes * kValues;
    float values[kValues];
    load8(x + static_cast<int64_t>(index == nullptr ? row : index[row]) * width, col, width, vector, values);
#pragma unroll
    for (const float value : values) bits = max(bits, magnitude_bits(value));
  }
  atomicMax(&largest, __reduce_max_sync(kAllLanes, bits));
  __syncthreads();
  // Integers: a maximum has no order.
  if (threadIdx.x == 0) atomicMax(amax + cursor.expert(), __float_as_uint(amax_of_bits(largest)));
}

}  // namespace

void expert_abs_max(Context& ctx, const OperandRows& rows, Tensor offsets, Tensor amax) {
  NMOE_CUDA_CHECK(cudaMemsetAsync(amax.raw(), 0, static_cast<size_t>(amax.num_bytes()), ctx.stream));
  if (rows.num_rows() == 0) return;
  const int64_t num_experts = amax.dim(0), width = rows.width();
  const int64_t most = ceil_div(rows.num_rows(), int64_t{kTileRows}) + num_experts;
  dispatch_act(rows.source.dtype(), [&](auto element) {
    using T = decltype(element);
    expert_kernel<<<grid_size(most), kThreads, 0, ctx.stream>>>(
        rows.source.data<T>(), rows.index.data_or_null<int32_t>(), static_cast<int>(width),
        can_vectorise(width, rows.source), GroupBounds(offsets.data<int32_t>()), static_cast<int>(num_experts),
        reinterpret_cast<unsigned*>(amax.data<float>()));
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
