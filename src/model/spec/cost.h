// What a model costs: parameters and floating-point operations, counted from its shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct ModelCost {
  // For the mixers that see the same positions.
  struct Attention {
    int64_t window = 0;            // most positions that a query sees, itself included; 0: all before it
    int64_t chunk = 0;             // of a scan: it sees those of its chunk, and what is before as a state; 0: no scan
    double flops_per_pair = 0.0;   // training FLOPs for each position that a query sees
    double flops_per_token = 0.0;  // and for each token, whatever it sees: a scan's states
  };
  int64_t parameters = 0;         // trained parameters
  int64_t active_parameters = 0;  // those that a token uses: routed experts count as top_k / num_experts of them
  // Active ones in products with activations: no norms, no look-up; as often as a pass uses them: the head once more
  // for each depth of multi-token prediction.
  int64_t active_matrix_parameters = 0;
  std::vector<Attention> attention;

  // Training FLOPs of one document of `num_tokens` tokens, forward and backward: 6 per token and active matrix
  // parameter (without the embedding look-up, with the head), plus attention over the positions that each query really
  // sees, by causality, window and chunk: 6 * heads * (Dqk + Dv) per layer and position, and a scan's states. A
  // document here is what attends only to itself: a whole sequence, unless data.mask_documents is set.
  double document_flops(int64_t num_tokens) const;
  // The mean per token of such a document.
  double flops_per_token(int64_t num_tokens) const {
    return document_flops(num_tokens) / static_cast<double>(num_tokens);
  }
};

// config.vocab_size must be set.
ModelCost model_cost(const ModelConfig& config);

}  // namespace nmoe
