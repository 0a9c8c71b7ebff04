// Gated DeltaNet: weights and properties. The layer: model/parts/gated_deltanet.h.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// What generation keeps of a sequence: FixedState's in this order (ops/contracts/delta_rule.h and convolution.h).
enum class GatedDeltaNetState : size_t { kState, kConvolution };

PartTraits describe_gated_deltanet(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
