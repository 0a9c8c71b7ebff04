// Linear layers over weights of the model: every product with a weight matrix, and its gradients, go through these.
//
// N rows, E experts.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet whose weights they name outlives
// them.
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

  // y =, with the addend (of y's shape, may be y) added where there is one
  void forward(Ops& ops, Tensor x, Tensor y, Tensor addend = {}) const {
    ops.linear_forward({.x = x, .w = weight_.value, .y = y, .addend = addend});
  }
  // dx =, or += with accumulate
  void backward_input(Ops& ops, Tensor dy, Tensor dx, bool accumulate = false) const {
    ops.linear_backward_input({.dy = dy, .w = weight_.value, .dx = dx, .accumulate = accumulate});
  }
  // The weight's gradient, as model/weight.h says.
  void backward_weight(Ops& ops, Tensor x, Tensor dy) const {
    ops.linear_backward_weight({.x = x, .dy = dy, .dw = weight_.grad, .accumulate = weight_.accumulate_grad()});
  }
  // Both. dx may not be the storage of x.
  void backward(Ops& ops, Tensor x, Tensor dy, Tensor dx, bool accumulate = false) const {
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
  void forward(Ops& ops, Tensor x, Tensor offsets, Tensor y) const {
    ops.grouped_linear_forward({.x = x, .w = weight_.value, .offsets = offsets, .y = y});
  }
  // pre = [N, out], and its activation times row_weight [N] stat: h =. `args` is without the weight, which is this one.
  void forward_activation(Ops& ops, GroupedActivationForward args) const {
    args.w = weight_.value;
    ops.grouped_activation_forward(args);
  }
  // dx = [N, in]
  void backward_input(Ops& ops, Tensor dy, Tensor offsets, Tensor dx) const {
    ops.grouped_linear_backward_input({.dy = dy, .w = weight_.value, .offsets = offsets, .dx = dx});
  }
  // The same through the activation in front of this layer. `args` is without the weight, which is this one.
  void backward_activation(Ops& ops, GroupedActivationBackward args) const {
    args.w = weight_.value;
    ops.grouped_activation_backward(args);
  }
  // The weight's gradient, as model/weight.h says.
  void backward_weight(Ops& ops, Tensor x, Tensor dy, Tensor offsets) const {
    ops.grouped_linear_backward_weight(
        {.x = x, .dy = dy, .offsets = offsets, .dw = weight_.grad, .accumulate = weight_.accumulate_grad()});
  }

  Weight& weight() const { return weight_; }

 private:
  Weight& weight_;
};

}  // namespace nmoe
