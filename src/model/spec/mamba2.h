// Mamba-2: weights and properties. The layer: model/parts/mamba2.h.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// What generation keeps of a sequence: FixedState's in this order (ops/contracts/ssd.h and convolution.h).
enum class Mamba2State : size_t { kState, kOpenX, kOpenB, kOpenStep, kConvolution };

PartTraits describe_mamba2(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
