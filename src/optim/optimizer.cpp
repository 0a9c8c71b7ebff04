#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace nmoe {

const GroupConfig& group_of(const OptimConfig& config, WeightGroup group) {
  switch (group) {
    case WeightGroup::kMatrices:
      return config.matrices;
    case WeightGroup::kExperts:
      return config.experts;
    case WeightGroup::kRouter:
      return config.router;
    case WeightGroup::kRest:
    case WeightGroup::kBuffer:
      break;
  }
  NMOE_CHECK(group == WeightGroup::kRest, "buffers are not trained");
  return config.rest;
}

std::vector<WeightGroup> Optimizer::by_matrix(const OptimConfig& config) {
  std::vector<WeightGroup> groups = {WeightGroup::kMatrices, WeightGroup::kExperts, WeightGroup::kRouter,
                                     WeightGroup::kRest};
  std::erase_if(groups, [&](WeightGroup group) { return group_of(config, group).optimizer != OptimizerKind::kMuon; });
  return groups;
}

Tensor Optimizer::allocate_rates(Arena& arena) {
  constexpr int64_t kTrainedGroups = 4;
  return arena.allocate(DType::kF64, {kTrainedGroups, 3});
}

Optimizer::Optimizer(const OptimConfig& config, WeightSet& weights, Ops& ops, Arena& arena, Tensor rates,
                     Tensor rounding_key)
    : config_(config), ops_(ops) {
  for (Weight& weight : weights.all()) {
    if (!weight.spec.is_trained()) continue;
    const GroupConfig& settings = group_of(config_, weight.spec.group);
    auto index = std::ranges::find(groups_, &settings);
    if (index == groups_.end()) index = groups_.insert(index, &settings);
    const bool is_muon = settings.optimizer == OptimizerKind::kMuon;
    const MomentFormat format = is_muon ? config_.muon.state : config_.adamw.state;
    const DType dtype = format == MomentFormat::kBf16 ? DType::kBF16 : ops.stat_dtype();
    Slot slot{.weight = &weight,
              .rates = rates[index - groups_.begin()],
              .m = arena.allocate(dtype, weight.shard.updated_shape()),
              .v = {},
              .random = {}};
    if (dtype == DType::kBF16) {
      slot.random = {.key = rounding_key,
                     .stream = fnv1a64((is_muon ? "muon." : "adamw.") + weight.spec.name),
                     .first = weight.shard.updated.offset,
                     .matrices = {}};
      if (weight.spec.group == WeightGroup::kExperts) {
        slot.random.matrices = arena.allocate(DType::kI32, {weight.shard.shape[0]});
      }
    }
    if (is_muon) {
      state_.push_back({{"muon.momentum." + weight.spec.name, slot.m}, &weight});
    } else {
      slot.v = arena.allocate(dtype, weight.shard.updated_shape());
      state_.push_back({{"adamw.m." + weight.spec.name, slot.m}, &weight});
      state_.push_back({{"adamw.v." + weight.spec.name, slot.v}, &weight});
    }
    if (weight.shard.updated.extent > 0) slots_.push_back(slot);
  }
  for (const OptimizerState& state : state_) ops_.fill({state.tensor, 0.0});
  place_experts();
}

void Optimizer::place_experts() {
  for (const Slot& slot : slots_) {
    if (!slot.random.matrices.defined()) continue;
    const std::vector<int32_t> experts = slot.weight->shard.experts_here();
    ops_.device().upload(slot.random.matrices, experts.data());
  }
}

void Optimizer::write_rates(const Progress& progress, int64_t step_tokens, Tensor rates) const {
  NMOE_CHECK(progress.steps >= 1, "step {}: steps count from 1", progress.steps);
  const auto steps = static_cast<double>(progress.steps);
  for (size_t i = 0; i < groups_.size(); ++i) {
    double* values = rates[static_cast<int64_t>(i)].data<double>();
    values[0] = scheduled_rate(config_.schedule, groups_[i]->lr, progress, step_tokens);
    values[1] = 1 / (1 - std::pow(config_.adamw.beta1, steps));
    values[2] = 1 / (1 - std::pow(config_.adamw.beta2, steps));
  }
}

void Optimizer::step(Tensor grad_scale) {
  AdamWSteps steps;
  for (const Slot& slot : slots_) {
    const Weight& weight = *slot.weight;
    const GroupConfig& settings = group_of(config_, weight.spec.group);
    const Tensor w = weight.shard.updated_of(weight.value);
    const double weight_decay = weight.spec.decay ? settings.weight_decay : 0.0;
    if (settings.optimizer == OptimizerKind::kMuon) {
      const auto matrices = [&](const Tensor& x) {
        return x.defined() ? x.reshape(weight.spec.as_matrices(x.shape())) : x;
      };
      ops_.muon_step({.w = matrices(w),
                      .low = matrices(weight.low),
                      .grad = matrices(weight.total),
                      .momentum = matrices(slot.m),
                      .grad_scale = grad_scale,
                      .rates = slot.rates,
                      .random = slot.random,
                      .beta = config_.muon.momentum,
                      .weight_decay = weight_decay,
                      .iterations = static_cast<int>(config_.muon.iterations)});
    } else {
      steps.all.push_back({.w = w,
                           .low = weight.low,
                           .grad = weight.total,
                           .m = slot.m,
                           .v = slot.v,
                           .grad_scale = grad_scale,
                           .rates = slot.rates,
                           .random = slot.random,
                           .beta1 = config_.adamw.beta1,
                           .beta2 = config_.adamw.beta2,
                           .eps = config_.adamw.eps,
                           .weight_decay = weight_decay});
    }
  }
  ops_.adamw_steps(steps);
}

}  // namespace nmoe
