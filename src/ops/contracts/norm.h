// RMSNorm (arXiv 1910.07467, equation 4): y = x * rstd * (gain + gain_offset), rstd = 1 / sqrt(mean(x^2) + eps) over
// the last dimension. Zero-centred gains, as Qwen3-Next has them, have an offset of 1.
//
// The order of the sum of squares depends on D alone. On the CPU it has lanes whose number is the compiler's. On CUDA,
// in whatever kernel, the squares of eight consecutive values are a chain of fused multiply-adds from 0 on, ascending;
// the eights go to 32 lanes in turns, or to 256 where D > 2048, each of which adds up its own, ascending; then lanes
// add those 16, 8, 4, 2 and 1 beside them, in each 32, and so do the sums of eight times 32.
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
  double gain_offset = 0.0;
};
struct RmsNormBackward {
  Tensor x, gain, rstd;  // as in forward
  Tensor dy;             // like x
  Tensor dx;             // = like x; may be the storage of dy
  Tensor dgain;          // += [D] stat
  bool accumulate_dx = false;
  RowCodes dx_codes = {};    // = dx in FP8; undefined: not wanted
  double gain_offset = 0.0;  // as in forward
};

// The norm behind Mamba-2's scan (arXiv 2405.21060, section 7): of u = x * z sigmoid(z), in groups of consecutive
// values of a row, y = u * rstd * gain, rstd = 1 / sqrt(mean of the group's u^2 + eps). T rows of D values in G groups.
// The order of the sum of squares depends on D / G alone. On GPUs D / G is 8,192 at most.
struct GatedNormForward {
  Tensor x;                // [T, D]
  Tensor z;                // [T, D], apart
  Tensor gain;             // [D] stat
  int64_t num_groups = 1;  // divides D
  double eps = 1e-5;
  Tensor y;     // = [T, D]
  Tensor rstd;  // = [T, G] stat, kept for backward
};
struct GatedNormBackward {
  Tensor x, z, gain, rstd;  // as in forward
  Tensor dy;                // [T, D]
  Tensor dx;                // = [T, D]; may be the storage of dy
  Tensor dz;                // = [T, D], apart
  Tensor dgain;             // += [D] stat
};

// Vectors per row: H, or 1.
inline int64_t norm_vectors_of_row(const Tensor& x) { return x.shape().rank() == 3 ? x.dim(1) : 1; }
// N
inline int64_t norm_vectors(const Tensor& x) { return x.dim(0) * norm_vectors_of_row(x); }

}  // namespace nmoe
