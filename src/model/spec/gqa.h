// What grouped-query attention (model/parts/gqa.h) consists of.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

PartTraits describe_gqa(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
