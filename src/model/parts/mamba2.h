// Mamba-2 (arXiv 2405.21060, section 7): a projection to z, x, B, C and dt; a causal convolution of x, B and C; the SSD
// scan; a norm in groups after the gate z; a projection back.
//
// T tokens, D model width, H heads of P values, W = H * P, G = groups * state. Projections are columns of one product,
// [z W | x W | B G | C G | dt H]: their rows lie apart. Generation keeps the state at the beginning of the open chunk
// and what the scan and the convolution need of its tokens (Mamba2State), so that its bits are training's.
#pragma once

#include "model/parts/linear.h"
#include "model/parts/part.h"
#include "model/spec/part.h"

namespace nmoe {

class Mamba2 final : public Part {
 public:
  Mamba2(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;
  bool takes_codes(const Ops& ops) const override { return out_.weight().copies.takes_codes(ops); }

 private:
  struct Kept {
    Tensor projected;  // [T, W + W + G + G + H]
    Tensor convolved;  // [T, W + G + G]
    Tensor scanned;    // [T, W]
    Tensor normed;     // [T, W]
    Tensor rstd;       // [T, groups] stat
  };
  // Views of rows [T, W + W + G + G + H], projections or their gradients.
  Tensor gate(Tensor projected) const;            // [T, W]
  Tensor convolution_of(Tensor projected) const;  // [T, W + G + G]
  Tensor dt(Tensor projected) const;              // [T, H]
  // Of rows [T, W + G + G], the convolution's output or its gradient.
  Tensor x_of(Tensor convolved) const;  // [T, H, P]
  Tensor b_of(Tensor convolved) const;  // [T, groups, state]
  Tensor c_of(Tensor convolved) const;
  ConvolutionInputs convolution(const Pass& pass, const Kept& kept) const;
  SsdInputs scan(const Pass& pass, const Kept& kept) const;
  // What forward and generation have in common at both ends.
  Kept project(const Pass& pass, const Rows& x) const;
  void finish(const Pass& pass, const Kept& kept, Tensor residual, Tensor y) const;

  const Mamba2Config& config_;
  double norm_eps_;
  int64_t layer_;
  JoinedLinear in_;  // [W + W + G + G + H, D]
  Linear out_;       // [D, W]
  Weight &conv_, &conv_bias_, &dt_bias_, &a_log_, &d_, &norm_;
};

}  // namespace nmoe
