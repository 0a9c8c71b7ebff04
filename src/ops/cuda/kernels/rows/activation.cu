// SwiGLU and squared ReLU, memory-bound: every element is read and written once. Rows of width F; SwiGLU's
// pre-activations are 2F wide, gate then up. The grid is for the capacity of rows; those beyond the number that is
// there end at once. Codes in FP8 are made of what is written, before it leaves: sixteen threads have a block. Where
// nobody reads it but as codes, it does not leave. Backward has in registers what forward made, for who lost it.
// Pre-activations that wait as codes are written as such by forward, and read as such by backward.
#include "ops/cuda/kernels/low_precision/quantize_fp8_columns.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

// How many rows there are: `count` where it is not null, but no more than the capacity.
__device__ int64_t num_rows_of(const int32_t* count, int64_t capacity) {
  return count == nullptr ? capacity : min(static_cast<int64_t>(*count), capacity);
}

// Of a thread in its row, of which a block has every gridDim.y-th part.
template <class Group>
__device__ int64_t first_column() {
  return (static_cast<int64_t>(blockIdx.y) * Group::kThreads + Group::thread()) * 8;
}

template <class Group, class A, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const T* pres, const float* weights, T* hs, const int32_t* count, int64_t capacity, int64_t width,
                   bool vector, CodeRows codes, CodeRows pre_codes) {
  begin_behind_work_before();
  const int64_t row = Group::row();
  if (row >= num_rows_of(count, capacity)) return;  // all of the row's threads
  const float weight = weights != nullptr ? weights[row] : 1.0F;
  for (int64_t i = first_column<Group>(); i < width; i += Group::kThreads * 8 * gridDim.y) {
    float pre[A::kParts][8], h[8];
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) {
      load8(pres + (row * A::kParts + part) * width, i, width, vector, pre[part]);
      if (pre_codes.values != nullptr) pre_codes.store8<T>(row, part * width + i, pre[part]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) h[j] = activated<T, A>(pre, j) * weight;
    if (hs != nullptr) store8(hs + row * width, i, width, vector, h);
    if (codes.values != nullptr) codes.store8<T>(row, i, h);
  }
}

// dpre may be pre: a thread reads the elements that it then writes, and no other does. hs: null where h is not wanted;
// pre_codes: null where pre is read itself.
template <class Group, class A, class T>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(const T* pres, const float* weights, const T* dhs, T* dpres, float* dweights, T* hs,
                    const int32_t* count, int64_t capacity, int64_t width, bool vector, CodeRows codes,
                    CodedValues pre_codes) {
  const int64_t row = Group::row();
  if (row >= num_rows_of(count, capacity)) return;  // all of the row's threads
  const float weight = weights != nullptr ? weights[row] : 1.0F;
  float dweight = 0.0F;
  for (int64_t i = first_column<Group>(); i < width; i += Group::kThreads * 8 * gridDim.y) {
    float pre[A::kParts][8], dh[8], dpre[A::kParts][8];
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) {
      if (pre_codes.values != nullptr) {
        pre_codes.load8(row, part * width + i, pre[part]);
      } else {
        load8(pres + (row * A::kParts + part) * width, i, width, vector, pre[part]);
      }
    }
    load8(dhs + row * width, i, width, vector, dh);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const UnitGradient<A::kParts> d = activation_gradient<T, A>(pre, j, weight, dh[j]);
      dweight += d.weight;
#pragma unroll
      for (int part = 0; part < A::kParts; ++part) dpre[part][j] = d.pre[part];
    }
    if (hs != nullptr) {
      float h[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) h[j] = activated<T, A>(pre, j) * weight;
      store8(hs + row * width, i, width, vector, h);
    }
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) {
      store8(dpres + (row * A::kParts + part) * width, i, width, vector, dpre[part]);
      if (codes.values != nullptr) codes.store8<T>(row, part * width + i, dpre[part]);
    }
  }
  if (dweights == nullptr) return;  // for all threads alike
  dweight = Group::sum(dweight);
  if (Group::thread() == 0) dweights[row] = dweight;
}

