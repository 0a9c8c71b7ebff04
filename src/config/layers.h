// The layers of a model, one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct LayerSpec {
  MixerKind mixer = MixerKind::kMla;
  int64_t window = 0;  // positions a token sees, itself included; 0: all before it
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  int64_t hidden = 0;  // width of the dense MLP, or of one routed expert

  bool operator==(const LayerSpec&) const = default;
};

// From first to last.
std::vector<LayerSpec> layer_specs(const ModelConfig& config);

}  // namespace nmoe
