#include "model/parts/mlp.h"

namespace nmoe {

Mlp::Mlp(const LayerPart& part, const std::string& prefix, int64_t hidden, WeightSet& weights, Intermediate hidden_as)
    : activation_(part.config.activation),
      layer_(part.layer),
      hidden_as_(hidden_as),
      hidden_(hidden),
      in_(weights, prefix + "in"),
      out_(weights, prefix + "out") {}

Application Mlp::forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) const {
  const int64_t T = x.rows.dim(0), W = pre_activation_width(activation_, hidden_);
  Kept kept;
  if (pass.keeps_pre_codes()) kept.pre_codes = push_row_codes(pass.activations, T, W);
  const int64_t without_pre = pass.activations.mark();
  kept.pre = pass.push({T, W});
  const int64_t without_hidden = pass.activations.mark();
  kept.hidden = pass.push({T, hidden_});
  {
    const ArenaScope scope(pass.activations);
    const RowCodes codes = out_.push_codes(pass.activations, T, hidden_);
    // Backward makes hidden units again, and the second layer reads codes.
    const bool codes_alone =
        codes.defined() && pass.drops_hidden() && !pass.watchers.inspect && !out_.weight().measures_forward();
    in_.forward_activation(pass.ops,
                           {.kind = activation_,
                            .x = x.rows,
                            .w = {},
                            .pre = kept.pre,
                            .h = kept.hidden,
                            .h_codes = codes,
                            .keeps_h = !codes_alone,
                            .pre_codes = kept.pre_codes},
                           x.codes);
    pass.capture(hidden_as_, layer_, kept.hidden);
    out_.forward(pass.ops, kept.hidden, y, residual, codes);
  }
  if (pass.drops_pre()) {
    pass.activations.rewind(without_pre);
  } else if (pass.drops_hidden()) {
    pass.activations.rewind(without_hidden);
  }
  return Application(kept);
}

void Mlp::backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& dy, Tensor dx) const {
  const ArenaScope scope(pass.activations);
  Kept kept = of.as<Kept>();
  const int64_t T = dy.rows.dim(0), W = pre_activation_width(activation_, hidden_);
  if (pass.drops_pre()) kept.pre = pass.push({T, W});
  if (pass.drops(Recompute::kExperts)) {
    in_.forward(pass.ops, x, kept.pre);
    if (pass.saves_codes()) {
      kept.pre_codes = push_row_codes(pass.activations, T, W);
      pass.ops.quantize(quantize_rows(kept.pre, kept.pre_codes));
    }
  }
  const bool makes_hidden = pass.drops_hidden();
  if (makes_hidden) kept.hidden = pass.push({T, hidden_});
  const Tensor dhidden = pass.push({T, hidden_});
  // Random bits are numbered in the order in which they are drawn.
  const OperandRounding of_out_weight = out_.weight().weight_gradient_rounding();
  out_.backward_input(pass.ops, dy, dhidden);
  const Tensor dpre = kept.pre;  // not needed after its gradient is known
  const RowCodes codes = in_.push_codes(pass.activations, T, W);
  pass.ops.activation_backward({.kind = activation_,
                                .pre = kept.pre,
                                .dh = dhidden,
                                .dpre = dpre,
                                .dpre_codes = codes,
                                .h = makes_hidden ? kept.hidden : Tensor(),
                                .pre_codes = kept.pre_codes});
  out_.backward_weight(pass.ops, kept.hidden, dy.rows, of_out_weight);
  in_.backward_weight(pass.ops, x, dpre);
  in_.backward_input(pass.ops, {dpre, codes}, dx);
}

}  // namespace nmoe
