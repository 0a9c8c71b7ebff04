#include "model/mlp.h"

#include "model/attention.h"

namespace nmoe {

Mlp::Mlp(const ModelConfig& config, ParameterSet& parameters, const std::string& name, int64_t hidden)
    : activation_(config.activation),
      name_(name),
      hidden_(hidden),
      w_in_(parameters.add(
          matrix_parameter(config, name + "in", pre_activation_width(config.activation, hidden), config.dim))),
      w_out_(parameters.add(output_parameter(config, name + "out", config.dim, hidden))) {}

void Mlp::forward(const Pass& pass, Tensor x, Tensor y) {
  const int64_t T = x.dim(0);
  const int64_t without_pre = pass.activations.mark();
  saved_ = {.x = x, .pre = pass.push({T, pre_activation_width(activation_, hidden_)}), .hidden = {}};
  const int64_t without_hidden = pass.activations.mark();
  saved_.hidden = pass.push({T, hidden_});
  pass.ops.linear_forward({x, w_in_.value, saved_.pre});
  pass.ops.activation_forward({activation_, saved_.pre, Tensor(), saved_.hidden});
  pass.look(name_, "hidden", saved_.hidden);
  pass.ops.linear_forward({saved_.hidden, w_out_.value, y, /*accumulate=*/true});
  if (pass.drops(Recompute::kNorms)) {
    pass.activations.rewind(pass.drops(Recompute::kExperts) ? without_pre : without_hidden);
  }
}

void Mlp::backward(const Pass& pass, Tensor dy, Tensor dx) {
  const ArenaScope scope(pass.activations);
  const int64_t T = dy.dim(0);
  if (pass.drops(Recompute::kExperts)) {
    saved_.pre = pass.push(saved_.pre.shape());
    pass.ops.linear_forward({saved_.x, w_in_.value, saved_.pre});
  }
  if (pass.drops(Recompute::kNorms)) {
    saved_.hidden = pass.push(saved_.hidden.shape());
    pass.ops.activation_forward({activation_, saved_.pre, Tensor(), saved_.hidden});
  }
  const Tensor dhidden = pass.push({T, hidden_});
  pass.ops.linear_backward_input({dy, w_out_.value, dhidden});
  pass.ops.linear_backward_weight({saved_.hidden, dy, w_out_.grad, pass.accumulate_grads});
  const Tensor dpre = saved_.pre;  // not needed after its gradient is known
  pass.ops.activation_backward({activation_, saved_.pre, Tensor(), dhidden, dpre, Tensor()});
  pass.ops.linear_backward_weight({saved_.x, dpre, w_in_.grad, pass.accumulate_grads});
  pass.ops.linear_backward_input({dpre, w_in_.value, dx});
}

}  // namespace nmoe
