// Gives weights the formats of their products' operands (model/spec/operand_formats.h), and memory for their codes.
#pragma once

#include "config/config.h"
#include "model/weight_set.h"

namespace nmoe {

// Sets the formats of all weights, before the first pass. rounding_key: [1] i64, a different number in every step.
void set_operand_formats(WeightSet& weights, const Config& config, Tensor rounding_key);
// After set_operand_formats(): allocates the codes of weights, if the device's products use codes. Error (usage) if the
// device lacks products in these formats, or of these sizes.
void allocate_weight_codes(WeightSet& weights, Ops& ops, Arena& codes);
// The same for one weight to which no other is joined.
void allocate_weight_codes(Weight& weight, Ops& ops, Arena& codes);

}  // namespace nmoe
