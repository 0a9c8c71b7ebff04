// Sums over domains (ops/across.h). Conventions: ops/ops.h.
#pragma once

#include <span>

#include "base/error.h"
#include "ops/across.h"
#include "tensor/tensor.h"

namespace nmoe {

// Makes each tensor its sum over all domains, in their order: domain 0's value, plus domain 1's and so on, each
// addition rounded to the dtype (F32, F64 or I32). So all get the same bits, and get them every time. All domains have
// as many tensors, of the same dtypes and sizes. Where one does not come, the lane waits: the host has to abort the
// link.
struct SumAcross {
  const Across& across;
  std::span<const Tensor> tensors;
};

// What both devices check of it.
inline void check_sum_across(const SumAcross& args) {
  for (const Tensor& tensor : args.tensors) {
    const DType dtype = tensor.dtype();
    NMOE_CHECK(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32, "a sum over domains of {}",
               dtype_name(dtype));
  }
}

}  // namespace nmoe
