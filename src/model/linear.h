// Linear layers over weights of the model: every product with a weight matrix, and its gradients, go through these.
//
// N rows, E experts.
#pragma once

#include <string_view>

#include "model/weight.h"

namespace nmoe {

// y = x w^T. x [N, in], y [N, out] act or stat.
class Linear {
 public:
  // The weight [out, in] of that name.
  Linear(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}
  explicit Linear(Weight& weight) : weight_(weight) {}

  // y =, or += with accumulate
  void forward(Backend& ops, Tensor x, Tensor y, bool accumulate = false) const {
    ops.linear_forward(x, weight_.value, y, accumulate);
  }
  // dx =, or += with accumulate
  void backward_input(Backend& ops, Tensor dy, Tensor dx, bool accumulate = false) const {
    ops.linear_backward_input(dy, weight_.value, dx, accumulate);
  }
  // The weight's gradient, as model/weight.h says.
  void backward_weight(Backend& ops, Tensor x, Tensor dy) const {
    ops.linear_backward_weight(x, dy, weight_.grad, weight_.accumulate_grad());
  }
  // Both. dx may not be the storage of x.
  void backward(Backend& ops, Tensor x, Tensor dy, Tensor dx, bool accumulate = false) const {
    backward_weight(ops, x, dy);
    backward_input(ops, dy, dx, accumulate);
  }

  Weight& weight() const { return weight_; }

 private:
  Weight& weight_;
};

// One matrix an expert: rows [offsets[e], offsets[e + 1]) of x go through that of expert e. offsets [E + 1] i32.
class GroupedLinear {
 public:
  // The weight [E, out, in] of that name.
  GroupedLinear(WeightSet& weights, std::string_view name) : weight_(weights.at(name)) {}

  // y = [N, out]
  void forward(Backend& ops, Tensor x, Tensor offsets, Tensor y) const {
    ops.grouped_linear_forward(x, weight_.value, offsets, y);
  }
  // pre = [N, out], and its activation times row_weight [N] stat: h =
  void forward_activation(Backend& ops, Activation kind, Tensor x, Tensor offsets, Tensor row_weight, Tensor pre,
                          Tensor h) const {
    ops.grouped_activation_forward(kind, x, weight_.value, offsets, row_weight, pre, h);
  }
  // The weight's gradient, as model/weight.h says; dx = [N, in], which may not be the storage of x.
  void backward(Backend& ops, Tensor x, Tensor dy, Tensor offsets, Tensor dx) const {
    ops.grouped_linear_backward_weight(x, dy, offsets, weight_.grad, weight_.accumulate_grad());
    ops.grouped_linear_backward_input(dy, weight_.value, offsets, dx);
  }

 private:
  Weight& weight_;
};

}  // namespace nmoe
