#include "model/spec/cost.h"

#include <algorithm>

#include "model/spec/spec.h"

namespace nmoe {
namespace {

// How many positions the queries of `length` tokens see together, each itself included.
double visible_pairs(int64_t length, int64_t window) {
  const double reach = static_cast<double>(window == 0 ? length : std::min(length, window));
  return reach * (reach + 1.0) / 2.0 + (static_cast<double>(length) - reach) * reach;
}

double visible_pairs(int64_t length, const ModelCost::Attention& layers) {
  if (layers.chunk == 0) return visible_pairs(length, layers.window);
  const auto whole = static_cast<double>(length / layers.chunk);
  return whole * visible_pairs(layers.chunk, 0) + visible_pairs(length % layers.chunk, 0);
}

}  // namespace

double ModelCost::document_flops(int64_t num_tokens) const {
  double flops = 6.0 * static_cast<double>(active_matrix_parameters) * static_cast<double>(num_tokens);
  for (const Attention& layers : attention) {
    flops += layers.flops_per_pair * visible_pairs(num_tokens, layers);
    flops += layers.flops_per_token * static_cast<double>(num_tokens);
  }
  return flops;
}

ModelCost model_cost(const ModelConfig& config) {
  const ModelSpec model = describe_model(config);
  ModelCost cost;
  for (const WeightSpec& weight : model.weights) {
    if (!weight.is_trained()) continue;
    const int64_t count = weight.shape.num_elements();
    const int64_t active = weight.per_expert ? count / config.moe.num_experts * config.moe.top_k : count;
    cost.parameters += count;
    cost.active_parameters += active;
    if (weight.is_multiplied()) cost.active_matrix_parameters += active * weight.num_passes;
  }
  cost.active_matrix_parameters += config.mtp.depth * config.vocab_size * config.dim;
  const auto add_attention = [&](const std::vector<DescribedPart>& parts, int64_t num_passes) {
    for (const DescribedPart& part : parts) {
      if (!is_mixer(part.spec.kind)) continue;
      const int64_t window = part.spec.window, chunk = part.traits.chunk;
      auto alike = std::ranges::find_if(cost.attention, [&](const ModelCost::Attention& layers) {
        return layers.window == window && layers.chunk == chunk;
      });
      if (alike == cost.attention.end()) alike = cost.attention.insert(alike, {.window = window, .chunk = chunk});
      alike->flops_per_pair += part.traits.flops_per_position * static_cast<double>(num_passes);
      alike->flops_per_token += part.traits.flops_per_token * static_cast<double>(num_passes);
    }
  };
  add_attention(model.parts(), 1);
  add_attention(model.prediction_layer_parts(), config.mtp.passes_of_a_module());
  return cost;
}

}  // namespace nmoe
