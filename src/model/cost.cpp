#include "model/cost.h"

#include <algorithm>

#include "model/block.h"

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

double attention_flops_per_position(const ModelConfig& config) {
  const int64_t qk = config.attention == AttentionKind::kMla ? config.mla.qk_nope_head_dim + config.mla.qk_rope_head_dim
                                                             : config.gqa.head_dim;
  const int64_t value = config.attention == AttentionKind::kMla ? config.mla.v_head_dim : config.gqa.head_dim;
  return 6.0 * static_cast<double>(config.num_heads * (qk + value));
}

}  // namespace

ModelCost model_cost(const ModelConfig& config, const ParameterSet& parameters, int64_t seq_len) {
  ModelCost cost;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.group == ParameterGroup::kBuffer) continue;
    const int64_t count = parameter.shape.num_elements();
    const int64_t active =
        parameter.group == ParameterGroup::kExperts ? count / config.moe.num_experts * config.moe.top_k : count;
    cost.parameters += count;
    cost.active_parameters += active;
    const bool multiplied = parameter.shape.rank() > 1 && (parameter.name != "embedding" || config.tied_head);
    if (multiplied) cost.active_matrix_parameters += active;
  }
  cost.flops_per_token = 6.0 * static_cast<double>(cost.active_matrix_parameters);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    cost.flops_per_token += attention_flops_per_position(config) * mean_visible(seq_len, layer_window(config, layer));
  }
  return cost;
}

}  // namespace nmoe
