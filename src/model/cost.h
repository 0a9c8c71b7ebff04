// What a model costs: parameters and floating-point operations, counted from its shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct ModelCost {
  // Of the layers whose queries see equally far.
  struct Attention {
    int64_t window = 0;           // positions a query sees at most, itself included; 0: all before it
    double flops_per_pair = 0.0;  // training FLOPs for each position that a query sees
  };
  int64_t parameters = 0;                // trained parameters
  int64_t active_parameters = 0;         // those a token uses: routed experts count top_k / num_experts
  int64_t active_matrix_parameters = 0;  // of the active, those in products with activations: no norms, no look-up
  std::vector<Attention> attention;

  // Training FLOPs of one document of so many tokens, forward and backward: 6 a token and active matrix parameter (the
  // embedding look-up is none, the head is one), plus attention over the causal (and windowed) positions that each
  // query really sees: 6 * heads * (Dqk + Dv) a layer and position. What attends to itself alone is a document here: a
  // whole sequence, unless data.mask_documents is set.
  double document_flops(int64_t num_tokens) const;
  // Of a token of a document of so many tokens, mean.
  double flops_per_token(int64_t num_tokens) const {
    return document_flops(num_tokens) / static_cast<double>(num_tokens);
  }
};

// config.vocab_size must be set.
ModelCost model_cost(const ModelConfig& config);

}  // namespace nmoe
