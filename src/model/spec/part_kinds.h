// Every kind of part, described.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// Adds the part's weights, without its norm's, and returns its other properties.
PartTraits describe_part(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
