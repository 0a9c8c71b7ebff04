// The experts of a mixture that every token uses: an MLP, or one behind a gate (Qwen2-MoE, arXiv 2407.10671): what it
// gives is multiplied by sigmoid(x w), w a vector. The gate multiplies hidden units, as routed experts' weights do.
//
// T tokens, D model width, F the experts' width together.
#pragma once

#include <optional>

#include "model/parts/mlp.h"

namespace nmoe {

class SharedExperts {
 public:
  // Of that mixture of experts.
  SharedExperts(const LayerPart& part, WeightSet& weights);

  // As of Part.
  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const;
  bool takes_codes(const Ops& ops) const { return mlp_.takes_codes(ops); }

 private:
  // The gate is a router with a single expert.
  struct Kept {
    Tensor logits, scores, weights;  // [T, 1] stat; the gate's value, sigmoid(logits), is scores and weights
    Tensor top_idx;                  // [T, 1] i32
    Application mlp;
  };
  static RouterRule rule() { return {.score = ScoreFunction::kSigmoid, .top_k = 1, .normalise = false}; }

  Mlp mlp_;
  std::optional<Linear> gate_;  // [1, D]
};

}  // namespace nmoe