// Calls fn with the row group for rows of `width`, and the grid. Where there are many, blocks of which each has a wide
// one would come and go with two turns of their loop. Unless a row is summed, a thread has 8 columns of it.
template <class Fn>
void dispatch_activation_rows(int64_t num_rows, int64_t width, bool sums_rows, const Fn& fn) {
  constexpr int64_t kManyRows = 4096;
  const auto with_parts = [&](auto group, unsigned blocks) {
    const int64_t parts = sums_rows ? 1 : ceil_div(width, decltype(group)::kThreads * 8);
    fn(group, dim3(blocks, short_grid_size(parts)));
  };
  using WarpRows = RowGroup<kWarp>;
  if (num_rows < kManyRows || width <= kWarpRowWidth) return dispatch_rows(num_rows, width, with_parts);
  with_parts(WarpRows{}, grid_size(ceil_div(num_rows, WarpRows::kRowsPerBlock)));
}

// Calls fn with an element, a row group, the activation, and the grid.
template <class Fn>
void dispatch(Activation kind, Tensor h, bool sums_rows, const Fn& fn) {
  dispatch_act(h.dtype(), [&](auto element) {
    dispatch_activation_rows(h.dim(0), h.dim(1), sums_rows, [&](auto group, dim3 grid) {
      dispatch_activation(kind, [&](auto activation) { fn(element, group, activation, grid); });
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void activation_forward(Context& ctx, const ActivationForward& args) {
  if (args.h_columns.defined()) {
    return activation_fp8_columns(ctx, {.kind = args.kind,
                                        .pre = args.pre,
                                        .pre_codes = {},
                                        .row_weight = args.row_weight,
                                        .offsets = args.offsets,
                                        .columns = args.h_columns});
  }
  const Tensor pre = args.pre, h = args.h;
  if (h.num_elements() == 0) return;
  const int64_t width = h.dim(1);
  const bool with_codes = makes_codes(h, 1, args.h_codes);
  const CodeRows codes = with_codes ? code_rows(h, args.h_codes) : CodeRows{};
  const bool with_pre_codes = makes_codes(pre, pre.dim(1) / width, args.pre_codes);
  const CodeRows pre_codes = with_pre_codes ? code_rows(pre, args.pre_codes) : CodeRows{};
  dispatch(args.kind, h, /*sums_rows=*/false, [&](auto element, auto group, auto activation, dim3 grid) {
    using T = decltype(element);
    launch_early(ctx, forward_kernel<decltype(group), decltype(activation), T>, grid, kRowThreads, 0, pre.data<T>(),
                 args.row_weight.data_or_null<float>(), with_codes && !args.keeps_h ? nullptr : h.data<T>(),
                 args.num_rows.data_or_null<int32_t>(), h.dim(0), width, can_vectorise(width, pre, h), codes,
                 pre_codes);
  });
  if (args.h_codes.defined() && !with_codes) quantize(ctx, quantize_rows(h, args.h_codes, args.num_rows));
  if (args.pre_codes.defined() && !with_pre_codes) quantize(ctx, quantize_rows(pre, args.pre_codes, args.num_rows));
}

void activation_backward(Context& ctx, const ActivationBackward& args) {
  const Tensor pre = args.pre, dh = args.dh, dpre = args.dpre;
  if (dh.dim(0) == 0) return;
  const int64_t width = dh.dim(1);
  const bool with_codes = makes_codes(dpre, dpre.dim(1) / width, args.dpre_codes);
  const CodeRows codes = with_codes ? code_rows(dpre, args.dpre_codes) : CodeRows{};
  const bool reads_codes = args.pre_codes.defined() && width % 8 == 0 && in_eights(args.pre_codes, pre);
  if (args.pre_codes.defined() && !reads_codes) {
    widen_rows(ctx, {.codes = args.pre_codes, .x = pre, .num_rows = args.num_rows});
  }
  const CodedValues pre_codes = reads_codes ? coded_values(args.pre_codes) : CodedValues{};
  dispatch(args.kind, dh, args.drow_weight.defined(), [&](auto element, auto group, auto activation, dim3 grid) {
    using T = decltype(element);
    backward_kernel<decltype(group), decltype(activation), T><<<grid, kRowThreads, 0, ctx.stream>>>(
        pre.data<T>(), args.row_weight.data_or_null<float>(), dh.data<T>(), dpre.data<T>(),
        args.drow_weight.data_or_null<float>(), args.h.data_or_null<T>(), args.num_rows.data_or_null<int32_t>(),
        dh.dim(0), width, can_vectorise(width, pre, dh, dpre, args.h.defined() ? args.h : dh), codes, pre_codes);
  });
  if (args.dpre_codes.defined() && !with_codes) quantize(ctx, quantize_rows(dpre, args.dpre_codes, args.num_rows));
}

}  // namespace nmoe::cuda
