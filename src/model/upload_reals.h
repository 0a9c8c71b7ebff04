// Numbers of the host as a tensor of the device's.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace nmoe {

inline void upload_reals(Ops& ops, Tensor destination, const std::vector<double>& values) {
  if (ops.stat_dtype() == DType::kF64) {
    ops.device().upload(destination, values.data());
  } else {
    const std::vector<float> narrow(values.begin(), values.end());
    ops.device().upload(destination, narrow.data());
  }
}

}  // namespace nmoe
