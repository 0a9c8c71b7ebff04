// What a model costs: parameters and floating-point operations, counted from its shapes.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace nmoe {

struct ModelCost {
  int64_t parameters = 0;                // trained parameters
  int64_t active_parameters = 0;         // those a token uses: routed experts count top_k / num_experts
  int64_t active_matrix_parameters = 0;  // of the active, those in products with activations: no norms, no look-up
  // Training FLOPs of one token, forward and backward: 6 per active matrix parameter (the embedding look-up is
  // none, the head is one), plus attention over the causal (and windowed) positions a query really sees:
  // 6 * heads * (Dqk + Dv) * mean positions per layer. With documents masked a query sees fewer: this counts as if
  // a sequence were one document.
  double flops_per_token = 0.0;
};

// config.vocab_size must be set.
ModelCost model_cost(const ModelConfig& config, int64_t seq_len);

}  // namespace nmoe
