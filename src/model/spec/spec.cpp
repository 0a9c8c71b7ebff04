#include "model/spec/spec.h"

#include <fmt/format.h>

#include "model/spec/part_kinds.h"

namespace nmoe {

std::vector<std::vector<LayerPart>> layer_parts(const ModelConfig& config) {
  std::vector<std::vector<LayerPart>> layers;
  for (const LayerSpec& layer : layer_specs(config)) {
    const auto idx = static_cast<int64_t>(layers.size());
    std::vector<LayerPart>& parts = layers.emplace_back();
    for (const PartSpec& spec : layer.parts) {
      parts.push_back({.config = config, .spec = spec, .layer = idx, .prefix = fmt::format("layers.{}.", idx)});
    }
  }
  return layers;
}

std::vector<DescribedPart> ModelSpec::parts() const {
  std::vector<DescribedPart> all;
  for (const DescribedLayer& layer : layers) all.insert(all.end(), layer.parts.begin(), layer.parts.end());
  return all;
}

ModelSpec describe_model(const ModelConfig& config) {
  ModelSpec model;
  WeightList weights(config);
  weights.add({.name = "embedding",
               .shape = {config.vocab_size, config.dim},
               .group = WeightGroup::kRest,
               .decay = false,
               .is_looked_up = !config.tied_head,
               .init_std = config.init.embedding_std});
  for (const std::vector<LayerPart>& parts : layer_parts(config)) {
    DescribedLayer& layer = model.layers.emplace_back();
    for (const LayerPart& part : parts) {
      weights.begin_layer(part.layer);
      weights.add(WeightList::gain(part.norm_name(), config.dim));
      layer.parts.push_back({.spec = part.spec, .traits = describe_part(part, weights)});
    }
  }
  weights.begin_layer(kNoLayer);
  weights.add(WeightList::gain("final_norm", config.dim));
  if (!config.tied_head) {
    weights.add({.name = "head",
                 .shape = {config.vocab_size, config.dim},
                 .group = WeightGroup::kRest,
                 .init_std = config.init.std});
  }
  model.weights = weights.take();
  return model;
}

}  // namespace nmoe
