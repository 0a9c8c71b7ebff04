// Kimi Delta Attention (arXiv 2510.26692, section 4, as Kimi Linear has it): a projection to q, k, v and b; a causal
// convolution of q, k and v without biases; the delta rule with a decay of each key channel, which comes from two
// projections, through as many values as a head has; an RMSNorm of each head, then the sigmoid of a gate, which comes
// from two projections likewise; a projection back.
//
// T tokens, D model width, H heads of C values, W = H * C. q, k, v and b are columns of one product, [q W | k W | v W |
// b H]: their rows lie apart. Generation keeps the state and the convolution's last rows (KdaState), with training's
// bits.
#pragma once

#include "model/parts/linear.h"
#include "model/parts/norm.h"
#include "model/parts/part.h"
#include "model/spec/part.h"

namespace nmoe {

class Kda final : public Part {
 public:
  Kda(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;
  bool takes_codes(const Ops& ops) const override { return out_.weight().copies.takes_codes(ops); }

 private:
  struct Kept {
    Tensor projected;                  // [T, W + W + W + H]
    Tensor convolved;                  // [T, W + W + W]
    Tensor decay_latent, gate_latent;  // [T, C]
    Tensor steps;                      // [T, W], what decays are made of
    Tensor gate;                       // [T, W]
    Tensor scanned;                    // [T, H, C]
    Norm::Kept norm;
    Tensor normed;  // [T, W]
    Tensor gated;   // [T, W]
  };
  // Views of rows [T, W + W + W + H], projections or their gradients.
  Tensor convolution_of(Tensor projected) const;  // [T, W + W + W]
  Tensor b_of(Tensor projected) const;            // [T, H]
  // The `index`-th of q, k and v in rows [T, W + W + W], the convolution's output or its gradient, in heads.
  Tensor heads_of(Tensor convolved, int64_t index) const;
  Tensor in_heads(Tensor rows) const;  // [T, H, C] of [T, W]
  ConvolutionInputs convolution(const Pass& pass, const Kept& kept) const;
  DeltaRuleInputs rule(const Pass& pass, const Kept& kept) const;
  // What forward and generation have in common at both ends.
  Kept project(const Pass& pass, const Rows& x) const;
  void finish(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const;

  const KdaConfig& config_;
  int64_t layer_;
  JoinedLinear in_;                // [W + W + W + H, D]
  Linear decay_down_, gate_down_;  // [C, D]
  Linear decay_up_, gate_up_;      // [W, C]
  Linear out_;                     // [D, W]
  Norm norm_;
  Weight &conv_, &dt_bias_, &a_log_;
};

}  // namespace nmoe
