// RMSNorm, memory-bound. N rows of D values; with n = x rstd and g = dy gain
//   forward   y = n gain
//   backward  dgain += sum over rows of dy n;   dx = rstd (g - n mean(g n))
//
// Forward reads x twice, the second time from a cache for the sizes models use. Backward first adds up dgain (dx may
// overwrite dy), then writes dx: x and dy are read three times, once from a cache.
// dgain: a block adds up its chunk of rows for 256 columns and leaves partial sums, [chunks, D]; a second kernel adds
// them in the chunks' order. Chunks follow from N alone.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"

namespace nmoe::cuda {
namespace {

constexpr int kGainWarps = 8;            // of a dgain block; each takes every eighth row
constexpr int kGainColumns = kWarp * 8;  // a dgain block's columns, 8 a lane

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const T* inputs, const float* gain, float eps, T* outputs, float* rstds, int64_t num_rows,
                   int64_t width, bool vector) {
  const int64_t row = Group::row();
  if (row >= num_rows) return;
  const T* x = inputs + row * width;
  T* y = outputs + row * width;
  float squares = 0.0F;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8];
    load8(x, i, width, vector, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
  }
  const float rstd = 1.0F / sqrtf(Group::sum(squares) / static_cast<float>(width) + eps);
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8], gains[8];
    load8(x, i, width, vector, values);
    load8(gain, i, width, vector, gains);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = values[j] * rstd * gains[j];
    store8(y, i, width, vector, values);
  }
  if (Group::thread() == 0) rstds[row] = rstd;
}

// dx and dy may be the same: a thread writes an element after all have read the row for the mean, and it alone reads it
// again before.
template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(const T* inputs, const float* gain, const float* rstds, const T* dys, T* dxs, int64_t num_rows,
                    int64_t width, bool accumulate, bool vector) {
  const int64_t row = Group::row();
  if (row >= num_rows) return;
  const T* x = inputs + row * width;
  const T* dy = dys + row * width;
  T* dx = dxs + row * width;
  float products = 0.0F;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8], gains[8], gradients[8];
    load8(x, i, width, vector, values);
    load8(gain, i, width, vector, gains);
    load8(dy, i, width, vector, gradients);
#pragma unroll
    for (int j = 0; j < 8; ++j) products += gradients[j] * gains[j] * values[j];
  }
  const float rstd = rstds[row];
  const float slope = rstd * rstd * rstd * (Group::sum(products) / static_cast<float>(width));
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8], gains[8], gradients[8], result[8] = {};
    load8(x, i, width, vector, values);
    load8(gain, i, width, vector, gains);
    load8(dy, i, width, vector, gradients);
    if (accumulate) load8(dx, i, width, vector, result);
#pragma unroll
    for (int j = 0; j < 8; ++j) result[j] += rstd * gains[j] * gradients[j] - slope * values[j];
    store8(dx, i, width, vector, result);
  }
}

