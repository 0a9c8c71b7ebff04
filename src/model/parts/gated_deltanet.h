// Gated DeltaNet (arXiv 2412.06464, section 3.4, as Qwen3-Next has it): a projection to z, q, k, v, b and a; a causal
// convolution of q, k and v without biases; the gated delta rule; an RMSNorm of each head, then the gate z; a
// projection back.
//
// T tokens, D model width, H heads of V values, W = H * V; heads of K values for queries and keys, G values of all
// together. Projections are columns of one product, [z W | q G | k G | v W | b H | a H]: their rows lie apart.
// Generation keeps the state and the convolution's last rows (GatedDeltaNetState), with training's bits.
#pragma once

#include "model/parts/linear.h"
#include "model/parts/norm.h"
#include "model/parts/part.h"
#include "model/spec/part.h"

namespace nmoe {

class GatedDeltaNet final : public Part {
 public:
  GatedDeltaNet(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;
  bool takes_codes(const Ops& ops) const override { return out_.weight().copies.takes_codes(ops); }

 private:
  struct Kept {
    Tensor projected;  // [T, W + G + G + W + H + H]
    Tensor convolved;  // [T, G + G + W]
    Tensor scanned;    // [T, H, V]
    Norm::Kept norm;
    Tensor normed;  // [T, W]
    Tensor gated;   // [T, W]
  };
  // Views of rows [T, W + G + G + W + H + H], projections or their gradients.
  Tensor gate(Tensor projected) const;            // [T, W]
  Tensor convolution_of(Tensor projected) const;  // [T, G + G + W]
  Tensor b_of(Tensor projected) const;            // [T, H]
  Tensor a_of(Tensor projected) const;            // [T, H]
  // Of rows [T, G + G + W], the convolution's output or its gradient, in heads.
  Tensor q_of(Tensor convolved) const;
  Tensor k_of(Tensor convolved) const;
  Tensor v_of(Tensor convolved) const;
  ConvolutionInputs convolution(const Pass& pass, const Kept& kept) const;
  DeltaRuleInputs rule(const Pass& pass, const Kept& kept) const;
  // What forward and generation have in common at both ends.
  Kept project(const Pass& pass, const Rows& x) const;
  void finish(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const;

  const GatedDeltaNetConfig& config_;
  int64_t layer_;
  JoinedLinear in_;  // [W + G + G + W + H + H, D]
  Linear out_;       // [D, W]
  Norm norm_;
  Weight &conv_, &dt_bias_, &a_log_;
};

}  // namespace nmoe
