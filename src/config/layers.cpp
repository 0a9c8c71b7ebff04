#include "config/layers.h"

namespace nmoe {
namespace {

// The window of a layer: 0 (global) every attn_global_every-th layer and in the last one, else config.window.
int64_t window_of(const ModelConfig& config, int64_t layer_idx) {
  const bool last = layer_idx + 1 == config.num_layers;
  const bool global = last || (layer_idx + 1) % config.attn_global_every == 0;
  return global ? 0 : config.window;
}

}  // namespace

std::vector<LayerSpec> layer_specs(const ModelConfig& config) {
  std::vector<LayerSpec> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool dense = layer < config.num_dense_layers || config.moe.num_experts == 0;
    layers.push_back({.mixer = config.attention,
                      .window = window_of(config, layer),
                      .feed_forward = dense ? FeedForwardKind::kDense : FeedForwardKind::kMoe,
                      .hidden = dense ? config.dense_dim : config.moe.expert_dim});
  }
  return layers;
}

}  // namespace nmoe
