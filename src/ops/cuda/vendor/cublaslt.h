// Matrix products by cuBLASLt, on one device.
//
// BF16 operands and blocks of low precision are multiplied with F32 accumulation, F32 operands without TF32 unless that
// is asked for. The same
// problem gives the same bits every time: cuBLASLt is asked for its first choice of algorithm once, the answer is kept,
// and where an algorithm splits a sum, the parts meet in the workspace in one order and are not added by atomics.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/kinds.h"
#include "tensor/dtype.h"

namespace nmoe::cuda {

// All that an algorithm is chosen by: d [rows, cols] = op(a) [rows, depth] op(b) [depth, cols], of matrices or of
// stacks of them, row-major and dense; op transposes or does not.
struct GemmProblem {
  int64_t batch = 0;                           // matrices of a stack, one after another; 0: single matrices
  int64_t rows = 0, cols = 0, depth = 0;       // > 0
  DType input = DType::kF32;                   // F32 or BF16; U8: codes, of these blocks:
  OperandFormat blocks = OperandFormat::kAct;  // kMxFp8 or kNvFp4, depth along the rows of a and b
  DType output = DType::kF32;                  // F32, or `input`; of blocks F32 or BF16
  bool transpose_a = false;                    // a is [depth, rows]
  bool transpose_b = false;                    // b is [cols, depth]
  bool tf32 = false;                           // F32 factors are rounded to 11 bits for the tensor cores; sums stay F32
  bool device_scales = false;                  // alpha and beta are the device's (GemmOperands::scales)
  uint32_t align_a = 16, align_b = 16, align_d = 16;  // bytes that divide the address of every matrix
  int64_t workspace_bytes = 0;

  auto operator<=>(const GemmProblem&) const = default;
};

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
  const void* a_scales = nullptr;   // of blocks, as block_scratch.h has them
  const void* b_scales = nullptr;
};

// Of the device that is current when it is made. Thread-safe.
class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues the product; capturable. The device must be current. A bug (CheckFailure) if cuBLASLt knows no algorithm.
  void multiply(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);

 private:
  // A problem in cuBLASLt's terms, and the algorithm.
  struct Plan {
    cublasLtMatmulDescOpaque_t product{};
    cublasLtMatrixLayoutOpaque_t first{}, second{}, result{};
    cublasLtMatmulAlgo_t algorithm{};
  };
  Plan make_plan(const GemmProblem& problem, const GemmOperands& operands) const;
  // A copy, for cuBLASLt takes no const descriptions.
  Plan plan_of(const GemmProblem& problem, const GemmOperands& operands);

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;  // guards plans_
  std::map<GemmProblem, Plan> plans_;
};

}  // namespace nmoe::cuda
