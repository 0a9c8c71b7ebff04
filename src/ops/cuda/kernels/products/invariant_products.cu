// y = x w^T with one order of summation for every number of rows, and the experts' or an MLP's first layer, whose
// activation is applied where the sums are.
//
// BF16 in whole 16 bytes: tensor cores (invariant_product.cuh), by one kernel for few rows and one for many. Else, and
// in fp32: a warp for a value of up to eight tokens, lanes along k (ops/contracts/linear.h, "Order of sums").
#include "ops/cuda/kernels/experts/expert_bias.h"
#include "ops/cuda/kernels/products/invariant_product.cuh"
#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

using namespace invariant;

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTokens = 8;  // of a warp

template <class T, class Out>
__global__ void __launch_bounds__(kThreads) plain_kernel(Product<T, Out> all) {
  const Product<T, Out> p = own_batch(all);
  begin_behind_work_before();
  const Work<T> work = find_work(p, kTokens);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = work.column_tile * kWarps + warp;
  if (column >= p.width) return;
  const T* w = work.w + static_cast<int64_t>(column) * p.depth;
  for (int tile = work.row_begin; tile < work.row_end; tile += kTokens) {
    float sums[kTokens] = {};
    for (int k = lane * 8; k < p.depth; k += kWarp * 8) {
      float weights[8];
      load8(w, k, p.depth, p.vector, weights);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (tile + t >= work.row_end) continue;
        float values[8];
        load8(row_of_x(p, tile + t), k, p.depth, p.vector, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t] = fmaf(values[i], weights[i], sums[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[t]);
      if (lane == 0 && tile + t < work.row_end) store(p, tile + t, column, sum);
    }
  }
}

template <class A, class Out>
void run_mma(Context& ctx, const Product<Bf16, Out>& p) {
  // Of experts, by how many rows one has on average: it may have more.
  if (p.num_rows <= (p.offsets == nullptr ? kFewRows : kFewExpertRows * p.num_experts)) return few_rows<A>(ctx, p);
  many_rows<A>(ctx, p);
}

template <class T, class Out>
Product<T, Out> product_of(const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  const int64_t num_rows = x.num_rows(), width = y.dim(1), depth = x.width();
  NMOE_CHECK(num_rows <= INT32_MAX && width <= INT32_MAX / 2 && depth <= INT32_MAX / 2, "a product of {} and {}",
             x.source.shape(), w.shape());
  return {.x = x.source.data<T>(),
          .index = x.index.data_or_null<int32_t>(),
          .w = w.data<T>(),
          .addend = addend.data_or_null<Out>(),
          .offsets = offsets.data_or_null<int32_t>(),
          .y = y.data<Out>(),
          .row_weight = nullptr,
          .h = nullptr,
          .x_stride = depth,
          .y_stride = width,
          .x_step = 0,
          .w_step = 0,
          .y_step = 0,
          .num_rows = static_cast<int>(num_rows),
          .width = static_cast<int>(width),
          .depth = static_cast<int>(depth),
          .num_experts = offsets.defined() ? static_cast<int>(w.dim(0)) : 1,
          .num_batches = 1,
          .hidden = 0,
          .vector = can_vectorise(depth, x.source, w)};
}

template <class T, class Out>
void run_product(Context& ctx, const Product<T, Out>& product) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (product.vector) return run_mma<NoActivation>(ctx, product);
  }
  launch_early(ctx, plain_kernel<T, Out>, grid_of(product, kWarps, kTokens), kThreads, 0, product);
}

void dispatch(Context& ctx, const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  NMOE_CHECK(w.dtype() == x.source.dtype() && (y.dtype() == w.dtype() || y.dtype() == DType::kF32),
             "product of {} and {} into {}", dtype_name(x.source.dtype()), dtype_name(w.dtype()),
             dtype_name(y.dtype()));
  const auto run = [&]<class T, class Out>() { run_product(ctx, product_of<T, Out>(x, w, addend, offsets, y)); };
  dispatch_act(w.dtype(), [&](auto element) {
    using T = decltype(element);
    if (y.dtype() == DType::kF32) {
      run.template operator()<T, float>();
    } else {
      run.template operator()<T, T>();
    }
  });
}

}  // namespace

void invariant_product(Context& ctx, Tensor x, Tensor w, Tensor addend, Tensor y) {
  dispatch(ctx, x, w, addend, {}, y);
}

void invariant_grouped_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor y) {
  dispatch(ctx, x, w, {}, offsets, y);
}

void invariant_batched_product(Context& ctx, Tensor x, Tensor w, Tensor y) {
  const int64_t rows = x.dim(0), batches = x.dim(1), depth = x.dim(2), width = y.dim(2);
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    run_product(ctx, Product<T, T>{.x = x.data<T>(),
                                   .index = nullptr,
                                   .w = w.rows_data<T>(),
                                   .addend = nullptr,
                                   .offsets = nullptr,
                                   .y = y.data<T>(),
                                   .row_weight = nullptr,
                                   .h = nullptr,
                                   .x_stride = batches * depth,
                                   .y_stride = batches * width,
                                   .x_step = depth,
                                   .w_step = w.stride(),
                                   .y_step = width,
                                   .num_rows = static_cast<int>(rows),
                                   .width = static_cast<int>(width),
                                   .depth = static_cast<int>(depth),
                                   .num_experts = 1,
                                   .num_batches = static_cast<int>(batches),
                                   .hidden = 0,
                                   .vector = can_vectorise(depth, x, w)});
  });
}

void invariant_activation(Context& ctx, const GroupedActivationForward& args) {
  const int64_t hidden = args.h.dim(1);
  if (args.w.dtype() == DType::kBF16 && args.pre.dtype() == DType::kBF16 && !args.bias.defined()) {
    auto product = product_of<Bf16, Bf16>(args.x, args.w, {}, args.offsets, args.pre);
    if (product.vector) {
      product.row_weight = args.row_weight.data_or_null<float>();
      product.h = args.h.data<Bf16>();
      product.hidden = static_cast<int>(hidden);
      return dispatch_activation(args.kind, [&]<class A>(A) { run_mma<A>(ctx, product); });
    }
  }
  dispatch(ctx, args.x, args.w, {}, args.offsets, args.pre);
  add_expert_bias(ctx, args.bias, args.offsets, args.pre);
  const bool grouped = args.offsets.defined();
  const int64_t num_experts = grouped ? args.w.dim(0) : 0;  // the last offset is the number of rows
  activation_forward(ctx, {.kind = args.kind,
                           .pre = args.pre,
                           .row_weight = args.row_weight,
                           .h = args.h,
                           .num_rows = grouped ? args.offsets.rows(num_experts, num_experts + 1) : Tensor()});
}

}  // namespace nmoe::cuda
