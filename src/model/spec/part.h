// A part of a layer, as its description (model/spec/<kind>.h) and its class (model/parts/<kind>.h) see it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "config/layers.h"
#include "model/spec/state.h"

namespace nmoe {

// Where a part is, and what the configuration makes of it.
struct LayerPart {
  const ModelConfig& config;  // must outlive it
  PartSpec spec;
  int64_t layer = 0;   // its index among all layers
  std::string prefix;  // of the names of the layer's weights: "layers.3."

  std::string norm_name() const { return prefix + (is_mixer(spec.kind) ? "attention_norm" : "mlp_norm"); }
};

// Properties of a part besides its weights.
struct PartTraits {
  // Training FLOPs per token, forward and backward, for each position that it sees, besides those of its weights.
  double flops_per_position = 0.0;
  int64_t chunk = 0;             // tokens of chunks in which positions are seen; 0: all before it, or in its window
  double flops_per_token = 0.0;  // the same for each token, whatever it sees
  int64_t rope_dim = 0;          // number of values of a head that RoPE rotates; 0: none
  StateSpec state = {};
  // Where generation in training's arithmetic keeps something else (GenerationArithmetic).
  std::optional<StateSpec> training_state = {};

  const StateSpec& state_in(GenerationArithmetic arithmetic) const {
    return arithmetic == GenerationArithmetic::kTraining && training_state ? *training_state : state;
  }
};

}  // namespace nmoe
