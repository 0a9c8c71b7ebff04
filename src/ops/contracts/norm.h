// RMSNorm (arXiv 1910.07467, equation 4): y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) over the last
// dimension.
//
// On the CPU the sum of squares has lanes whose number is the compiler's, and its order depends on D alone.
#pragma once

#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// N vectors of D values: [N, D], or [T, H, D] with N = T*H. x, y, dx and dy have the same shape, and may be apart; if
// codes are wanted, they are [N, D] and dense.
struct RmsNormForward {
  Tensor x;
  Tensor gain;  // [D] stat
  double eps = 1e-6;
  Tensor y;               // = like x
  Tensor rstd;            // = [N] stat, kept for backward
  RowCodes y_codes = {};  // = y in FP8; undefined: not wanted
};
struct RmsNormBackward {
  Tensor x, gain, rstd;  // as in forward
  Tensor dy;             // like x
  Tensor dx;             // = like x; may be the storage of dy
  Tensor dgain;          // += [D] stat
  bool accumulate_dx = false;
  RowCodes dx_codes = {};  // = dx in FP8; undefined: not wanted
};

// Vectors per row: H, or 1.
inline int64_t norm_vectors_of_row(const Tensor& x) { return x.shape().rank() == 3 ? x.dim(1) : 1; }
// N
inline int64_t norm_vectors(const Tensor& x) { return x.dim(0) * norm_vectors_of_row(x); }

}  // namespace nmoe
