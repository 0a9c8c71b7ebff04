// cuBLASLt's matrices are column-major: what is [rows, cols] here is [cols, rows] there. So it is asked for
// d^T = op(b)^T op(a)^T, in which b comes first, and no transposition is added or lost.
#include "ops/cuda/vendor/cublaslt.h"

#include "base/error.h"
#include "base/say.h"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS, "{}: {}", call, cublasLtGetStatusString(status));
}
#define NMOE_CUBLAS_CHECK(call) check_cublas((call), #call)

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }
cublasComputeType_t compute_type(const GemmProblem& p) {
  return p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}
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

// The problem without an algorithm.
CublasLt::Plan describe(const GemmProblem& p, const GemmOperands& operands) {
  NMOE_CHECK(p.batch >= 0 && p.batch <= INT32_MAX && p.rows > 0 && p.cols > 0 && p.depth > 0 && types_match(p),
             "{} products [{}, {}] x [{}, {}] of {} into {}", p.batch, p.rows, p.depth, p.depth, p.cols,
             dtype_name(p.input), dtype_name(p.output));
  CublasLt::Plan plan;
  NMOE_CUBLAS_CHECK(cublasLtMatmulDescInit(&plan.product, compute_type(p), CUDA_R_32F));
  set_attribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_attribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_attribute(plan.product, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                p.device_scales ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
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
  return plan;
}

// Calls `attribute` with each of an algorithm's attributes and where its value is.
template <class Algorithm, class Attribute>
void for_each_attribute(Algorithm& algorithm, const Attribute& attribute) {
  attribute(CUBLASLT_ALGO_CONFIG_TILE_ID, algorithm.tile);
  attribute(CUBLASLT_ALGO_CONFIG_STAGES_ID, algorithm.stages);
  attribute(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, algorithm.split_k);
  attribute(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, algorithm.reduction);
  attribute(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, algorithm.swizzle);
  attribute(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, algorithm.custom);
  attribute(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, algorithm.inner_shape);
  attribute(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, algorithm.cluster_shape);
}

ProductAlgorithm attributes_of(const cublasLtMatmulAlgo_t& algorithm) {
  ProductAlgorithm attributes;
  size_t written = 0;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t name, auto& value) {
    NMOE_CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written));
  };
  read(CUBLASLT_ALGO_CONFIG_ID, attributes.id);
  for_each_attribute(attributes, read);
  return attributes;
}

std::string current_device_name() {
  int index = 0;
  cudaDeviceProp properties{};
  NMOE_CUDA_CHECK(cudaGetDevice(&index));
  NMOE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

}  // namespace

uint32_t address_alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256U;
  return static_cast<uint32_t>(bits & -bits);
}

CublasLt::CublasLt(const ProductTable& table)
    : device_(current_device_name()),
      version_(static_cast<int64_t>(cublasLtGetVersion())),
      choices_(choices_for(table, device_, version_)) {
  NMOE_CUBLAS_CHECK(cublasLtCreate(&handle_));
}

CublasLt::~CublasLt() { cublasLtDestroy(handle_); }

std::string CublasLt::identity() const {
  return fmt::format("cuBLASLt {}.{}.{} on {}, {} choices {}", version_ / 10000, version_ / 100 % 100, version_ % 100,
                     device_, choices_.size(), digest_of(choices_));
}

std::vector<ProductUse> CublasLt::uses() {
  const std::lock_guard lock(mutex_);
  std::vector<ProductUse> uses;
  for (const auto& [problem, planned] : plans_) {
    uses.push_back({problem, planned.plain, planned.added, planned.from_table});
  }
  return uses;
}

