// The norm behind Mamba-2's scan, memory-bound: a thread has all its values of a group of a row in registers, whose
// loads are under way together. In backward a block has a group of a chunk of rows, and reads the next row meanwhile.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/raw_values.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

constexpr int kHeld = 4;  // times 8 values of a group that a thread of forward may hold

// A vector is a group of a row: `size` values at column vector % groups * size of row vector / groups. kHolds: threads
// hold a vector; else they read it twice, the second time from a cache.
template <class Group, bool kHolds, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const T* xs, const T* zs, int64_t z_stride, const float* gains, T* ys, float* rstds,
                   int64_t num_vectors, int64_t groups, int64_t size, float eps, bool vector) {
  const int64_t own = Group::row();
  if (own >= num_vectors) return;  // all of the group's threads
  const int64_t row = own / groups, column = own % groups * size;
  const T *x = xs + own * size, *z = zs + row * z_stride + column;
  const auto gate = [](const float(&by)[8], float(&u)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) u[j] *= by[j] * sigmoid<T>(by[j]);
  };
  const auto load_gated = [&](int64_t i, float(&u)[8]) {
    float by[8];
    load8(x, i, size, vector, u);
    load8(z, i, size, vector, by);
    gate(by, u);
  };
  const auto squares_of = [](const float(&u)[8]) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(u[j], u[j], sum);
    return sum;
  };
  const auto store = [&](int64_t i, float(&u)[8], float rstd) {
    float gain[8];
    load8(gains + column, i, size, vector, gain);
#pragma unroll
    for (int j = 0; j < 8; ++j) u[j] = u[j] * rstd * gain[j];
    store8(ys + own * size, i, size, vector, u);
  };
  const auto rstd_of = [&](float squares) {
    return 1.0F / sqrtf(Group::sum(squares) / static_cast<float>(size) + eps);
  };
  float squares = 0.0F, rstd;
  if constexpr (kHolds) {
    const auto place = [](int v) { return (v * Group::kThreads + Group::thread()) * 8; };
    RawValues<T> raw[kHeld], raw_gates[kHeld];
    float held[kHeld][8];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      if (place(v) >= size) continue;
      raw[v].load(x, place(v), size, vector);
      raw_gates[v].load(z, place(v), size, vector);
    }
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      if (place(v) >= size) continue;
      float by[8];
      raw[v].to_floats(held[v]);
      raw_gates[v].to_floats(by);
      gate(by, held[v]);
      squares += squares_of(held[v]);
    }
    rstd = rstd_of(squares);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      if (place(v) < size) store(place(v), held[v], rstd);
    }
  } else {
    float u[8];
    for (int64_t i = Group::thread() * 8; i < size; i += Group::kThreads * 8) {
      load_gated(i, u);
      squares += squares_of(u);
    }
    rstd = rstd_of(squares);
    for (int64_t i = Group::thread() * 8; i < size; i += Group::kThreads * 8) {
      load_gated(i, u);
      store(i, u, rstd);
    }
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

// A thread's values of a row, as they are read.
template <int kVectors, class T>
struct RowValues {
  RawValues<T> x[kVectors], z[kVectors], dy[kVectors];
  float rstd;
};

// With n = u rstd and g = dy gain: du = rstd (g - n mean(g n)), dx = du silu(z), dz = du x silu'(z); and the chunk's
// sum of dy n. A thread has kVectors times 8 values of the group (blockIdx.y). dx and dy may be the same: a thread
// reads what it then writes, and no other does.
template <int kThreads, int kVectors, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(Backward<T> of) {
  const int64_t width = of.groups * of.size, first_column = blockIdx.y * of.size;
  const int64_t begin = blockIdx.x * of.chunk_rows, end = min(begin + of.chunk_rows, of.num_rows);
  const auto column_of = [](int v) { return (v * kThreads + static_cast<int>(threadIdx.x)) * 8; };
  const auto read = [&](int64_t row, RowValues<kVectors, T>& values) {
    const int64_t place = row * width + first_column;
    values.rstd = of.rstd[row * of.groups + blockIdx.y];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= of.size) continue;
      values.x[v].load(of.x + place, column_of(v), of.size, of.vector);
      values.z[v].load(of.z + row * of.z_stride + first_column, column_of(v), of.size, of.vector);
      values.dy[v].load(of.dy + place, column_of(v), of.size, of.vector);
    }
  };
  float totals[kVectors][8] = {}, gain[kVectors][8];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) < of.size) load8(of.gain + first_column, column_of(v), of.size, of.vector, gain[v]);
  }
  RowValues<kVectors, T> next;
  read(begin, next);
  for (int64_t row = begin; row < end; ++row) {
    const RowValues<kVectors, T> own = next;
    if (row + 1 < end) read(row + 1, next);
    float u[kVectors][8], g[kVectors][8], products = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= of.size) continue;
      float z[8];
      own.x[v].to_floats(u[v]);
      own.z[v].to_floats(z);
      own.dy[v].to_floats(g[v]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        u[v][j] *= z[j] * sigmoid<T>(z[j]);
        totals[v][j] = fmaf(g[v][j], u[v][j] * own.rstd, totals[v][j]);
        g[v][j] *= gain[v][j];
        products = fmaf(g[v][j], u[v][j], products);
      }
    }
    const float slope = own.rstd * own.rstd * (block_sum(products) / static_cast<float>(of.size));
    const int64_t place = row * width + first_column;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= of.size) continue;
      float x[8], z[8], dx[8], dz[8];
      own.x[v].to_floats(x);
      own.z[v].to_floats(z);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float gate = sigmoid<T>(z[j]), du = own.rstd * (g[v][j] - u[v][j] * slope);
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
      using Group = decltype(group);
      const auto kernel = size <= int64_t{kHeld} * 8 * Group::kThreads ? forward_kernel<Group, true, T>
                                                                       : forward_kernel<Group, false, T>;
      kernel<<<grid, kRowThreads, 0, ctx.stream>>>(
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
    constexpr int kHalf = kRowThreads / 2;  // no idle threads for the common group of 1,024
    switch (ceil_div(of.size, int64_t{8} * kHalf)) {
      case 1:
        backward_kernel<kHalf, 1, T><<<grid, kHalf, 0, ctx.stream>>>(of);
        break;
      case 2:
        backward_kernel<kRowThreads, 1, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
        break;
      case 3:
      case 4:
        backward_kernel<kRowThreads, 2, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
        break;
      default:
        backward_kernel<kRowThreads, 4, T><<<grid, kRowThreads, 0, ctx.stream>>>(of);
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  add_partials_kernel<<<grid_size(ceil_div(width, int64_t{kRowThreads})), kRowThreads, 0, ctx.stream>>>(
      partials.data<float>(), args.dgain.data<float>(), partials.dim(0), width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
