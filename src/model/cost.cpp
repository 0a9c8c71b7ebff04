#include "model/cost.h"

#include <algorithm>

#include "model/spec.h"

namespace nmoe {
namespace {

// Mean over the positions of a sequence of how many positions each sees, itself included.
double mean_visible(int64_t seq_len, int64_t window) {
  double total = 0;
  for (int64_t position = 0; position < seq_len; ++position) {
    total += static_cast<double>(window == 0 ? position + 1 : std::min(position + 1, window));
  }
  return total / static_cast<double>(seq_len);
}

}  // namespace

ModelCost model_cost(const ModelConfig& config, int64_t seq_len) {
  const ModelSpec model = describe_model(config);
  ModelCost cost;
  for (const WeightSpec& weight : model.weights) {
    if (!weight.is_trained()) continue;
    const int64_t count = weight.shape.num_elements();
    const int64_t active =
        weight.group == WeightGroup::kExperts ? count / config.moe.num_experts * config.moe.top_k : count;
    cost.parameters += count;
    cost.active_parameters += active;
    const bool multiplied = weight.shape.rank() > 1 && !weight.is_looked_up;
    if (multiplied) cost.active_matrix_parameters += active;
  }
  cost.flops_per_token = 6.0 * static_cast<double>(cost.active_matrix_parameters);
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    cost.flops_per_token += model.mixers[layer].flops_per_position * mean_visible(seq_len, model.layers[layer].window);
  }
  return cost;
}

}  // namespace nmoe
