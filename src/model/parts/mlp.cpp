#include "model/parts/mlp.h"

namespace nmoe {

Mlp::Mlp(const LayerPart& part, const std::string& prefix, int64_t hidden, WeightSet& weights, Intermediate hidden_as)
    : activation_(part.config.activation),
      layer_(part.layer),
      hidden_as_(hidden_as),
      hidden_(hidden),
      in_(weights, prefix + "in"),
      out_(weights, prefix + "out") {}

Application Mlp::forward_weighted(const Pass& pass, const Rows& x, Tensor row_weight, Tensor residual, Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t T = x.tensor().dim(0), W = pre_activation_width(activation_, hidden_);
  const Kept kept{.pre = pass.keep.put(Site::kPreActivation, {T, W}),
                  .hidden = pass.keep.put(Site::kHidden, {T, hidden_})};
  const ArenaScope scope(pass.activations);
  const Rows pre = pass.keep.with_values(kept.pre);
  Rows hidden = pass.keep.with_values(kept.hidden);
  hidden.quantised = out_.push_codes(pass, T, hidden_);
  const bool reads_hidden = !hidden.quantised.defined() || kept.hidden.wait() || pass.watchers.inspect != nullptr ||
                            out_.weight().probe.measures_forward();
  if (row_weight.defined()) {
    in_.forward(ops, x, pre.tensor());
    ops.activation_forward({.kind = activation_,
                            .pre = pre.tensor(),
                            .row_weight = row_weight,
                            .h = hidden.tensor(),
                            .num_rows = {},
                            .h_codes = hidden.quantised,
                            .keeps_h = reads_hidden,
                            .pre_codes = pre.quantised});
  } else {
    in_.forward_activation(ops, activation_, x, pre, hidden, reads_hidden);
  }
  pass.capture(hidden_as_, layer_, hidden.tensor());
  out_.forward(ops, hidden, y, residual);
  return Application(kept);
}

void Mlp::backward_weighted(const Pass& pass, const Application& of, Tensor x, Tensor row_weight, const Rows& dy,
                            Tensor dx, Tensor drow_weight) const {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const auto& kept = of.as<Kept>();
  const int64_t T = x.dim(0), W = pre_activation_width(activation_, hidden_);
  Rows pre = pass.keep.get(kept.pre);
  if (!pre.has_values()) pre.values = pass.push({T, W});
  if (!kept.pre.wait()) {
    in_.forward(ops, x, pre.tensor());
    if (pre.quantised.defined()) ops.quantize(quantize_rows(pre.tensor(), pre.quantised));
  }
  const Tensor hidden = pass.keep.get(kept.hidden).tensor(), dhidden = pass.push({T, hidden_});
  // Random bits are numbered in the order in which they are drawn.
  const OperandRounding of_out_weight = out_.weight().weight_gradient_rounding();
  out_.backward_input(ops, dy, dhidden);
  const Rows dpre(pre.values, in_.push_codes(pass, T, W));  // pre is not needed after its gradient is known
  ops.activation_backward({.kind = activation_,
                           .pre = pre.tensor(),
                           .row_weight = row_weight,
                           .dh = dhidden,
                           .dpre = dpre.tensor(),
                           .drow_weight = drow_weight,
                           .dpre_codes = dpre.quantised,
                           .h = kept.hidden.wait() ? Tensor() : hidden,
                           .pre_codes = pre.quantised});
  out_.backward_weight(ops, hidden, dy.tensor(), of_out_weight);
  in_.backward_weight(ops, x, dpre.tensor());
  in_.backward_input(ops, dpre, dx);
}

}  // namespace nmoe
