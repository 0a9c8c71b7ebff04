// The structure of a model, derived from its configuration alone, without device or storage. Costs, memory plans and
// the map to Hugging Face's tensors use this description, and Model is built from it. Nothing in this folder includes
// anything of ops/.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// The parts of every layer, in their order; they refer to `config`.
std::vector<std::vector<LayerPart>> layer_parts(const ModelConfig& config);

struct DescribedPart {
  PartSpec spec;
  PartTraits traits;
};
struct DescribedLayer {
  std::vector<DescribedPart> parts;
};

struct ModelSpec {
  std::vector<WeightSpec> weights;  // in definition order; a part's norm comes directly before the part
  std::vector<DescribedLayer> layers;

  // Of all layers, in their order.
  std::vector<DescribedPart> parts() const;
};

// config.vocab_size must be set.
ModelSpec describe_model(const ModelConfig& config);

}  // namespace nmoe
