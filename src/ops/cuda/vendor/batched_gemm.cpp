// cuBLASLt's matrices are column-major: what is row-major here is the transpose there. So it is asked for
// d^T = op(b)^T op(a)^T, in which b comes first, m and n change places, and no transposition is added or lost.
#include "ops/cuda/vendor/batched_gemm.h"

#include <memory>
#include <type_traits>

namespace nmoe::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* what, const BatchedGemm& product) {
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS, "{}: {}, for {} products of [{}, {}] and [{}, {}]", what,
             cublasLtGetStatusString(status), product.batch, product.m, product.k, product.k, product.n);
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t handle) const { cublasLtMatmulDescDestroy(handle); }
  void operator()(cublasLtMatrixLayout_t handle) const { cublasLtMatrixLayoutDestroy(handle); }
  void operator()(cublasLtMatmulPreference_t handle) const { cublasLtMatmulPreferenceDestroy(handle); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

// A stack of column-major [rows, cols] matrices without gaps.
Owned<cublasLtMatrixLayout_t> make_layout(const BatchedGemm& product, int64_t rows, int64_t cols) {
  cublasLtMatrixLayout_t handle = nullptr;
  check_cublas(
      cublasLtMatrixLayoutCreate(&handle, CUDA_R_32F, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows),
      "cublasLtMatrixLayoutCreate", product);
  Owned<cublasLtMatrixLayout_t> layout(handle);
  const auto batch = static_cast<int32_t>(product.batch);
  const int64_t stride = rows * cols;
  check_cublas(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
               "batch count", product);
  check_cublas(
      cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
      "batch stride", product);
  return layout;
}

Owned<cublasLtMatmulDesc_t> make_description(const BatchedGemm& product) {
  cublasLtMatmulDesc_t handle = nullptr;
  check_cublas(
      cublasLtMatmulDescCreate(&handle, product.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "cublasLtMatmulDescCreate", product);
  Owned<cublasLtMatmulDesc_t> description(handle);
  const cublasOperation_t first = product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_cublas(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
               "transposition", product);
  check_cublas(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
               "transposition", product);
  return description;
}

Owned<cublasLtMatmulPreference_t> make_preference(const BatchedGemm& product) {
  cublasLtMatmulPreference_t handle = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate", product);
  Owned<cublasLtMatmulPreference_t> preference(handle);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof value), "preference", product);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  // Partial products go through the workspace, in order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  // Every matrix of the stacks begins at a multiple of 16 bytes, or only the first does.
  const bool aligned = product.batch == 1 || (product.m * product.k % 4 == 0 && product.k * product.n % 4 == 0 &&
                                              product.m * product.n % 4 == 0);
  const uint32_t alignment = aligned ? 16 : sizeof(float);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  return preference;
}

}  // namespace

void batched_gemm(const Context& ctx, const BatchedGemm& product, void* workspace) {
  const int64_t batch = product.batch, m = product.m, n = product.n, k = product.k;
  NMOE_CHECK(batch > 0 && batch <= INT32_MAX && m > 0 && n > 0 && k > 0, "{} products of [{}, {}] and [{}, {}]", batch,
             m, k, k, n);
  const auto description = make_description(product);
  const auto first = product.transpose_b ? make_layout(product, k, n) : make_layout(product, n, k);
  const auto second = product.transpose_a ? make_layout(product, m, k) : make_layout(product, k, m);
  const auto result = make_layout(product, n, m);
  const auto preference = make_preference(product);
  cublasLtMatmulHeuristicResult_t choice = {};
  int num_choices = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(ctx.cublas, description.get(), first.get(), second.get(), result.get(),
                                              result.get(), preference.get(), 1, &choice, &num_choices),
               "cublasLtMatmulAlgoGetHeuristic", product);
  NMOE_CHECK(num_choices == 1, "cuBLASLt has no kernel for {} products of [{}, {}] and [{}, {}]", batch, m, k, k, n);
  // With a factor of 0 c is not read.
  const float* c = product.c != nullptr ? product.c : product.d;
  check_cublas(cublasLtMatmul(ctx.cublas, description.get(), &product.alpha, product.b, first.get(), product.a,
                              second.get(), &product.beta, c, result.get(), product.d, result.get(), &choice.algo,
                              workspace, static_cast<size_t>(kGemmWorkspaceBytes), ctx.stream),
               "cublasLtMatmul", product);
}

}  // namespace nmoe::cuda
