#include "model/spec/spec.h"

#include <fmt/format.h>

#include "config/scaling.h"
#include "model/spec/part_kinds.h"
#include "model/spec/scaling.h"

namespace nmoe {
namespace {

std::vector<LayerPart> parts_of_layer(const ModelConfig& config, const LayerSpec& layer, int64_t number,
                                      const std::string& prefix) {
  std::vector<LayerPart> parts;
  for (const PartSpec& spec : layer.parts) {
    parts.push_back({.config = config, .spec = spec, .layer = number, .prefix = prefix});
  }
  return parts;
}

std::vector<DescribedPart> joined(const std::vector<DescribedLayer>& layers) {
  std::vector<DescribedPart> all;
  for (const DescribedLayer& layer : layers) all.insert(all.end(), layer.parts.begin(), layer.parts.end());
  return all;
}

DescribedLayer describe_layer(const std::vector<LayerPart>& parts, WeightList& weights) {
  DescribedLayer layer;
  for (const LayerPart& part : parts) {
    weights.begin_layer(part.layer);
    weights.add(weights.norm_gain(part.norm_name(), part.config.dim));
    layer.parts.push_back({.spec = part.spec, .traits = describe_part(part, weights)});
  }
  return layer;
}

// As model/prediction_module.h has them.
void describe_predictions(const ModelConfig& config, ModelSpec& model, WeightList& weights) {
  const std::vector<std::vector<LayerPart>> layers = prediction_parts(config);
  const size_t num_modules = static_cast<size_t>(config.mtp.num_modules());
  weights.count_passes(config.mtp.passes_of_a_module());
  for (size_t i = 0; i < num_modules; ++i) {
    const std::string prefix = prediction_prefix(static_cast<int64_t>(i));
    const size_t of_module = layers.size() / num_modules;
    weights.begin_layer(layers[i * of_module].front().layer);
    weights.begin_part(WeightPart::kOther);
    weights.add(weights.norm_gain(prefix + "embedding_norm", config.dim));
    weights.add(weights.norm_gain(prefix + "hidden_norm", config.dim));
    weights.add(weights.matrix(prefix + "projection_embedding", config.dim, config.dim));
    weights.add(weights.matrix(prefix + "projection_hidden", config.dim, config.dim));
    for (size_t layer = i * of_module; layer < (i + 1) * of_module; ++layer) {
      model.prediction_layers.push_back(describe_layer(layers[layer], weights));
    }
    weights.add(weights.norm_gain(prefix + "final_norm", config.dim));
  }
  weights.count_passes(1);
}

}  // namespace

std::vector<std::vector<LayerPart>> layer_parts(const ModelConfig& config) {
  std::vector<std::vector<LayerPart>> layers;
  for (const LayerSpec& layer : layer_specs(config)) {
    const auto idx = static_cast<int64_t>(layers.size());
    layers.push_back(parts_of_layer(config, layer, idx, fmt::format("layers.{}.", idx)));
  }
  return layers;
}

std::vector<std::vector<LayerPart>> prediction_parts(const ModelConfig& config) {
  std::vector<std::vector<LayerPart>> layers;
  const auto first = std::ssize(layer_specs(config));
  const std::vector<LayerSpec> of_module = prediction_layer_specs(config);
  for (int64_t module = 0; module < config.mtp.num_modules(); ++module) {
    for (size_t i = 0; i < of_module.size(); ++i) {
      const std::string prefix = fmt::format("{}layers.{}.", prediction_prefix(module), i);
      layers.push_back(parts_of_layer(config, of_module[i], first + std::ssize(layers), prefix));
    }
  }
  return layers;
}

std::string prediction_prefix(int64_t module) { return fmt::format("mtp.{}.", module); }

std::vector<DescribedPart> ModelSpec::parts() const { return joined(layers); }

std::vector<DescribedPart> ModelSpec::prediction_layer_parts() const { return joined(prediction_layers); }

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
    model.layers.push_back(describe_layer(parts, weights));
  }
  weights.begin_layer(kNoLayer);
  weights.add(weights.norm_gain("final_norm", config.dim));
  describe_predictions(config, model, weights);
  weights.begin_layer(kNoLayer);
  if (!config.tied_head) {
    weights.add({.name = "head",
                 .shape = {config.vocab_size, config.dim},
                 .group = WeightGroup::kRest,
                 .init_std = config.init.std});
  }
  model.weights = weights.take();
  if (config.scaling.rule != ScalingRule::kNone) {
    apply_scaling(config, describe_model(scaling_base(config)).weights, model.weights);
  }
  return model;
}

}  // namespace nmoe
