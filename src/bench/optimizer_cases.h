// Cases of optimizers for `n bench ops`.
#pragma once

#include <vector>

#include "bench/op_case.h"
#include "bench/op_sizes.h"

namespace nmoe {

// AdamW of OpSizes::weights and Muon of the first layer's experts, on a device with this dtype of statistics.
// has_masters: whether weights are halves.
void add_optimizer_cases(const OpSizes& sizes, DType stat, bool has_masters, std::vector<OpCase>& cases);

}  // namespace nmoe
