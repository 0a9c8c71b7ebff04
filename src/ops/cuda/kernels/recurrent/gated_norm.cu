// The norm behind Mamba-2's scan, memory-bound. Forward reads a group of a row twice, the second time from a cache, as
// its sum comes before its outputs; backward holds it in registers, and a block has a group of a chunk of rows.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

// A vector is a group of a row: `size` values at column vector % groups * size of row vector / groups.
template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const T* xs, const T* zs, int64_t z_stride, const float* gains, T* ys, float* rstds,
                   int64_t num_vectors, int64_t groups, int64_t size, float eps, bool vector) {
  const int64_t own = Group::row();
  if (own >= num_vectors) return;  // all of the group's threads
  const int64_t row = own / groups, column = own % groups * size;
  const T *x = xs + own * size, *z = zs + row * z_stride + column;
  const auto load_gated = [&](int64_t i, float(&u)[8]) {
    float gate[8];
    load8(x, i, size, vector, u);
    load8(z, i, size, vector, gate);
#pragma unroll
    for (int j = 0; j < 8; ++j) u[j] *= gate[j] * sigmoid<T>(gate[j]);
  };
  float squares = 0.0F;
  for (int64_t i = Group::thread() * 8; i < size; i += Group::kThreads * 8) {
    float u[8], sum = 0.0F;
    load_gated(i, u);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(u[j], u[j], sum);
    squares += sum;
  }
  const float rstd = 1.0F / sqrtf(Group::sum(squares) / static_cast<float>(size) + eps);
  for (int64_t i = Group::thread() * 8; i < size; i += Group::kThreads * 8) {
    float u[8], gain[8];
    load_gated(i, u);
    load8(gains + column, i, size, vector, gain);
#pragma unroll
    for (int j = 0; j < 8; ++j) u[j] = u[j] * rstd * gain[j];
    store8(ys + own * size, i, size, vector, u);
  }
  if (Group::thread() == 0) rstds[own] = rstd;
}

template <class T>
struct Backward {
  const T *x, *z, *dy;
  const float *gain, *rstd;
  T *dx, *dz;
  int64_t z_stride, dz_stride;
  float* partials;  // [chunks, D]
  int64_t num_rows, groups, size, chunk_rows;
  bool vector;
};

// With n = u rstd and g = dy gain: du = rstd (g - n mean(g n)), dx = du silu(z), dz = du x silu'(z); and the chunk's
// sum of dy n. A thread has kVectors times 8 values of the group (blockIdx.y). dx and dy may be the same: a thread
// reads what it then writes, and no other does.
template <int kVectors, class T>
__global__ void __launch_bounds__(kRowThreads) backward_kernel(Backward<T> of) {
  const int64_t width = of.groups * of.size, first_column = blockIdx.y * of.size;
  const int64_t begin = blockIdx.x * of.chunk_rows, end = min(begin + of.chunk_rows, of.num_rows);
  const auto column_of = [](int v) { return (v * kRowThreads + static_cast<int>(threadIdx.x)) * 8; };
  float totals[kVectors][8] = {};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = row * width + first_column;
    const float rstd = of.rstd[row * of.groups + blockIdx.y];
    float u[kVectors][8], g[kVectors][8], products = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= of.size) continue;
      float z[8], gain[8];
      load8(of.x + place, column_of(v), of.size, of.vector, u[v]);
      load8(of.z + row * of.z_stride + first_column, column_of(v), of.size, of.vector, z);
      load8(of.dy + place, column_of(v), of.size, of.vector, g[v]);
      load8(of.gain + first_column, column_of(v), of.size, of.vector, gain);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        u[v][j] *= z[j] * sigmoid<T>(z[j]);
        totals[v][j] = fmaf(g[v][j], u[v][j] * rstd, totals[v][j]);
        g[v][j] *= gain[j];
        products = fmaf(g[v][j], u[v][j], products);
      }
    }
    const float slope = rstd * rstd * (block_sum(products) / static_cast<float>(of.size));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= of.size) continue;
      float x[8], z[8], dx[8], dz[8];
      load8(of.x + place, column_of(v), of.size, of.vector, x);
      load8(of.z + row * of.z_stride + first_column, column_of(v), of.size, of.vector, z);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float gate = sigmoid<T>(z[j]), du = rstd * (g[v][j] - u[v][j] * slope);
        dx[j] = du * (z[j] * gate);
        dz[j] = du * x[j] * gate * (1.0F + z[j] * (1.0F - gate));
      }
      store8(of.dx + place, column_of(v), of.size, of.vector, dx);
      store8(of.dz + row * of.dz_stride + first_column, column_of(v), of.size, of.vector, dz);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) < of.size) {
      store8(of.partials + blockIdx.x * width + first_column, column_of(v), of.size, of.size % 8 == 0, totals[v]);
    }
  }
}

__global__ void __launch_bounds__(kRowThreads)
    add_partials_kernel(const float* partials, float* dgain, int64_t num_chunks, int64_t width) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= width) return;
  float total = partials[column];
#pragma unroll 8
  for (int64_t chunk = 1; chunk < num_chunks; ++chunk) total += partials[chunk * width + column];
  dgain[column] += total;
}

}  // namespace

void gated_norm_forward(Context& ctx, const GatedNormForward& args) {
  const int64_t vectors = args.x.dim(0) * args.num_groups, size = args.x.dim(1) / args.num_groups;
  if (vectors == 0 || size == 0) return;
  const bool vector = can_vectorise(size, args.x, args.z, args.gain, args.y);
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(vectors, size, [&](auto group, unsigned grid) {
      forward_kernel<decltype(group), T><<<grid, kRowThreads, 0, ctx.stream>>>(
          args.x.data<T>(), args.z.rows_data<T>(), args.z.stride(), args.gain.data<float>(), args.y.data<T>(),
          args.rstd.data<float>(), vectors, args.num_groups, size, static_cast<float>(args.eps), vector);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void gated_norm_backward(Context& ctx, const GatedNormBackward& args, const Tensor& partials) {
  const int64_t num_rows = args.x.dim(0), width = args.x.dim(1), groups = args.rstd.dim(1);
  if (num_rows == 0 || width == 0) return;
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    const Backward<T> of{.x = args.x.data<T>(),
                         .z = args.z.rows_data<T>(),
                         .dy = args.dy.data<T>(),
                         .gain = args.gain.data<float>(),
                         .rstd = args.rstd.data<float>(),
                         .dx = args.dx.data<T>(),
                         .dz = args.dz.rows_data<T>(),
                         .z_stride = args.z.stride(),
                         .dz_stride = args.dz.stride(),
                         .partials = partials.data<float>(),
                         .num_rows = num_rows,
                         .groups = groups,
                         .size = width / groups,
                         .chunk_rows = gain_chunk_rows(num_rows, width),
                         .vector = can_vectorise(width / groups, args.x, args.z, args.dy, args.gain, args.dx, args.dz)};
    const dim3 grid(grid_size(partials.dim(0)), grid_size(groups));
    switch (ceil_div(of.size, int64_t{8} * kRowThreads)) {
      case 1:
        backward_kernel<1, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
        break;
      case 2:
        backward_kernel<2, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
        break;
      default:
        backward_kernel<4, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  add_partials_kernel<<<grid_size(ceil_div(width, int64_t{kRowThreads})), kRowThreads, 0, ctx.stream>>>(
      partials.data<float>(), args.dgain.data<float>(), partials.dim(0), width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
