#include "model/spec/spec.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/parts/feed_forward.h"
#include "model/parts/mixer.h"

namespace nmoe {

Shape WeightSpec::as_matrices(const Shape& here) const {
  if (num_matrices == 1) return here;
  const int64_t rows = here[-2] / num_matrices;
  NMOE_CHECK(rows * num_matrices == here[-2], "{}: {} is not {} matrices", name, here, num_matrices);
  return {here.num_elements() / (rows * here[-1]), rows, here[-1]};
}

std::vector<Layer> layers_of(const ModelConfig& config) {
  std::vector<Layer> layers;
  for (const LayerSpec& spec : layer_specs(config)) {
    const auto idx = static_cast<int64_t>(layers.size());
    layers.push_back({.config = config, .spec = spec, .idx = idx, .name = fmt::format("layers.{}.", idx)});
  }
  return layers;
}

WeightList::WeightList(const ModelConfig& config) : std_(config.init.std), output_std_(config.init.std) {
  if (!config.init.depth_scaled_outputs) return;
  output_std_ /= std::sqrt(2.0 * static_cast<double>(layer_specs(config).size()));
}

WeightSpec WeightList::matrix(const std::string& name, int64_t out, int64_t in) const {
  return {.name = name, .shape = {out, in}, .group = WeightGroup::kMatrices, .init_std = std_};
}

WeightSpec WeightList::output(const std::string& name, int64_t out, int64_t in) const {
  return {.name = name, .shape = {out, in}, .group = WeightGroup::kMatrices, .init_std = output_std_};
}

WeightSpec WeightList::gain(const std::string& name, int64_t dim) {
  return {.name = name,
          .shape = {dim},
          .group = WeightGroup::kRest,
          .decay = false,
          .is_stat = true,
          .init = InitKind::kOnes};
}

void WeightList::add(WeightSpec weight) {
  weight.layer = layer_;
  if (weight.group == WeightGroup::kMatrices || weight.group == WeightGroup::kExperts) weight.part = part_;
  weights_.push_back(std::move(weight));
}

void WeightList::add_joined(std::vector<WeightSpec> weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].joins_previous = i > 0;
    add(std::move(weights[i]));
  }
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
  for (const Layer& layer : layers_of(config)) {
    weights.begin_layer(layer.idx);
    weights.add(WeightList::gain(layer.name + "attention_norm", config.dim));
    weights.begin_part(WeightPart::kMixer);
    model.mixers.push_back(describe_mixer(layer, weights));
    weights.add(WeightList::gain(layer.name + "mlp_norm", config.dim));
    describe_feed_forward(layer, weights);
    model.layers.push_back(layer.spec);
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
