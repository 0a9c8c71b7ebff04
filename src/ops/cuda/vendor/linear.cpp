// Dense linear layers: products by cuBLASLt (cublaslt.h), forward ones of BF16 where it keeps their order of sums
// (product_order.h), those of F32 by generation's kernel (invariant_products.h); of FP8 operands by sm90/grouped_fp8.h,
// of blocks by sm100/rounded_products.h.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/sm100/rounded_products.h"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/cuda/vendor/cublaslt.h"
#include "ops/cuda/vendor/product_order.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};
constexpr bool kHasSm90 = kKernels.has_sm90(), kHasSm100 = kKernels.has_sm100();

// d [rows, cols] = op(a) [rows, depth] op(b) [depth, cols] + c; all row-major and dense, op transposes or does not.
struct Product {
  Tensor a;
  bool transpose_a;
  Tensor b;
  bool transpose_b;
  Tensor c;  // may be d; undefined: not added
  Tensor d;
  Tensor scale;  // OperandRounding::product_scale
};

GemmProblem problem_of(const Product& p) {
  const int64_t rows = p.a.dim(p.transpose_a ? 1 : 0), depth = p.a.dim(p.transpose_a ? 0 : 1);
  const int64_t cols = p.b.dim(p.transpose_b ? 0 : 1);
  return {.rows = rows,
          .cols = cols,
          .depth = depth,
          .input = p.a.dtype(),
          .output = p.d.dtype(),
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .device_scales = p.scale.defined(),
          .align_a = address_alignment(p.a.raw()),
          .align_b = address_alignment(p.b.raw()),
          .align_d = std::min(address_alignment(p.d.raw()), address_alignment((p.c.defined() ? p.c : p.d).raw())),
          .workspace_bytes = kProductWorkspaceBytes};
}

void multiply(Context& ctx, const Product& p, const Tensor& workspace) {
  const GemmProblem problem = problem_of(p);
  if (problem.rows == 0 || problem.cols == 0) return;
  if (problem.depth == 0) {  // an empty sum
    const auto num_bytes = static_cast<size_t>(p.d.num_bytes());
    if (!p.c.defined()) {
      NMOE_CUDA_CHECK(cudaMemsetAsync(p.d.raw(), 0, num_bytes, ctx.stream));
    } else if (p.c.raw() != p.d.raw()) {
      NMOE_CUDA_CHECK(cudaMemcpyAsync(p.d.raw(), p.c.raw(), num_bytes, cudaMemcpyDeviceToDevice, ctx.stream));
    }
    return;
  }
  // Of cuBLASLt's algorithms for F32 no order is known.
  const bool is_f32_forward = problem.input == DType::kF32 && !p.transpose_a && p.transpose_b;
  if (is_f32_forward && !problem.device_scales) return invariant_product(ctx, p.a, p.b, p.c, p.d);
  const GemmOperands operands{.a = p.a.raw(),
                              .b = p.b.raw(),
                              .c = p.c.defined() ? p.c.raw() : nullptr,
                              .d = p.d.raw(),
                              .workspace = workspace.raw(),
                              .beta = p.c.defined() ? 1.0F : 0.0F,
                              .scales = p.scale.data_or_null<float>()};
  if (!has_one_order(problem)) return ctx.cublas_lt.multiply(problem, operands, ctx.stream);
  // NOTE: in place cuBLASLt may round the product to BF16 before it is added to what lies there.
  if (operands.c == operands.d && problem.output == DType::kBF16) return invariant_product(ctx, p.a, p.b, p.c, p.d);
  const auto check = [&](const GemmProblem& of, const ProductAlgorithm& algorithm) {
    return order_of_sums(ctx, of, algorithm, workspace.raw());
  };
  if (ctx.cublas_lt.multiply_in_order(problem, operands, ctx.stream, check)) return;
  invariant_product(ctx, p.a, p.b, p.c, p.d);
}

// The product of FP8 operands: w [1, cols, depth] in codes.
void multiply_fp8(Context& ctx, const OperandRounding& rounding, Tensor x, Tensor w, Tensor w_scales, Tensor addend,
                  Tensor y, const RowCodes& room) {
  if (y.num_elements() == 0) return;
  NMOE_CHECK(y.dtype() == DType::kBF16, "a product of FP8 operands into {}", dtype_name(y.dtype()));
  if constexpr (kHasSm90) {
    sm90::grouped_fp8(ctx, {.x = product_codes(ctx, rounding, x, /*num_rows=*/{}, room),
                            .w = w,
                            .w_scales = w_scales,
                            .offsets = {},
                            .y = y,
                            .addend = addend});
  }
}

}  // namespace

void linear_forward(Context& ctx, const LinearForward& args, const LinearPlan& plan) {
  if (plan.engine == LinearEngine::kCodes) {
    const WeightCodes& w = args.rounding.weight;
    return multiply_fp8(ctx, args.rounding, args.x, w.values, w.scales, args.addend, args.y, plan.codes);
  }
  if constexpr (kHasSm100) {
    if (plan.engine == LinearEngine::kBlocks) return sm100::rounded_product(ctx, args, plan.blocks);
  }
  multiply(
      ctx,
      {args.x, /*transpose_a=*/false, args.w, /*transpose_b=*/true, args.addend, args.y, args.rounding.product_scale},
      plan.workspace);
}

void linear_activation_forward(Context& ctx, const LinearActivationForward& args, const LinearPlan& plan) {
  linear_forward(ctx, {.x = args.x, .w = args.w, .y = args.pre, .addend = {}, .rounding = args.rounding}, plan);
  activation_forward(ctx, {.kind = args.kind,
                           .pre = args.pre,
                           .h = args.h,
                           .h_codes = args.h_codes,
                           .keeps_h = args.keeps_h,
                           .pre_codes = args.pre_codes});
}

void linear_backward_input(Context& ctx, const LinearBackwardInput& args, const LinearPlan& plan) {
  const Tensor addend = args.accumulate ? args.dx : Tensor();
  if (plan.engine == LinearEngine::kCodes) {
    const WeightCodes& w = args.rounding.weight;
    return multiply_fp8(ctx, args.rounding, args.dy, w.transposed_values, w.transposed_scales, addend, args.dx,
                        plan.codes);
  }
  if constexpr (kHasSm100) {
    if (plan.engine == LinearEngine::kBlocks) return sm100::rounded_product(ctx, args, plan.blocks);
  }
  multiply(
      ctx,
      {args.dy, /*transpose_a=*/false, args.w, /*transpose_b=*/false, addend, args.dx, args.rounding.product_scale},
      plan.workspace);
}

void linear_backward_weight(Context& ctx, const LinearBackwardWeight& args, const LinearPlan& plan) {
  const Tensor addend = args.accumulate ? args.dw : Tensor();
  if constexpr (kHasSm100) {
    if (plan.engine == LinearEngine::kBlocks) return sm100::rounded_product(ctx, args, plan.blocks);
  }
  multiply(ctx,
           {args.dy, /*transpose_a=*/true, args.x, /*transpose_b=*/false, addend, args.dw, args.rounding.product_scale},
           plan.workspace);
}

}  // namespace nmoe::cuda
