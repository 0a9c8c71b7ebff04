// A gated (SwiGLU, arXiv 2002.05202) or squared-ReLU (arXiv 2109.08668) two-layer MLP.
//
// T tokens, D model width, F hidden width, W = 2F for SwiGLU (gate | up) or F.
#pragma once

#include "model/parts/linear.h"
#include "model/parts/part.h"
#include "model/spec/mlp.h"

namespace nmoe {

class Mlp final : public Part {
 public:
  // Of that part, or within it. `prefix`: of its weights' names (describe_mlp). `hidden_as`: the intermediate as which
  // its hidden units are captured.
  Mlp(const LayerPart& part, const std::string& prefix, int64_t hidden, WeightSet& weights, Intermediate hidden_as);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  void cached_forward(const Pass& pass, Tensor x, const PartStates& /*states*/, Tensor /*slots*/, Tensor residual,
                      Tensor y) const override {
    forward(pass, x, residual, y);
  }
  bool takes_codes(const Ops& ops) const override { return in_.weight().copies.takes_codes(ops); }

 private:
  struct Kept {
    KeptRows pre;     // [T, W]
    KeptRows hidden;  // [T, F]
  };

  Activation activation_;
  int64_t layer_;
  Intermediate hidden_as_;
  int64_t hidden_;
  Linear in_;   // [W, D]
  Linear out_;  // [D, F]
};

}  // namespace nmoe
