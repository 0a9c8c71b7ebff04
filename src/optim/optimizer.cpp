#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace nmoe {
namespace {

// The random bits of some of a weight's elements, of which there are `size`.
MomentRounding random_of(MomentRounding whole, int64_t size, ElementRange elements) {
  if (!whole.matrices.defined()) {
    whole.first += elements.offset;
  } else {
    const int64_t one = size / whole.matrices.num_elements();
    whole.matrices = whole.matrices.rows(elements.offset / one, elements.end() / one);
  }
  return whole;
}

// Bytes of state that this rank keeps on the device: of weights in definition order, while it has room.
int64_t state_on_device(const OptimConfig& config) {
  if (config.offload == Offload::kNone) return std::numeric_limits<int64_t>::max();
  if (config.offload == Offload::kState) return 0;
  NMOE_CHECK(config.state_on_device >= 0, "optim.offload = \"fit\" without a plan");
  return config.state_on_device;
}

int64_t arena_bytes(DType dtype, const Shape& shape) {
  const int64_t bytes = Tensor(nullptr, dtype, shape).num_bytes();
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

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

void OptimizerState::begin_download(Ops& ops, ElementRange elements, void* host) const {
  Device& device = ops.device();
  const Tensor all = tensor.reshape({tensor.num_elements()}).rows(elements.offset, elements.end());
  if (!in_host) return device.begin_download(host, all);
  const Tensor room = weight->shard.updated_of(weight->grad);
  auto* to = static_cast<std::byte*>(host);
  for (const ElementRange& part : parts_in(room.num_bytes(), tensor.dtype(), elements.extent)) {
    const Tensor on_device(room.raw(), tensor.dtype(), {part.extent});
    ops.copy({.source = all.rows(part.offset, part.end()), .destination = on_device});
    device.begin_download(to, on_device);
    to += on_device.num_bytes();
  }
}

void OptimizerState::upload(Ops& ops, ElementRange elements, const void* host) const {
  ops.device().upload(tensor.reshape({tensor.num_elements()}).rows(elements.offset, elements.end()), host);
}

Optimizer::Optimizer(const OptimConfig& config, WeightSet& weights, Ops& ops, StateMemory memory, Tensor rates,
                     Tensor rounding_key)
    : config_(config), ops_(ops) {
  constexpr int64_t kAnyElements = 64;  // of a tensor that may be cut anywhere: whole cache lines of all
  int64_t left = state_on_device(config_);
  std::vector<HostState::Weight> hosted;
  for (Weight& weight : weights.all()) {
    const Shape shape = weight.shard.updated_shape();
    const bool has_rest = weight.value.dtype() != ops.stat_dtype();
    if (!weight.spec.is_trained()) {
      if (has_rest) weight.low = memory.device.allocate(DType::kI16, shape);
      continue;
    }
    const GroupConfig& settings = group_of(config_, weight.spec.group);
    auto index = std::ranges::find(groups_, &settings);
    if (index == groups_.end()) index = groups_.insert(index, &settings);
    const bool is_muon = settings.optimizer == OptimizerKind::kMuon;
    const MomentFormat format = is_muon ? config_.muon.state : config_.adamw.state;
    const DType dtype = format == MomentFormat::kBf16 ? DType::kBF16 : ops.stat_dtype();
    const int64_t bytes =
        (has_rest ? arena_bytes(DType::kI16, shape) : 0) + (is_muon ? 1 : 2) * arena_bytes(dtype, shape);
    const bool in_host = bytes > left;
    if (!in_host) left -= bytes;
    Arena& arena = in_host ? memory.host : memory.device;
    if (has_rest) weight.low = arena.allocate(DType::kI16, shape);
    Slot slot{.weight = &weight, .rates = rates[index - groups_.begin()], .random = {}};
    int64_t together = is_muon ? weight.shard.updated.extent : kAnyElements;
    if (dtype == DType::kBF16) {
      slot.random = {.key = rounding_key,
                     .stream = fnv1a64((is_muon ? "muon." : "adamw.") + weight.spec.name),
                     .first = weight.shard.updated.offset,
                     .matrices = {}};
      if (weight.spec.group == WeightGroup::kExperts) {
        slot.random.matrices = memory.device.allocate(DType::kI32, {weight.shard.shape[0]});
        if (!is_muon) together = weight.shard.shape[1] * weight.shard.shape[2];
      }
    }
    WeightState state{.low = weight.low, .m = arena.allocate(dtype, shape), .v = {}};
    if (is_muon) {
      state_.push_back({{"muon.momentum." + weight.spec.name, state.m}, &weight, in_host});
    } else {
      state.v = arena.allocate(dtype, shape);
      state_.push_back({{"adamw.m." + weight.spec.name, state.m}, &weight, in_host});
      state_.push_back({{"adamw.v." + weight.spec.name, state.v}, &weight, in_host});
    }
    if (weight.shard.updated.extent == 0) continue;
    if (in_host) {
      hosted.push_back({slots_.size(), state, together});
    } else {
      on_device_.push_back({slots_.size(), {0, weight.shard.updated.extent}, state});
    }
    slots_.push_back(slot);
  }
  in_host_.emplace(ops.device(), hosted);
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

void Optimizer::step(Tensor grad_scale, Arena& room) {
  std::span<const StatePart> left = on_device_;
  const auto num_elements = [](std::span<const StatePart> parts) {
    return std::transform_reduce(parts.begin(), parts.end(), int64_t{0}, std::plus<>(),
                                 [](const StatePart& part) { return part.elements.extent; });
  };
  const auto all = static_cast<double>(num_elements(left));
  // Whole parts, until no more than this share of all elements is left.
  const auto update_until = [&](double share) {
    size_t count = 0;
    while (count < left.size() && static_cast<double>(num_elements(left.subspan(count))) > share * all) ++count;
    if (count > 0) update(left.first(count), grad_scale);
    left = left.subspan(count);
  };
  const auto num_blocks = static_cast<double>(in_host_->num_blocks());
  in_host_->update(
      room, [&](std::span<const StatePart> parts) { update(parts, grad_scale); },
      [&](size_t num_updated) { update_until(1.0 - static_cast<double>(num_updated) / num_blocks); });
  update_until(0.0);
}

void Optimizer::update(std::span<const StatePart> parts, Tensor grad_scale) {
  AdamWSteps steps;
  for (const auto& [index, elements, state] : parts) {
    const Slot& slot = slots_[index];
    const Weight& weight = *slot.weight;
    const GroupConfig& settings = group_of(config_, weight.spec.group);
    const Tensor w = weight.shard.updated_of(weight.value);
    const double weight_decay = weight.spec.decay ? settings.weight_decay : 0.0;
    if (settings.optimizer == OptimizerKind::kMuon) {
      const auto matrices = [&, &spec = weight.spec](const Tensor& x) {
        return x.defined() ? x.reshape(spec.as_matrices(w.shape())) : x;
      };
      ops_.muon_step({.w = matrices(w),
                      .low = matrices(state.low),
                      .grad = matrices(weight.total),
                      .momentum = matrices(state.m),
                      .grad_scale = grad_scale,
                      .rates = slot.rates,
                      .random = slot.random,
                      .beta = config_.muon.momentum,
                      .weight_decay = weight_decay,
                      .iterations = static_cast<int>(config_.muon.iterations)});
    } else {
      const auto part = [&, range = elements](const Tensor& x) {
        return x.reshape({x.num_elements()}).rows(range.offset, range.end());
      };
      steps.all.push_back({.w = part(w),
                           .low = state.low,
                           .grad = part(weight.total),
                           .m = state.m,
                           .v = state.v,
                           .grad_scale = grad_scale,
                           .rates = slot.rates,
                           .random = random_of(slot.random, w.num_elements(), elements),
                           .beta1 = config_.adamw.beta1,
                           .beta2 = config_.adamw.beta2,
                           .eps = config_.adamw.eps,
                           .weight_decay = weight_decay});
    }
  }
  ops_.adamw_steps(steps);
}

}  // namespace nmoe
