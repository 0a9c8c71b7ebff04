// RMSNorm (arXiv 1910.07467, equation 4): y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) over the last
// dimension.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

struct RmsNormForward {
  Tensor x;     // [N, D]
  Tensor gain;  // [D] stat
  double eps = 1e-6;
  Tensor y;     // = [N, D]
  Tensor rstd;  // = [N] stat, kept for backward
};
struct RmsNormBackward {
  Tensor x, gain, rstd;  // as in forward
  Tensor dy;             // [N, D]
  Tensor dx;             // = [N, D]; may be the storage of dy
  Tensor dgain;          // += [D] stat
  bool accumulate_dx = false;
};

}  // namespace nmoe
