// What multi-head latent attention (model/parts/mla.h) consists of.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

PartTraits describe_mla(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
