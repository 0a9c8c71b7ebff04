// Gates of rows (ops/contracts/activation.h), memory-bound: every element is read and written once.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

template <class T>
struct Sigmoid {
  static __device__ float forward(float gate) { return sigmoid<T>(gate); }
  static __device__ float slope(float gate) {
    const float open = sigmoid<T>(gate);
    return open * (1.0F - open);
  }
};
template <class T>
struct Silu {
  static __device__ float forward(float gate) { return gate * sigmoid<T>(gate); }
  static __device__ float slope(float gate) {
    const float open = sigmoid<T>(gate);
    return open * (1.0F + gate * (1.0F - open));
  }
};

// Rows of gates lie `gate_stride` apart.
template <class Group, class Function, class T>
__global__ void __launch_bounds__(kRowThreads) forward_kernel(const T* xs, const T* gates, int64_t gate_stride, T* ys,
                                                              int64_t num_rows, int64_t width, bool vector) {
  const int64_t row = Group::row();
  if (row >= num_rows) return;  // all of the row's threads
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float x[8], gate[8];
    load8(xs + row * width, i, width, vector, x);
    load8(gates + row * gate_stride, i, width, vector, gate);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= Function::forward(gate[j]);
    store8(ys + row * width, i, width, vector, x);
  }
}

// dx may be dy: a thread reads the elements that it then writes, and no other does.
template <class Group, class Function, class T>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(const T* xs, const T* gates, int64_t gate_stride, const T* dys, T* dxs, T* dgates,
                    int64_t dgate_stride, int64_t num_rows, int64_t width, bool vector) {
  const int64_t row = Group::row();
  if (row >= num_rows) return;  // all of the row's threads
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float x[8], gate[8], dy[8];
    load8(xs + row * width, i, width, vector, x);
    load8(gates + row * gate_stride, i, width, vector, gate);
    load8(dys + row * width, i, width, vector, dy);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] *= dy[j] * Function::slope(gate[j]);
      dy[j] *= Function::forward(gate[j]);
    }
    store8(dxs + row * width, i, width, vector, dy);
    store8(dgates + row * dgate_stride, i, width, vector, x);
  }
}

// Calls fn with the gate's function, a row group and the grid, for rows of x.
template <class Fn>
void dispatch(GateFunction function, const Tensor& x, const Fn& fn) {
  if (x.num_elements() == 0) return;
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(x.dim(0), x.dim(1), [&](auto group, unsigned grid) {
      function == GateFunction::kSilu ? fn(Silu<T>{}, element, group, grid) : fn(Sigmoid<T>{}, element, group, grid);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void gate_forward(Context& ctx, const GateForward& args) {
  const int64_t width = args.x.dim(1);
  dispatch(args.function, args.x, [&](auto function, auto element, auto group, unsigned grid) {
    using T = decltype(element);
    forward_kernel<decltype(group), decltype(function), T><<<grid, kRowThreads, 0, ctx.stream>>>(
        args.x.data<T>(), args.gate.rows_data<T>(), args.gate.stride(), args.y.data<T>(), args.x.dim(0), width,
        can_vectorise(width, args.x, args.gate, args.y));
  });
}

void gate_backward(Context& ctx, const GateBackward& args) {
  const int64_t width = args.x.dim(1);
  dispatch(args.function, args.x, [&](auto function, auto element, auto group, unsigned grid) {
    using T = decltype(element);
    backward_kernel<decltype(group), decltype(function), T><<<grid, kRowThreads, 0, ctx.stream>>>(
        args.x.data<T>(), args.gate.rows_data<T>(), args.gate.stride(), args.dy.data<T>(), args.dx.data<T>(),
        args.dgate.rows_data<T>(), args.dgate.stride(), args.x.dim(0), width,
        can_vectorise(width, args.x, args.gate, args.dy, args.dx, args.dgate));
  });
}

}  // namespace nmoe::cuda
