#include "model/spec/moe.h"

#include "model/spec/mlp.h"
#include "model/spec/names.h"

namespace nmoe {
namespace {

// One matrix per expert, started like the plain matrix of the same role.
WeightSpec stacked(WeightSpec matrix, int64_t num_experts) {
  matrix.group = WeightGroup::kExperts;
  matrix.per_expert = true;
  matrix.shape = {num_experts, matrix.shape[0], matrix.shape[1]};
  return matrix;
}

// From the residual stream to `outputs` logits.
WeightSpec router_weight(const ModelConfig& config, const std::string& name, int64_t outputs) {
  return {.name = name,
          .shape = {outputs, config.dim},
          .group = WeightGroup::kRouter,
          .decay = false,
          .init_std = config.init.router_std};
}

}  // namespace

int64_t shared_width(const LayerPart& part) {
  const MoeConfig& moe = part.config.moe;
  return moe.shared_dim > 0 ? moe.shared_dim : moe.num_shared_experts * part.spec.hidden;
}

int64_t travelling_width(const ModelConfig& config) {
  return config.moe.latent_dim > 0 ? config.moe.latent_dim : config.dim;
}

MoeWidths moe_widths(const LayerPart& part) {
  return {.stream = part.config.dim, .travel = travelling_width(part.config), .hidden = part.spec.hidden};
}

PartTraits describe_moe(const LayerPart& part, WeightList& weights) {
  const ModelConfig& config = part.config;
  const MoeWidths width = moe_widths(part);
  const int64_t E = config.moe.num_experts;
  const std::string name = moe_prefix(part);
  weights.add(router_weight(config, name + "router", E));
  weights.add({.name = name + "router_bias",
               .shape = {E},
               .group = WeightGroup::kBuffer,
               .decay = false,
               .is_stat = true,
               .init = InitKind::kZeros});
  if (config.moe.biases) weights.add(WeightList::bias(name + "logit_bias", {E}));
  if (config.moe.latent_dim > 0) {
    weights.begin_part(WeightPart::kOther);
    weights.add(weights.matrix(name + "latent_down", width.travel, width.stream));
    weights.add(weights.output(name + "latent_up", width.stream, width.travel));
  }
  weights.begin_part(WeightPart::kExperts);
  weights.add(
      stacked(pre_activation_weight(weights, name + "experts_in", config.activation, width.travel, width.hidden), E));
  const bool to_residual = config.moe.latent_dim == 0;
  WeightSpec experts_out = stacked(weights.output(name + "experts_out", width.travel, width.hidden), E);
  experts_out.to_residual = to_residual;
  weights.add(experts_out);
  if (config.moe.biases) {
    const int64_t pre = pre_activation_width(config.activation, width.hidden);
    weights.add(WeightList::expert_bias(name + "experts_in_bias", E, pre));
    WeightSpec out_bias = WeightList::expert_bias(name + "experts_out_bias", E, width.travel);
    out_bias.to_residual = to_residual;
    weights.add(out_bias);
  }
  if (config.moe.num_shared_experts > 0) {
    weights.begin_part(WeightPart::kShared);
    describe_mlp(shared_experts_prefix(part), config.activation, width.stream, shared_width(part), weights);
    if (config.moe.shared_gate) weights.add(router_weight(config, shared_experts_prefix(part) + "gate", 1));
  }
  return {};
}

}  // namespace nmoe
