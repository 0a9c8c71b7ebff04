#include "model/experts_exchange.h"

#include "config/layers.h"
#include "model/spec/moe.h"

namespace nmoe {

ExchangeShape exchange_shape(const ModelConfig& config) {
  return {.num_experts = config.moe.num_experts, .top_k = config.moe.top_k, .width = travelling_width(config)};
}

ExchangeForm exchange_form(const Config& config) {
  return {.received = config.parallel.logical_shards > 0 ? Received::kApart : Received::kTogether,
          .dispatch_format = config.precision.wire};
}

ExchangeCost exchange_cost(const Config& config, DType act, int64_t num_ranks, int64_t layer) {
  const Recompute recompute = config.train.recompute.of(layer);
  return {exchange_shape(config.model),
          exchange_form(config),
          {.dispatches = recompute >= Recompute::kExperts ? 2 : 1, .combines = recompute >= Recompute::kBlocks ? 2 : 1},
          act,
          num_ranks};
}

std::vector<ExchangeCost> exchange_costs(const Config& config, DType act, int64_t num_ranks) {
  std::vector<ExchangeCost> costs;
  const auto num_layers = std::ssize(all_layer_specs(config.model));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    costs.push_back(exchange_cost(config, act, num_ranks, layer));
  }
  return costs;
}

}  // namespace nmoe
