#include "model/parts/shared_experts.h"

#include "model/spec/moe.h"
#include "model/spec/names.h"

namespace nmoe {

SharedExperts::SharedExperts(const LayerPart& part, WeightSet& weights)
    : mlp_(part, shared_experts_prefix(part), shared_width(part), weights, Intermediate::kSharedHidden) {
  if (part.config.moe.shared_gate) gate_.emplace(weights, shared_experts_prefix(part) + "gate");
}

Application SharedExperts::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  if (!gate_) return mlp_.forward(pass, x, residual, y);
  const int64_t T = x.tensor().dim(0);
  Kept kept{.logits = pass.push_stat({T, 1}),
            .scores = pass.push_stat({T, 1}),
            .weights = pass.push_stat({T, 1}),
            .top_idx = pass.push_i32({T, 1}),
            .mlp = {}};
  {
    const ArenaScope scope(pass.activations);
    const Tensor no_bias = pass.push_stat({1});
    pass.ops.fill({.x = no_bias, .value = 0.0});
    gate_->forward(pass.ops, x.tensor(), kept.logits);
    pass.ops.router_forward({.rule = rule(),
                             .loss = {},
                             .logits = kept.logits,
                             .bias = no_bias,
                             .scores = kept.scores,
                             .top_idx = kept.top_idx,
                             .weights = kept.weights,
                             .aux_loss = {},
                             .entropy = {}});
  }
  kept.mlp = mlp_.forward_weighted(pass, x, kept.weights.reshape({T}), residual, y);
  return Application(kept);
}

void SharedExperts::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  if (!gate_) return mlp_.backward(pass, of, x, dy, dx);
  const ArenaScope scope(pass.activations);
  const auto& kept = of.as<Kept>();
  const int64_t T = x.dim(0);
  const Tensor dweights = pass.push_stat({T, 1}), dlogits = pass.push({T, 1});
  mlp_.backward_weighted(pass, kept.mlp, x, kept.weights.reshape({T}), dy, dx, dweights.reshape({T}));
  pass.ops.router_backward({.rule = rule(),
                            .loss = {},
                            .logits = kept.logits,
                            .scores = kept.scores,
                            .top_idx = kept.top_idx,
                            .weights = kept.weights,
                            .dweights = dweights,
                            .dlogits = dlogits});
  gate_->backward(pass.ops, x, dlogits, dx, /*accumulate=*/true);
}

}  // namespace nmoe
