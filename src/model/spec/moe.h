// What a mixture of experts (model/parts/moe.h) consists of.
#pragma once

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// The widths of a mixture of experts.
struct MoeWidths {
  int64_t stream;  // of the residual stream: what the router and the shared experts read, and what comes out
  int64_t travel;  // of the rows that routed experts get and give: exchanged between ranks, as they are or quantised
  int64_t hidden;  // of one routed expert
};
MoeWidths moe_widths(const LayerPart& part);
// The hidden width of the shared experts together, of which there are some.
int64_t shared_width(const LayerPart& part);
// The width that travels, which all layers of a model have in common.
int64_t travelling_width(const ModelConfig& config);

PartTraits describe_moe(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
