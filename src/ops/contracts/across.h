// Sums over domains (ops/across.h). Conventions: ops/ops.h.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace nmoe {

class Across;

// Replaces each tensor by its sum over all domains, added in their order: domain 0's value, plus domain 1's and so on,
// each addition rounded to the dtype (F32, F64 or I32); BF16 is widened and added in F32, and the total rounded once,
// to nearest, ties to even. All domains therefore get the same bits, every time. All domains pass the same number of
// tensors, of the same dtypes and sizes. If a domain does not take part, the lane waits until the host aborts the link.
struct SumAcross {
  const Across& across;
  std::span<const Tensor> tensors;
};

}  // namespace nmoe
