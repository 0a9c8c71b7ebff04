#include "ops/cuda/vendor/linear.h"

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>

#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA recommends for Hopper

void check_cublas(cublasStatus_t status, const char* call) {
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS, "{}: {}", call, cublasLtGetStatusString(status));
}
#define NMOE_CUBLAS_CHECK(call) check_cublas((call), #call)

// c [rows, cols] = op(a) [rows, depth] op(b) [depth, cols], or +=; all row-major and dense, op transposes or does not.
struct Product {
  Tensor a;
  bool transpose_a;
  Tensor b;
  bool transpose_b;
  Tensor c;
  bool accumulate;
};

// All that an algorithm is chosen by.
struct ProductKey {
  int64_t rows, cols, depth;
  DType input, output;
  bool transpose_a, transpose_b, accumulate;
  uint32_t align_a, align_b, align_c;  // bytes

  auto operator<=>(const ProductKey&) const = default;
};

// A product in cuBLASLt's terms, which are column-major: what is [rows, cols] here is [cols, rows] there, so that
// c^T = op(b)^T op(a)^T is what it computes.
struct Plan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t first{}, second{}, result{};
  cublasLtMatmulAlgo_t algorithm{};
};

// The power of two that divides the address, 256 at most.
uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p) | 256U;
  return static_cast<uint32_t>(address & -address);
}

ProductKey key_of(const Product& p) {
  const int64_t rows = p.a.dim(p.transpose_a ? 1 : 0), depth = p.a.dim(p.transpose_a ? 0 : 1);
  const int64_t cols = p.b.dim(p.transpose_b ? 0 : 1), depth_b = p.b.dim(p.transpose_b ? 1 : 0);
  const DType input = p.a.dtype(), output = p.c.dtype();
  NMOE_CHECK(depth == depth_b && p.c.shape() == Shape({rows, cols}), "product of {}{} and {}{} into {}", p.a.shape(),
             p.transpose_a ? " transposed" : "", p.b.shape(), p.transpose_b ? " transposed" : "", p.c.shape());
  NMOE_CHECK(p.b.dtype() == input && (input == DType::kF32 || input == DType::kBF16) &&
                 (output == DType::kF32 || output == input),
             "product of {} and {} into {}", dtype_name(input), dtype_name(p.b.dtype()), dtype_name(output));
  return {rows,
          cols,
          depth,
          input,
          output,
          p.transpose_a,
          p.transpose_b,
          p.accumulate,
          alignment_of(p.a.raw()),
          alignment_of(p.b.raw()),
          alignment_of(p.c.raw())};
}

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

// A row-major [rows, cols] matrix.
void describe(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t cols) {
  NMOE_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, cuda_type(dtype), static_cast<uint64_t>(cols),
                                             static_cast<uint64_t>(rows), cols));
}

template <class T>
void set_preference(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  NMOE_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
}

Plan make_plan(cublasLtHandle_t cublas, const ProductKey& key) {
  Plan plan;
  NMOE_CUBLAS_CHECK(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t first = key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  NMOE_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
  NMOE_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
  describe(plan.first, key.input, key.transpose_b ? key.cols : key.depth, key.transpose_b ? key.depth : key.cols);
  describe(plan.second, key.input, key.transpose_a ? key.depth : key.rows, key.transpose_a ? key.rows : key.depth);
  describe(plan.result, key.output, key.rows, key.cols);

  cublasLtMatmulPreferenceOpaque_t preference;
  NMOE_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  set_preference<uint64_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // The parts of a split sum meet in the workspace, as F32 and in one order; the other schemes use atomics or round.
  set_preference<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);

  cublasLtMatmulHeuristicResult_t found{};
  int num_found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      cublas, &plan.product, &plan.first, &plan.second, &plan.result, &plan.result, &preference, 1, &found, &num_found);
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS && num_found == 1,
             "cuBLASLt has no algorithm for a product [{}, {}] x [{}, {}] of {} into {}: {}", key.rows, key.depth,
             key.depth, key.cols, dtype_name(key.input), dtype_name(key.output), cublasLtGetStatusString(status));
  plan.algorithm = found.algo;
  return plan;
}

// A copy, for cuBLASLt takes no const descriptions.
Plan plan_of(cublasLtHandle_t cublas, const ProductKey& key) {
  static std::mutex mutex;
  static std::map<ProductKey, Plan> plans;
  const std::lock_guard lock(mutex);
  const auto known = plans.find(key);
  return known != plans.end() ? known->second : plans.emplace(key, make_plan(cublas, key)).first->second;
}

void multiply(Context& ctx, const Product& p) {
  const ProductKey key = key_of(p);
  ArenaScope scope(ctx.scratch);
  const Tensor workspace = scope.allocate(DType::kU8, {kWorkspaceBytes});
  if (ctx.counting() || key.rows == 0 || key.cols == 0) return;
  if (key.depth == 0) {  // an empty sum
    if (!p.accumulate) NMOE_CUDA_CHECK(cudaMemsetAsync(p.c.raw(), 0, static_cast<size_t>(p.c.num_bytes()), ctx.stream));
    return;
  }
  Plan plan = plan_of(ctx.cublas, key);
  const float one = 1.0F, beta = p.accumulate ? 1.0F : 0.0F;
  NMOE_CUBLAS_CHECK(cublasLtMatmul(ctx.cublas, &plan.product, &one, p.b.raw(), &plan.first, p.a.raw(), &plan.second,
                                   &beta, p.c.raw(), &plan.result, p.c.raw(), &plan.result, &plan.algorithm,
                                   workspace.raw(), static_cast<size_t>(kWorkspaceBytes), ctx.stream));
}

}  // namespace

void linear_forward(Context& ctx, Tensor x, Tensor w, Tensor y, bool accumulate) {
  multiply(ctx, {x, /*transpose_a=*/false, w, /*transpose_b=*/true, y, accumulate});
}

void linear_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor dx, bool accumulate) {
  multiply(ctx, {dy, /*transpose_a=*/false, w, /*transpose_b=*/false, dx, accumulate});
}

void linear_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor dw, bool accumulate) {
  NMOE_CHECK(dw.dtype() == DType::kF32, "the gradient of a weight is {}", dtype_name(dw.dtype()));
  multiply(ctx, {dy, /*transpose_a=*/true, x, /*transpose_b=*/false, dw, accumulate});
}

}  // namespace nmoe::cuda
