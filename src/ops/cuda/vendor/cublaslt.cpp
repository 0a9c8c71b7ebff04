// cuBLASLt's matrices are column-major: what is [rows, cols] here is [cols, rows] there. So it is asked for
// d^T = op(b)^T op(a)^T, in which b comes first, and no transposition is added or lost.
#include "ops/cuda/vendor/cublaslt.h"

#include "base/error.h"

namespace nmoe::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS, "{}: {}", call, cublasLtGetStatusString(status));
}
#define NMOE_CUBLAS_CHECK(call) check_cublas((call), #call)

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }
cudaDataType_t operand_type(const GemmProblem& p) {
  if (p.blocks == OperandFormat::kAct) return cuda_type(p.input);
  return p.blocks == OperandFormat::kNvFp4 ? CUDA_R_4F_E2M1 : CUDA_R_8F_E4M3;
}

// Row-major [rows, cols] matrices without gaps.
void describe(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t batch, int64_t rows, int64_t cols) {
  NMOE_CUBLAS_CHECK(
      cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), cols));
  if (batch == 0) return;
  const auto count = static_cast<int32_t>(batch);
  const int64_t stride = rows * cols;
  NMOE_CUBLAS_CHECK(
      cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  NMOE_CUBLAS_CHECK(
      cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
}

template <class T>
void set_preference(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  NMOE_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
}

template <class T>
void set_attribute(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t name, T value) {
  NMOE_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&product, name, &value, sizeof(value)));
}

// b comes first.
void set_scales(cublasLtMatmulDescOpaque_t& product, const GemmProblem& p, const GemmOperands& operands) {
  if (p.blocks == OperandFormat::kAct) return;
  set_attribute(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scales);
  set_attribute(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scales);
}

// Whether operands and result are of types that go together.
bool types_match(const GemmProblem& p) {
  if (p.blocks != OperandFormat::kAct) {
    return p.input == DType::kU8 && !p.transpose_a && p.transpose_b && p.batch == 0 &&
           (p.output == DType::kF32 || p.output == DType::kBF16);
  }
  return (p.input == DType::kF32 || p.input == DType::kBF16) && (p.output == DType::kF32 || p.output == p.input);
}

}  // namespace

uint32_t address_alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256U;
  return static_cast<uint32_t>(bits & -bits);
}

CublasLt::CublasLt() { NMOE_CUBLAS_CHECK(cublasLtCreate(&handle_)); }

CublasLt::~CublasLt() { cublasLtDestroy(handle_); }

CublasLt::Plan CublasLt::make_plan(const GemmProblem& p, const GemmOperands& operands) const {
  NMOE_CHECK(p.batch >= 0 && p.batch <= INT32_MAX && p.rows > 0 && p.cols > 0 && p.depth > 0 && types_match(p),
             "{} products [{}, {}] x [{}, {}] of {} into {}", p.batch, p.rows, p.depth, p.depth, p.cols,
             dtype_name(p.input), dtype_name(p.output));
  Plan plan;
  NMOE_CUBLAS_CHECK(
      cublasLtMatmulDescInit(&plan.product, p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  NMOE_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
  NMOE_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
  const cublasLtPointerMode_t scales = p.device_scales ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  NMOE_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_POINTER_MODE, &scales, sizeof(scales)));
  if (p.blocks != OperandFormat::kAct) {
    const cublasLtMatmulMatrixScale_t mode = p.blocks == OperandFormat::kNvFp4
                                                 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3
                                                 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    set_attribute(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set_attribute(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set_scales(plan.product, p, operands);
  }
  describe(plan.first, operand_type(p), p.batch, p.transpose_b ? p.cols : p.depth, p.transpose_b ? p.depth : p.cols);
  describe(plan.second, operand_type(p), p.batch, p.transpose_a ? p.depth : p.rows, p.transpose_a ? p.rows : p.depth);
  describe(plan.result, cuda_type(p.output), p.batch, p.rows, p.cols);

  cublasLtMatmulPreferenceOpaque_t preference;
  NMOE_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
  // The parts of a split sum meet in the workspace, as F32 and in one order; the other schemes use atomics or round.
  set_preference<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_b);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_a);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_d);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_d);

  cublasLtMatmulHeuristicResult_t found{};
  int num_found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &plan.product, &plan.first, &plan.second, &plan.result, &plan.result,
                                     &preference, 1, &found, &num_found);
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS && num_found == 1,
             "cuBLASLt has no algorithm for {} products [{}, {}] x [{}, {}] of {} into {}: {}", p.batch, p.rows,
             p.depth, p.depth, p.cols, dtype_name(p.input), dtype_name(p.output), cublasLtGetStatusString(status));
  plan.algorithm = found.algo;
  return plan;
}

CublasLt::Plan CublasLt::plan_of(const GemmProblem& problem, const GemmOperands& operands) {
  const std::lock_guard lock(mutex_);
  const auto known = plans_.find(problem);
  return known != plans_.end() ? known->second : plans_.emplace(problem, make_plan(problem, operands)).first->second;
}

void CublasLt::multiply(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream) {
  Plan plan = plan_of(problem, operands);
  set_scales(plan.product, problem, operands);
  const void* c = operands.c != nullptr ? operands.c : operands.d;
  const bool on_device = problem.device_scales;
  const float* const alpha = on_device ? operands.scales : &operands.alpha;
  const float* const beta = on_device ? operands.scales + 1 : &operands.beta;
  NMOE_CUBLAS_CHECK(cublasLtMatmul(handle_, &plan.product, alpha, operands.b, &plan.first, operands.a, &plan.second,
                                   beta, c, &plan.result, operands.d, &plan.result, &plan.algorithm, operands.workspace,
                                   static_cast<size_t>(problem.workspace_bytes), stream));
}

}  // namespace nmoe::cuda
