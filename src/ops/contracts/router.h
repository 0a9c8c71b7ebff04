// Routers of mixtures of experts. Letters and conventions: ops/ops.h.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "ops/contracts/moe.h"
#include "tensor/tensor.h"

namespace nmoe {

// Added to sums of scores before dividing by them, so that sigmoids that all underflow give zeros and not NaN. The
// value is DeepSeek-V3's; it is far below the rounding of any sum that matters.
constexpr double kTinySum = 1e-20;

// Scores, selection and gate weights (DeepSeek-V3, arXiv 2412.19437, equations 12 to 16).
//   s = sigmoid(logits) or softmax(logits)
//   selection: the top_k of s + bias; with num_groups > 1 only within the top_groups best groups of consecutive
//     experts, where groups are ranked by the sum of their two largest s + bias (sigmoid; DeepSeek-V3) or by the
//     largest (softmax; DeepSeek-V2). Ties go to the lower index.
//   weights: s of the selected (never the bias), divided by their sum (plus kTinySum) when `normalise`, times `scale`.
struct RouterRule {
  ScoreFunction score = ScoreFunction::kSigmoid;
  int64_t top_k = 1;
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  bool normalise = true;
  double scale = 1.0;
};
// Auxiliary losses. Coefficients are already divided by the number of sequences or tokens of the whole step, so
// that summing over microbatches gives the mean.
//   balance, per sequence: balance * sum_i f_i P_i, f_i = E/(K S) * (times i was selected), a constant to the
//     gradient; P_i = mean over positions of s_i / sum_j s_j (arXiv 2412.19437, equations 17 to 20)
//   z, per token: z * logsumexp(logits)^2 (ST-MoE, arXiv 2202.08906, equation 5)
struct RouterLoss {
  double balance = 0.0;
  double z = 0.0;
  int64_t seq_len = 0;  // S: the T tokens are sequences of this length
};
struct RouterForward {
  RouterRule rule;
  RouterLoss loss;
  Tensor logits;    // [T, E] stat
  Tensor bias;      // [E] stat
  Tensor scores;    // = [T, E] stat
  Tensor top_idx;   // = [T, K] i32, in descending order of s + bias
  Tensor weights;   // = [T, K] stat
  Tensor aux_loss;  // += [2] f64: balance, z; undefined: without auxiliary losses
  Tensor
      entropy;  // += [1] f64: sum over tokens of the entropy (nats) of s / (sum s + kTinySum); undefined: not computed
};
// Routing of tokens whose experts are all on this device, without losses: RouterForward, then BuildMoePlan for its
// selection and MoeDispatchWeights for its weights.
struct RouteTokens {
  RouterRule rule;
  Tensor logits;      // [T, E] stat
  Tensor bias;        // [E] stat
  Tensor scores;      // = [T, E] stat
  Tensor top_idx;     // = [T, K] i32
  Tensor weights;     // = [T, K] stat
  MoePlan plan;       // =
  Tensor row_weight;  // = [T * K] stat

  RouterForward router() const {
    return {.rule = rule,
            .loss = {},
            .logits = logits,
            .bias = bias,
            .scores = scores,
            .top_idx = top_idx,
            .weights = weights,
            .aux_loss = {},
            .entropy = {}};
  }
};
struct RouterBackward {
  RouterRule rule;
  RouterLoss loss;
  Tensor logits, scores, top_idx, weights;  // as in forward
  Tensor dweights;                          // [T, K] stat
  Tensor dlogits;                           // = [T, E], auxiliary losses' gradients included
};

// Loss-free balancing (arXiv 2408.15664): bias += rate * sign(mean load - load), the loads compared as integers.
struct RouterBiasUpdate {
  Tensor counts;  // [E] i32: rows that each expert got
  Tensor bias;    // [E] stat, updated
  double rate = 0.0;
  Tensor grad_scale;  // [1] f64; not finite: nothing changes
};

}  // namespace nmoe
