// Matrix products by cuBLASLt, on one device.
//
// BF16 operands and blocks of low precision are multiplied with F32 accumulation, F32 operands without TF32 unless that
// is asked for. The same
// problem gives the same bits every time: its algorithm is the table's (product_table.h) or else the first choice of
// cuBLASLt's heuristic, which is asked once. Where an algorithm splits a sum, the parts meet in the workspace in one
// order and are not added by atomics. Forward products of BF16, x w^T, are not split by the heuristic's choices.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/products/product_table.h"

namespace nmoe::cuda {

// The power of two that divides the address, 256 at most.
uint32_t address_alignment(const void* address);

// d = alpha * op(a) op(b) + beta * c. All device memory.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // as d, and may be d; null: d
  void* d = nullptr;
  void* workspace = nullptr;        // GemmProblem::workspace_bytes
  float alpha = 1.0F, beta = 0.0F;  // with a beta of 0, c is not read
  const float* scales = nullptr;    // alpha and beta in device memory, in place of those
  const void* a_scales = nullptr;   // of blocks, as plans/block_operands.h has them
  const void* b_scales = nullptr;
};

// What is known of the order in which an algorithm adds up a forward product.
enum class SumOrder {
  kUnknown,  // nobody could ask yet
  kSame,     // as generation's
  kOther,    // another
  kNotMade,  // nothing was there to compare: the part of the product that is compared could not be computed
};

// Of the device that is current when it is made. Thread-safe.
class CublasLt {
 public:
  // A problem in cuBLASLt's terms, and the algorithm.
  struct Plan {
    cublasLtMatmulDescOpaque_t product{};
    cublasLtMatrixLayoutOpaque_t first{}, second{}, result{};
    cublasLtMatmulAlgo_t algorithm{};
  };

  explicit CublasLt(const ProductTable& table);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues the product; capturable. The device must be current. A bug (CheckFailure) if cuBLASLt knows no algorithm.
  // Where cuBLASLt refuses the table's, that is said on standard error once, and the heuristic chooses.
  void multiply(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);

  // The same of a product whose sums have one order, where the algorithm keeps that: else false, and nothing is
  // enqueued, for a kernel of our own to compute it. `check` finds the order of a problem's algorithm, and is asked
  // until it knows; while it does not, as in a recording, the answer is no. An algorithm with another order, or none
  // that could be found, is named on standard error once.
  using OrderCheck = std::function<SumOrder(const GemmProblem& problem, const ProductAlgorithm& algorithm)>;
  bool multiply_in_order(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream,
                         const OrderCheck& check);

  const std::string& device() const { return device_; }  // as CUDA names it
  int64_t version() const { return version_; }           // cublasLtGetVersion()
  // What chooses algorithms: "cuBLASLt 13.1.0 on NVIDIA H200, 9 choices 0123456789ab".
  std::string identity() const;
  std::vector<ProductUse> uses();  // since it was made

  // For tuning. The heuristic's first algorithms that are deterministic and, of a forward product, may keep its order,
  // the first first; not of blocks.
  std::vector<ProductAlgorithm> candidates(const GemmProblem& problem, int max_count) const;
  // With this algorithm; nothing where cuBLASLt refuses it, or it wants more workspace than the problem has.
  std::optional<Plan> plan_with(const GemmProblem& problem, const ProductAlgorithm& algorithm) const;
  void multiply_by(Plan plan, const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream) const;

 private:
  struct Planned {
    Plan plan;
    int64_t plain = 0, added = 0;
    bool from_table = false;
    SumOrder order = SumOrder::kUnknown;
  };
  Planned make_plan(const GemmProblem& problem, const GemmOperands& operands) const;
  // A copy, for cuBLASLt takes no const descriptions.
  Plan plan_of(const GemmProblem& problem, const GemmOperands& operands);
  bool keeps_order(const GemmProblem& problem, const OrderCheck& check);
  std::vector<cublasLtMatmulAlgo_t> ask_heuristic(Plan plan, const GemmProblem& problem, int max_count) const;

  std::string device_;
  int64_t version_;
  ProductChoices choices_;  // of the table
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;  // guards plans_
  std::map<GemmProblem, Planned> plans_;
};

}  // namespace nmoe::cuda
