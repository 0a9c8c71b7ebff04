// Cases of recurrent layers for `n bench ops`.
#pragma once

#include <vector>

#include "bench/op_case.h"
#include "bench/op_sizes.h"

namespace nmoe {

// Mamba-2's scan over OpSizes::scans, forward and backward, and a step of generation over OpSizes::scanned; likewise
// the gated delta rule, beside a layer's projections. act and stat: bytes of an element.
void add_recurrent_cases(const OpSizes& sizes, double act, double stat, std::vector<OpCase>& cases);

}  // namespace nmoe
