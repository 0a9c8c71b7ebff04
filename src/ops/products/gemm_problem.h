// What a dense product is, as far as the choice of its algorithm goes; known without CUDA.
#pragma once

#include <compare>
#include <cstdint>

#include "base/kinds.h"
#include "tensor/dtype.h"

namespace nmoe {

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

// A linear layer's x w^T of BF16 operands: generation computes it, too, so that its sums have one order.
constexpr bool is_forward(const GemmProblem& problem) {
  return problem.input == DType::kBF16 && problem.batch == 0 && !problem.transpose_a && problem.transpose_b;
}

}  // namespace nmoe
