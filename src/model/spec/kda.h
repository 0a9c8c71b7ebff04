// Kimi Delta Attention: weights and properties. The layer: model/parts/kda.h.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// What generation keeps of a sequence: FixedState's in this order (ops/contracts/delta_rule.h and convolution.h).
enum class KdaState : size_t { kState, kConvolution };

PartTraits describe_kda(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
