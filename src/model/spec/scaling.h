// [model.scaling]: how the spread, rate, decay and epsilon of each weight follow from those that suit a base model.
//
// With ratios to the base's weight of the same name, r_in and r_out of a matrix's inputs and outputs, r_n of a vector's
// elements, r_E of the number of experts, m of model.dim and l of the parts of all layers, the factors are
//
//                                    spread      AdamW's rate  Muon's rate   AdamW's epsilon
//   hidden [out, in]                 r_in^-1/2   1 / r_in      s / s_base    1 / (r_out r_E)
//   output (router, shared gate)     1 / r_in    1 / r_in                    1 / r_out
//   head                             1 / r_in    1 / r_in                    1
//   embedding                        1           1                           1 / m
//   vector (norms, biases, ...)      1           1                           1 / r_n
//
// and 1 everywhere at the base. All are of one derivation: activations and what a step changes in them keep their size
// (arXiv 2203.03466, table 3). Experts are hidden and routers are outputs (arXiv 2508.09752); latents' widths count as
// any other. s = sqrt(out / in) / sqrt(max(out, in)): updates of Muon have a spectral norm of 0.2 sqrt(max(out, in))
// (ops/contracts/optimizer.h), and are to have one in proportion to sqrt(out / in) (arXiv 2310.17813, section 2; of
// Muon arXiv 2602.20937). Epsilon follows the size of a gradient's elements (arXiv 2505.01618, table 1), r_E since an
// expert sees that share of a batch's tokens, by derivation.
//
// Multipliers are in the weights: where a rule multiplies a product by c, the weights W' = c W are stored instead. A
// step of AdamW or Muon on W with rate h, decay d and epsilon e is the same step of c W with rate c h, decay d / c and
// epsilon e / c, since the gradient is 1 / c of W's and both divide by the gradient's size (abc-parametrisation, arXiv
// 2011.14522). So no operation multiplies anything, and an export is exact as it is. What clipping sees is the stored
// weights' gradient, and in that it differs from a multiplier. The multipliers are
//   1 / m of logits: in the head, as the table has it; with a tied head in the gains of the final norms
//   sqrt(d_base / d) of attention's logits, d the size of a query head: in q, or in the gain of its norm; with
//     1 / sqrt(d), which attention has, that is 1 / d (arXiv 2203.03466, definition 4.1)
//   1 / l of what each part adds to the residual stream, with kCompleteP: in its output projection and bias. There
//     the epsilon of all weights of parts is / l, too (before c is: for output projections that cancels)
// Spread that depends on depth (model.init.depth_scaled_outputs) has the base's depth. Modules of multi-token
// prediction have widths alone.
//
// Decay: sources contradict each other. Here rate * decay of each weight is the base's, so that weights forget as
// many steps as there (arXiv 2505.01618, table 1: decay * m where rates are / m; 2405.13698 and 2407.05872 likewise;
// 2203.03466 leaves it as it is, and recipes of Muon keep it with rates that fall with width).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/spec/weights.h"

namespace nmoe {

// Gives `weights`, those of the model without a rule, their WeightScaling and spread. `base`: those of
// scaling_base(config) (config/scaling.h). Error (usage), naming the weight: the base or the model has none of its
// name, or the base in several layers ones of different shapes where its layers are not the model's; a query head of
// another size whose logits no weight of their own scales.
void apply_scaling(const ModelConfig& config, const std::vector<WeightSpec>& base, std::vector<WeightSpec>& weights);

// What a rule makes of one weight, or of the same weight of several layers.
struct ScalingRow {
  std::string name;  // "layers.*.attention.q"
  WeightSpec weight;
  Shape base_shape;
  int64_t count = 1;
  std::string_view role;  // "hidden"
};
// Of all trained weights, in definition order, to which apply_scaling() was applied with the same `base`.
std::vector<ScalingRow> scaling_rows(const ModelConfig& config, const std::vector<WeightSpec>& base,
                                     const std::vector<WeightSpec>& weights);

// Where the factors of a weight that this optimizer trains are from.
std::string sources_of_scaling(const WeightSpec& weight, ScalingRule rule, OptimizerKind optimizer);

// Where the model differs from its base in what no rule carries rates over; "" where it does not.
std::string note_on_scaling(const ModelConfig& config);

}  // namespace nmoe
