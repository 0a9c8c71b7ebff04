// Dense linear layers: products by cuBLASLt (cublaslt.h).
#include "base/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/scratch.h"
#include "ops/cuda/vendor/cublaslt.h"

namespace nmoe::cuda {
namespace {

// c [rows, cols] = op(a) [rows, depth] op(b) [depth, cols], or +=; all row-major and dense, op transposes or does not.
struct Product {
  Tensor a;
  bool transpose_a;
  Tensor b;
  bool transpose_b;
  Tensor c;
  bool accumulate;
};

GemmProblem problem_of(const Product& p) {
  const int64_t rows = p.a.dim(p.transpose_a ? 1 : 0), depth = p.a.dim(p.transpose_a ? 0 : 1);
  const int64_t cols = p.b.dim(p.transpose_b ? 0 : 1), depth_b = p.b.dim(p.transpose_b ? 1 : 0);
  const DType input = p.a.dtype(), output = p.c.dtype();
  NMOE_CHECK(depth == depth_b && p.c.shape() == Shape({rows, cols}), "product of {}{} and {}{} into {}", p.a.shape(),
             p.transpose_a ? " transposed" : "", p.b.shape(), p.transpose_b ? " transposed" : "", p.c.shape());
  NMOE_CHECK(p.b.dtype() == input && (input == DType::kF32 || input == DType::kBF16) &&
                 (output == DType::kF32 || output == input),
             "product of {} and {} into {}", dtype_name(input), dtype_name(p.b.dtype()), dtype_name(output));
  return {.rows = rows,
          .cols = cols,
          .depth = depth,
          .input = input,
          .output = output,
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .align_a = address_alignment(p.a.raw()),
          .align_b = address_alignment(p.b.raw()),
          .align_d = address_alignment(p.c.raw()),
          .workspace_bytes = kProductWorkspaceBytes};
}

void multiply(Context& ctx, const Product& p) {
  const GemmProblem problem = problem_of(p);
  ArenaScope scope(ctx.scratch);
  const Tensor workspace = claim_product_workspace(scope);
  if (ctx.counting() || problem.rows == 0 || problem.cols == 0) return;
  if (problem.depth == 0) {  // an empty sum
    if (!p.accumulate) NMOE_CUDA_CHECK(cudaMemsetAsync(p.c.raw(), 0, static_cast<size_t>(p.c.num_bytes()), ctx.stream));
    return;
  }
  ctx.cublas_lt.multiply(problem,
                         {.a = p.a.raw(),
                          .b = p.b.raw(),
                          .d = p.c.raw(),
                          .workspace = workspace.raw(),
                          .beta = p.accumulate ? 1.0F : 0.0F},
                         ctx.stream);
}

}  // namespace

void linear_forward(Context& ctx, const LinearForward& args) {
  multiply(ctx, {args.x, /*transpose_a=*/false, args.w, /*transpose_b=*/true, args.y, args.accumulate});
}

void linear_backward_input(Context& ctx, const LinearBackwardInput& args) {
  multiply(ctx, {args.dy, /*transpose_a=*/false, args.w, /*transpose_b=*/false, args.dx, args.accumulate});
}

void linear_backward_weight(Context& ctx, const LinearBackwardWeight& args) {
  NMOE_CHECK(args.dw.dtype() == DType::kF32, "the gradient of a weight is {}", dtype_name(args.dw.dtype()));
  multiply(ctx, {args.dy, /*transpose_a=*/true, args.x, /*transpose_b=*/false, args.dw, args.accumulate});
}

}  // namespace nmoe::cuda
