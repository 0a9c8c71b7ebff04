// The structure of a model, derived from its configuration alone, without device or storage. Costs, memory plans and
// the map to Hugging Face's tensors use this description, and Model is built from it. Nothing in this folder includes
// anything of ops/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// The parts of every layer, in their order; they refer to `config`.
std::vector<std::vector<LayerPart>> layer_parts(const ModelConfig& config);

// The same for every layer of every module of multi-token prediction, of which the model's layers do not count the last
// number on: module 0's, then module 1's.
std::vector<std::vector<LayerPart>> prediction_parts(const ModelConfig& config);
// What the names of a module's weights begin with: "mtp.0.".
std::string prediction_prefix(int64_t module);

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
  std::vector<DescribedLayer> prediction_layers;  // of all modules of multi-token prediction

  // Of all layers, in their order; without those of modules, which generation does not run.
  std::vector<DescribedPart> parts() const;
  std::vector<DescribedPart> prediction_layer_parts() const;
};

// config.vocab_size must be set.
ModelSpec describe_model(const ModelConfig& config);

}  // namespace nmoe
