#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

namespace nmoe {

Tensor Optimizer::allocate_rates(Arena& arena) {
  constexpr int64_t kTrainedGroups = 4;
  return arena.allocate(DType::kF64, {kTrainedGroups, 3});
}

Optimizer::Optimizer(const OptimConfig& config, ParameterSet& parameters, Ops& ops, Arena& arena, Tensor rates)
    : config_(config), ops_(ops) {
  for (Parameter& parameter : parameters.all()) {
    if (parameter.group == ParameterGroup::kBuffer) continue;
    const GroupConfig& settings = group(parameter.group);
    auto index = std::ranges::find(groups_, &settings);
    if (index == groups_.end()) index = groups_.insert(index, &settings);
    Slot slot{.parameter = &parameter,
              .rates = rates[index - groups_.begin()],
              .m = arena.allocate(ops.stat_dtype(), parameter.shape),
              .v = {}};
    if (settings.optimizer == OptimizerKind::kMuon) {
      state_.push_back({"muon.momentum." + parameter.name, slot.m});
    } else {
      slot.v = arena.allocate(ops.stat_dtype(), parameter.shape);
      state_.push_back({"adamw.m." + parameter.name, slot.m});
      state_.push_back({"adamw.v." + parameter.name, slot.v});
    }
    slots_.push_back(slot);
  }
  for (const NamedTensor& state : state_) ops_.fill({state.tensor, 0.0});
}

const GroupConfig& Optimizer::group(ParameterGroup group) const {
  switch (group) {
    case ParameterGroup::kMatrices:
      return config_.matrices;
    case ParameterGroup::kExperts:
      return config_.experts;
    case ParameterGroup::kRouter:
      return config_.router;
    case ParameterGroup::kRest:
    case ParameterGroup::kBuffer:
      break;
  }
  NMOE_CHECK(group == ParameterGroup::kRest, "buffers are not trained");
  return config_.rest;
}

void Optimizer::write_rates(const Progress& progress, Tensor rates) const {
  NMOE_CHECK(progress.steps >= 1, "step {}: steps count from 1", progress.steps);
  const auto steps = static_cast<double>(progress.steps);
  for (size_t i = 0; i < groups_.size(); ++i) {
    double* values = rates[static_cast<int64_t>(i)].data<double>();
    values[0] = scheduled_rate(config_.schedule, groups_[i]->lr, progress);
    values[1] = 1 / (1 - std::pow(config_.adamw.beta1, steps));
    values[2] = 1 / (1 - std::pow(config_.adamw.beta2, steps));
  }
}

void Optimizer::step(Tensor grad_scale) {
  for (const Slot& slot : slots_) {
    const Parameter& parameter = *slot.parameter;
    const GroupConfig& settings = group(parameter.group);
    const double weight_decay = parameter.decay ? settings.weight_decay : 0.0;
    if (settings.optimizer == OptimizerKind::kMuon) {
      ops_.muon_step({.w = parameter.value,
                      .low = parameter.low,
                      .grad = parameter.grad,
                      .momentum = slot.m,
                      .grad_scale = grad_scale,
                      .rates = slot.rates,
                      .beta = config_.muon.momentum,
                      .weight_decay = weight_decay,
                      .iterations = static_cast<int>(config_.muon.iterations)});
    } else {
      ops_.adamw_step({.w = parameter.value,
                       .low = parameter.low,
                       .grad = parameter.grad,
                       .m = slot.m,
                       .v = slot.v,
                       .grad_scale = grad_scale,
                       .rates = slot.rates,
                       .beta1 = config_.adamw.beta1,
                       .beta2 = config_.adamw.beta2,
                       .eps = config_.adamw.eps,
                       .weight_decay = weight_decay});
    }
  }
}

}  // namespace nmoe