// partials[chunk, column] = the sum of dy x rstd over the chunk's rows. Grid: column tiles, chunks.
template <class T>
__global__ void __launch_bounds__(kGainWarps* kWarp)
    gain_partials_kernel(const T* inputs, const float* rstds, const T* dys, float* partials, int64_t num_rows,
                         int64_t width, int64_t chunk_rows, bool vector) {
  __shared__ float sums[kGainWarps][kGainColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kGainColumns, column = first_column + lane * 8;
  const int64_t begin = blockIdx.y * chunk_rows, end = min(begin + chunk_rows, num_rows);
  float totals[8] = {};
  if (column < width) {
    for (int64_t row = begin + warp; row < end; row += kGainWarps) {
      float values[8], gradients[8];
      load8(inputs + row * width, column, width, vector, values);
      load8(dys + row * width, column, width, vector, gradients);
      const float rstd = rstds[row];
#pragma unroll
      for (int j = 0; j < 8; ++j) totals[j] += gradients[j] * (values[j] * rstd);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) sums[warp][lane * 8 + j] = totals[j];
  __syncthreads();
  static_assert(kGainColumns == kGainWarps * kWarp, "a thread adds up one column");
  const int64_t own = first_column + threadIdx.x;
  if (own >= width) return;
  float total = 0.0F;
#pragma unroll
  for (int w = 0; w < kGainWarps; ++w) total += sums[w][threadIdx.x];
  partials[blockIdx.y * width + own] = total;
}

// dgain[column] += the sum of partials[chunk, column], a column a thread; warps take every eighth chunk of 32 columns.
__global__ void __launch_bounds__(kGainWarps* kWarp)
    add_gain_partials_kernel(const float* partials, float* dgain, int64_t num_chunks, int64_t width) {
  __shared__ float sums[kGainWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float total = 0.0F;
  if (column < width) {
    for (int64_t chunk = warp; chunk < num_chunks; chunk += kGainWarps) total += partials[chunk * width + column];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int w = 1; w < kGainWarps; ++w) total += sums[w][lane];
  dgain[column] += total;
}

void check_shapes(Tensor x, Tensor gain, Tensor y, Tensor rstd) {
  NMOE_CHECK(x.shape().rank() == 2 && y.num_elements() == x.num_elements() && y.dtype() == x.dtype() &&
                 gain.num_elements() == x.dim(1) && rstd.num_elements() == x.dim(0),
             "RMSNorm of {} {} with gain {} to {} {}, rstd {}", dtype_name(x.dtype()), x.shape(), gain.shape(),
             dtype_name(y.dtype()), y.shape(), rstd.shape());
}

}  // namespace

void rms_norm_forward(Context& ctx, const RmsNormForward& args) {
  const Tensor x = args.x, gain = args.gain, y = args.y, rstd = args.rstd;
  const auto eps = static_cast<float>(args.eps);

  check_shapes(x, gain, y, rstd);
  const int64_t num_rows = x.dim(0), width = x.dim(1);
  if (ctx.counting() || num_rows == 0) return;
  const bool vector = can_vectorise(width, x, gain, y);
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_rows, width, [&](auto group, unsigned grid) {
      forward_kernel<decltype(group), T><<<grid, kRowThreads, 0, ctx.stream>>>(
          x.data<T>(), gain.data<float>(), eps, y.data<T>(), rstd.data<float>(), num_rows, width, vector);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void rms_norm_backward(Context& ctx, const RmsNormBackward& args) {
  const Tensor x = args.x, gain = args.gain, rstd = args.rstd, dy = args.dy, dx = args.dx, dgain = args.dgain;

  check_shapes(x, gain, dy, rstd);
  check_shapes(x, dgain, dx, rstd);
  const int64_t num_rows = x.dim(0), width = x.dim(1);
  const int64_t chunk_rows = gain_chunk_rows(num_rows);
  ArenaScope scratch(ctx.scratch);
  const Tensor partials = claim(scratch, args);
  const int64_t num_chunks = partials.dim(0);
  if (ctx.counting() || num_rows == 0 || width == 0) return;
  const bool vector = can_vectorise(width, x, gain, dy, dx);
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    const dim3 gain_grid(grid_size(ceil_div(width, kGainColumns)), short_grid_size(num_chunks));
    gain_partials_kernel<T><<<gain_grid, kGainWarps * kWarp, 0, ctx.stream>>>(
        x.data<T>(), rstd.data<float>(), dy.data<T>(), partials.data<float>(), num_rows, width, chunk_rows, vector);
    NMOE_CUDA_CHECK(cudaGetLastError());
    add_gain_partials_kernel<<<grid_size(ceil_div(width, kWarp)), kGainWarps * kWarp, 0, ctx.stream>>>(
        partials.data<float>(), dgain.data<float>(), num_chunks, width);
    NMOE_CUDA_CHECK(cudaGetLastError());
    dispatch_rows(num_rows, width, [&](auto group, unsigned grid) {
      backward_kernel<decltype(group), T>
          <<<grid, kRowThreads, 0, ctx.stream>>>(x.data<T>(), gain.data<float>(), rstd.data<float>(), dy.data<T>(),
                                                 dx.data<T>(), num_rows, width, args.accumulate_dx, vector);
    });
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace nmoe::cuda
