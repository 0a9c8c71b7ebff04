// Biases of experts, memory-bound. Forward reads and writes every element once. Backward reads every element twice: a
// thread has eight columns of a chunk of rows, one row after the other, as the contract's order asks for, and a group
// of threads a row, whose product with its expert's bias is the gradient of the row's weight.
#include "ops/contracts/bias.h"
#include "ops/cuda/kernels/experts/expert_bias.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

// The expert that has a row, or num_experts beyond the last.
__device__ int expert_of(const int32_t* offsets, int num_experts, int64_t row) {
  int low = 0, high = num_experts;  // to the first whose end is behind the row
  while (low < high) {
    const int middle = (low + high) / 2;
    if (offsets[middle + 1] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(T* ys, const float* biases, const float* weights, const int32_t* offsets, int num_experts,
                   int64_t width, bool vector) {
  const int64_t row = Group::row();
  if (row >= offsets[num_experts]) return;  // all of the row's threads
  const float* const bias = biases + expert_of(offsets, num_experts, row) * width;
  const float weight = weights != nullptr ? weights[row] : 1.0F;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float y[8], b[8];
    load8(ys + row * width, i, width, vector, y);
    load8(bias, i, width, vector, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = fmaf(weight, b[j], y[j]);
    store8(ys + row * width, i, width, vector, y);
  }
}

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    row_weight_kernel(const T* dys, const int32_t* index, const float* biases, float* drow_weight,
                      const int32_t* offsets, int num_experts, int64_t width, bool vector) {
  const int64_t row = Group::row();
  if (row >= offsets[num_experts]) return;  // all of the row's threads
  const float* const bias = biases + expert_of(offsets, num_experts, row) * width;
  const T* const dy = dys + (index != nullptr ? index[row] : row) * width;
  float sum = 0.0F;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float d[8], b[8];
    load8(dy, i, width, vector, d);
    load8(bias, i, width, vector, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(d[j], b[j], sum);
  }
  sum = Group::sum(sum);
  if (Group::thread() == 0) drow_weight[row] += sum;
}

constexpr int kChunkThreads = 64;  // of a block of chunks, with 8 columns each

// The chunks of an expert's rows: so many, from the first-th of all.
struct ExpertChunks {
  int64_t first = 0, count = 0;
};
__device__ ExpertChunks chunks_of(const int32_t* offsets, int expert) {
  ExpertChunks chunks;
  for (int e = 0; e <= expert; ++e) {
    chunks.first += chunks.count;
    chunks.count = (offsets[e + 1] - offsets[e] + kBiasChunkRows - 1) / kBiasChunkRows;
  }
  return chunks;
}

// partials[chunk] = the sum of the chunk's rows.
template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    chunk_kernel(const T* dys, const int32_t* index, const float* weights, float* partials, const int32_t* offsets,
                 int num_experts, int64_t width, bool vector) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kChunkThreads + threadIdx.x) * 8;
  if (column >= width) return;
  int expert = 0;
  int64_t chunk = blockIdx.x;  // of the expert
  for (; expert < num_experts; ++expert) {
    const int64_t count = (offsets[expert + 1] - offsets[expert] + kBiasChunkRows - 1) / kBiasChunkRows;
    if (chunk < count) break;
    chunk -= count;
  }
  if (expert == num_experts) return;
  const int64_t begin = offsets[expert] + chunk * kBiasChunkRows;
  const int64_t end = min(begin + kBiasChunkRows, static_cast<int64_t>(offsets[expert + 1]));
  float sums[8] = {};
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    float dy[8] = {};
    load8(dys + (index != nullptr ? index[row] : row) * width, column, width, vector, dy);
    const float weight = weights != nullptr ? weights[row] : 1.0F;
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] = fmaf(weight, dy[j], sums[j]);
  }
  store8(partials + blockIdx.x * width, column, width, vector, sums);
}

__global__ void __launch_bounds__(kRowThreads)
    add_chunks_kernel(const float* partials, float* dvalues, const int32_t* offsets, int64_t width) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  const int expert = static_cast<int>(blockIdx.y);
  const ExpertChunks chunks = chunks_of(offsets, expert);
  if (column >= width || chunks.count == 0) return;
  const float* const first = partials + chunks.first * width + column;
  float total = first[0];
#pragma unroll 8
  for (int64_t chunk = 1; chunk < chunks.count; ++chunk) total += first[chunk * width];
  dvalues[expert * width + column] += total;
}

const float* weights_of(const ExpertBias& bias) { return bias.row_weight.data_or_null<float>(); }

}  // namespace

void add_expert_bias(Context& ctx, const ExpertBias& bias, const Tensor& offsets, const Tensor& y) {
  if (!bias.defined() || y.num_elements() == 0) return;
  const int64_t width = y.dim(1);
  const bool vector = can_vectorise(width, y, bias.values);
  dispatch_act(y.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(y.dim(0), width, [&](auto group, unsigned grid) {
      forward_kernel<decltype(group), T><<<grid, kRowThreads, 0, ctx.stream>>>(
          y.data<T>(), bias.values.data<float>(), weights_of(bias), offsets.data<int32_t>(),
          static_cast<int>(bias.values.dim(0)), width, vector);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void expert_bias_backward(Context& ctx, const ExpertBiasBackward& args, const Tensor& partials) {
  const OperandRows& dy = args.dy;
  const int64_t width = dy.width(), num_rows = dy.num_rows();
  const auto num_experts = static_cast<int>(args.dvalues.dim(0));
  if (num_rows == 0 || width == 0) return;
  const bool vector = can_vectorise(width, dy.source, args.bias.values);
  const int32_t* const index = dy.index.data_or_null<int32_t>();
  const int32_t* const offsets = args.offsets.data<int32_t>();
  dispatch_act(dy.source.dtype(), [&](auto element) {
    using T = decltype(element);
    const dim3 grid(grid_size(partials.dim(0)), short_grid_size(ceil_div(width, int64_t{8} * kChunkThreads)));
    chunk_kernel<T><<<grid, kChunkThreads, 0, ctx.stream>>>(
        dy.source.data<T>(), index, weights_of(args.bias), partials.data<float>(), offsets, num_experts, width, vector);
    if (!args.drow_weight.defined()) return;
    dispatch_rows(num_rows, width, [&](auto group, unsigned blocks) {
      row_weight_kernel<decltype(group), T>
          <<<blocks, kRowThreads, 0, ctx.stream>>>(dy.source.data<T>(), index, args.bias.values.data<float>(),
                                                   args.drow_weight.data<float>(), offsets, num_experts, width, vector);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  const dim3 grid(grid_size(ceil_div(width, int64_t{kRowThreads})), short_grid_size(num_experts));
  add_chunks_kernel<<<grid, kRowThreads, 0, ctx.stream>>>(partials.data<float>(), args.dvalues.data<float>(), offsets,
                                                          width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
