// The operations that `n bench ops` times, with the sizes they are timed at.
#pragma once

#include <vector>

#include "bench/op_case.h"
#include "model/weight_formats.h"
#include "ops/ops.h"

namespace nmoe {

struct OpCases {
  OpCase copy;  // memory to memory: what operations bound by memory are held against
  OpCase gemm;  // a large square product in the device's own precision: what products are held against
  std::vector<OpCase> all;
};

// For a device with the dtypes of `ops`. `full_size`: the sizes of `super`, `moonlet` and a slice of DeepSeek-V3's
// experts; else ones that a CPU is done with in seconds. `format`: of products' operands, as a Workbench's.
OpCases op_cases(const Ops& ops, bool full_size, OperandFormat format);

}  // namespace nmoe
