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

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override {
    return forward_weighted(pass, x, /*row_weight=*/{}, residual, y);
  }
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override {
    backward_weighted(pass, of, x, /*row_weight=*/{}, dy, dx, /*drow_weight=*/{});
  }
  // The same with what a row gives multiplied by its row_weight [T] stat; undefined: 1.
  Application forward_weighted(const Pass& pass, const Rows& x, Tensor row_weight, Tensor residual, Tensor y) const;
  // And drow_weight =, undefined when row_weight is.
  void backward_weighted(const Pass& pass, const Application& of, Tensor x, Tensor row_weight, const Rows& dy,
                         Tensor dx, Tensor drow_weight) const;
  void cached_forward(const Pass& pass, Tensor x, const PartStates& /*states*/, Tensor /*slots*/, Tensor residual,
                      Tensor y) const override {
    forward(pass, x, residual, y);
  }
  bool takes_codes(const Ops& ops) const override { return in_.weight().copies.takes_codes(ops); }

 private:
  struct Kept {
    KeptRows pre;     // [T, W]
    KeptRows hidden;  // [T, F], times row_weight
  };

  Activation activation_;
  int64_t layer_;
  Intermediate hidden_as_;
  int64_t hidden_;
  Linear in_;   // [W, D]
  Linear out_;  // [D, F]
};

}  // namespace nmoe