// `plan` by value: cuBLASLt takes no const descriptions.
std::vector<cublasLtMatmulAlgo_t> CublasLt::ask_heuristic(Plan plan, const GemmProblem& p, int max_count) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  NMOE_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
  // The parts of a split sum meet in the workspace, as F32 and in one order; the other schemes use atomics or round. A
  // forward product's sums are not split: generation computes it with the same bits (kernels/products).
  set_preference<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           is_forward(p) ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_b);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_a);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_d);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_d);

  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(max_count));
  int num_found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &plan.product, &plan.first, &plan.second, &plan.result, &plan.result,
                                     &preference, max_count, found.data(), &num_found);
  NMOE_CHECK(status == CUBLAS_STATUS_SUCCESS && num_found > 0,
             "cuBLASLt has no algorithm for {} products [{}, {}] x [{}, {}] of {} into {}: {}", p.batch, p.rows,
             p.depth, p.depth, p.cols, dtype_name(p.input), dtype_name(p.output), cublasLtGetStatusString(status));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < num_found; ++i) {
    const auto& result = found[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

std::vector<ProductAlgorithm> CublasLt::candidates(const GemmProblem& problem, int max_count) const {
  std::vector<ProductAlgorithm> algorithms;
  for (const cublasLtMatmulAlgo_t& algorithm : ask_heuristic(describe(problem, {}), problem, max_count)) {
    const ProductAlgorithm attributes = attributes_of(algorithm);
    if (!is_deterministic(attributes) || (is_forward(problem) && !may_keep_order(attributes))) continue;
    algorithms.push_back(attributes);
  }
  return algorithms;
}

std::optional<CublasLt::Plan> CublasLt::plan_with(const GemmProblem& p, const ProductAlgorithm& algorithm) const {
  Plan plan = describe(p, {});
  const cudaDataType_t input = operand_type(p), output = cuda_type(p.output);
  if (cublasLtMatmulAlgoInit(handle_, compute_type(p), CUDA_R_32F, input, input, output, output, algorithm.id,
                             &plan.algorithm) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  bool is_known = true;
  for_each_attribute(algorithm, [&](cublasLtMatmulAlgoConfigAttributes_t name, const auto& value) {
    is_known = is_known && cublasLtMatmulAlgoConfigSetAttribute(&plan.algorithm, name, &value, sizeof(value)) ==
                               CUBLAS_STATUS_SUCCESS;
  });
  cublasLtMatmulHeuristicResult_t result{};
  if (!is_known || cublasLtMatmulAlgoCheck(handle_, &plan.product, &plan.first, &plan.second, &plan.result,
                                           &plan.result, &plan.algorithm, &result) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  if (result.workspaceSize > static_cast<size_t>(p.workspace_bytes)) return {};
  return plan;
}

CublasLt::Planned CublasLt::make_plan(const GemmProblem& problem, const GemmOperands& operands) const {
  if (const auto choice = choices_.find(problem); choice != choices_.end()) {
    if (const auto plan = plan_with(problem, choice->second)) return {.plan = *plan, .from_table = true};
    say("warning: cuBLASLt refuses the algorithm that the table of products has for [{}, {}] x [{}, {}] of {} into {}; "
        "its heuristic chooses. `n bench tune` writes the table anew\n",
        problem.rows, problem.depth, problem.depth, problem.cols, dtype_name(problem.input),
        dtype_name(problem.output));
  }
  Planned planned{.plan = describe(problem, operands)};
  planned.plan.algorithm = ask_heuristic(planned.plan, problem, /*max_count=*/1).at(0);
  return planned;
}

CublasLt::Plan CublasLt::plan_of(const GemmProblem& problem, const GemmOperands& operands) {
  const std::lock_guard lock(mutex_);
  auto known = plans_.find(problem);
  if (known == plans_.end()) known = plans_.emplace(problem, make_plan(problem, operands)).first;
  const bool adds = problem.device_scales ? operands.c != nullptr : operands.beta != 0.0F;
  ++(adds ? known->second.added : known->second.plain);
  return known->second.plan;
}

void CublasLt::multiply(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream) {
  multiply_by(plan_of(problem, operands), problem, operands, stream);
}

bool CublasLt::multiply_in_order(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream,
                                 const OrderCheck& check) {
  const Plan plan = plan_of(problem, operands);
  if (!keeps_order(problem, check)) return false;
  multiply_by(plan, problem, operands, stream);
  return true;
}

// Nobody waits for a check of another's: what is on this stream may itself wait for what they enqueue.
bool CublasLt::keeps_order(const GemmProblem& problem, const OrderCheck& check) {
  std::unique_lock lock(mutex_);
  Planned& planned = plans_.at(problem);
  if (planned.order != SumOrder::kUnknown) return planned.order == SumOrder::kSame;
  const ProductAlgorithm algorithm = attributes_of(planned.plan.algorithm);
  lock.unlock();
  const SumOrder order = check(problem, algorithm);
  lock.lock();
  const bool is_news = order != SumOrder::kUnknown && planned.order == SumOrder::kUnknown;
  if (is_news) planned.order = order;
  if (is_news && order != SumOrder::kSame) {
    say("note: cuBLASLt's algorithm {} for [{}, {}] x [{}, {}] of {} into {} {}; a kernel of our own computes it\n",
        algorithm.id, problem.rows, problem.depth, problem.depth, problem.cols, dtype_name(problem.input),
        dtype_name(problem.output),
        order == SumOrder::kOther ? "has another order of sums than generation"
                                  : "could not compute the part by which its order of sums is checked");
  }
  return order == SumOrder::kSame;
}

void CublasLt::multiply_by(Plan plan, const GemmProblem& problem, const GemmOperands& operands,
                           cudaStream_t stream) const {
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
