// Biases, memory-bound. Forward writes every element once, and reads it once where there is something to add to.
// Backward reads every element once: a thread has eight columns of a chunk of rows, one row after the other, as the
// contract's order asks for; loads do not wait for sums.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const T* xs, const float* biases, T* ys, int64_t num_rows, int64_t width, bool vector) {
  begin_behind_work_before();
  const int64_t row = Group::row();
  if (row >= num_rows) return;  // all of the row's threads
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float x[8] = {}, bias[8] = {};
    if (xs != nullptr) load8(xs + row * width, i, width, vector, x);
    load8(biases, i, width, vector, bias);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += bias[j];
    store8(ys + row * width, i, width, vector, x);
  }
}

constexpr int kChunkThreads = 64;  // of a block of backward, with 8 columns each

// partials[chunk] = the sum of the chunk's rows.
template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    backward_kernel(const T* dys, int64_t stride, float* partials, int64_t num_rows, int64_t width, bool vector) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kChunkThreads + threadIdx.x) * 8;
  if (column >= width) return;
  const int64_t begin = blockIdx.x * kBiasChunkRows, end = min(begin + kBiasChunkRows, num_rows);
  float sums[8] = {};
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) {
    float dy[8] = {};
    load8(dys + row * stride, column, width, vector, dy);
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += dy[j];
  }
  store8(partials + blockIdx.x * width, column, width, vector, sums);
}

__global__ void __launch_bounds__(kRowThreads)
    add_partials_kernel(const float* partials, float* dbias, int64_t num_chunks, int64_t width) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= width) return;
  float total = partials[column];
#pragma unroll 8
  for (int64_t chunk = 1; chunk < num_chunks; ++chunk) total += partials[chunk * width + column];
  dbias[column] += total;
}

}  // namespace

void bias_forward(Context& ctx, const BiasForward& args) {
  const int64_t num_rows = args.y.dim(0), width = args.y.dim(1);
  if (num_rows == 0 || width == 0) return;
  const Tensor x = args.x.defined() ? args.x : args.y;
  const bool vector = can_vectorise(width, x, args.bias, args.y);
  dispatch_act(args.y.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_rows, width, [&](auto group, unsigned grid) {
      launch_early(ctx, forward_kernel<decltype(group), T>, grid, kRowThreads, 0, args.x.data_or_null<T>(),
                   args.bias.data<float>(), args.y.data<T>(), num_rows, width, vector);
    });
  });
}

void bias_backward(Context& ctx, const BiasBackward& args, const Tensor& partials) {
  const int64_t num_rows = args.dy.dim(0), width = args.dy.dim(1);
  if (num_rows == 0 || width == 0) return;
  const bool vector = can_vectorise(width, args.dy);
  const dim3 grid(grid_size(partials.dim(0)), grid_size(ceil_div(width, int64_t{8} * kChunkThreads)));
  dispatch_act(args.dy.dtype(), [&](auto element) {
    using T = decltype(element);
    backward_kernel<T><<<grid, kChunkThreads, 0, ctx.stream>>>(args.dy.rows_data<T>(), args.dy.stride(),
                                                               partials.data<float>(), num_rows, width, vector);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  add_partials_kernel<<<grid_size(ceil_div(width, int64_t{kRowThreads})), kRowThreads, 0, ctx.stream>>>(
      partials.data<float>(), args.dbias.data<float>(), partials.dim(0), width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
