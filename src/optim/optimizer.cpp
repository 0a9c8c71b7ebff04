#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "ops/moment_codes.h"

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

// The scales of some of a weight's elements' codes, of which there are `size`; undefined if moments are no codes.
Tensor scales_of(const Tensor& scales, const MomentRounding& whole, int64_t size, ElementRange elements) {
  if (!scales.defined()) return {};
  if (!whole.matrices.defined())
    return scales.rows(elements.offset / moments::kBlock, moments::num_blocks(elements.end()));
  const int64_t one = size / whole.matrices.num_elements(), blocks = moments::num_blocks(one);
  return scales.rows(elements.offset / one * blocks, elements.end() / one * blocks);
}

// Bytes of state that this rank keeps on the device: of weights in definition order, while it has room.
int64_t state_on_device(const OptimConfig& config) {
  if (config.offload == Offload::kNone) return std::numeric_limits<int64_t>::max();
  if (config.offload == Offload::kState) return 0;
  NMOE_CHECK(config.state_on_device >= 0, "optim.offload = \"fit\" without a plan");
  return config.state_on_device;
}

DType moments_of(MomentFormat format, DType stat) {
  switch (format) {
    case MomentFormat::kFp32:
      break;
    case MomentFormat::kBf16:
      return DType::kBF16;
    case MomentFormat::kFp8:
      return DType::kU8;
  }
  return stat;
}

int64_t arena_bytes(DType dtype, const Shape& shape) {
  return Arena::aligned(Tensor(nullptr, dtype, shape).num_bytes());
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

DType Optimizer::narrowest_state(const OptimConfig& config, DType stat) { return moments_of(config.adamw.state, stat); }

Tensor Optimizer::allocate_rates(const OptimConfig& config, std::span<const WeightSpec> weights, Arena& arena) {
  std::vector<RateClass> classes;
  for (const WeightSpec& weight : weights) {
    if (weight.is_trained()) class_of(config, weight, classes);
  }
  return arena.allocate(DType::kF64, {std::ssize(classes), 3});
}

size_t Optimizer::class_of(const OptimConfig& config, const WeightSpec& weight, std::vector<RateClass>& classes) {
  const GroupConfig& settings = group_of(config, weight.group);
  const RateClass wanted{&settings, weight.scaling.rate(settings.optimizer)};
  const auto found = std::ranges::find(classes, wanted);
  if (found != classes.end()) return static_cast<size_t>(found - classes.begin());
  classes.push_back(wanted);
  return classes.size() - 1;
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
  constexpr int64_t kAnyElements = moments::kBlock;  // of a tensor that may be cut anywhere: whole cache lines of all
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
    const auto index = static_cast<int64_t>(class_of(config_, weight.spec, classes_));
    const bool is_muon = settings.optimizer == OptimizerKind::kMuon;
    const MomentFormat format = is_muon ? config_.muon.state : config_.adamw.state;
    const DType dtype = moments_of(format, ops.stat_dtype());
    const int64_t bytes =
        (has_rest ? arena_bytes(DType::kI16, shape) : 0) + (is_muon ? 1 : 2) * arena_bytes(dtype, shape);
    const bool in_host = bytes > left;
    if (!in_host) left -= bytes;
    Arena& arena = in_host ? memory.host : memory.device;
    if (has_rest) weight.low = arena.allocate(DType::kI16, shape);
    Slot slot{.weight = &weight, .rates = rates[index], .random = {}, .m_scales = {}, .v_scales = {}};
    int64_t together = is_muon ? weight.shard.updated.extent : kAnyElements;
    if (format != MomentFormat::kFp32) {
      slot.random = {.key = rounding_key,
                     .stream = fnv1a64((is_muon ? "muon." : "adamw.") + weight.spec.name),
                     .first = weight.shard.updated.offset,
                     .matrices = {}};
      if (weight.spec.per_expert) {
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
    if (format == MomentFormat::kFp8) {
      const StateLayout layout{moments::kBlock};
      const auto allocate_scales = [&](const char* prefix) {
        const Tensor scales = memory.device.allocate(DType::kU8, layout.shape_here(weight.spec, weight.shard));
        state_.push_back({{prefix + weight.spec.name, scales}, &weight, /*in_host=*/false, layout});
        return scales.reshape({scales.num_elements()});
      };
      slot.m_scales = allocate_scales("adamw.m_scales.");
      slot.v_scales = allocate_scales("adamw.v_scales.");
    }
    if (weight.shard.updated.extent == 0) continue;
    if (in_host) {
      hosted.push_back({slots_.size(), state, together});
    } else {
      on_device_.push_back({slots_.size(), {0, weight.shard.updated.extent}, state});
    }
    slots_.push_back(slot);
  }
  in_host_.emplace(ops.device(), hosted, memory.held_bytes);
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
  for (size_t i = 0; i < classes_.size(); ++i) {
    double* values = rates[static_cast<int64_t>(i)].data<double>();
    values[0] = classes_[i].factor * scheduled_rate(config_.schedule, classes_[i].settings->lr, progress, step_tokens);
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
  in_host_->update(
      room, [&](std::span<const StatePart> parts) { update(parts, grad_scale); }, update_until);
  update_until(0.0);
}

void Optimizer::update(std::span<const StatePart> parts, Tensor grad_scale) {
  AdamWSteps steps;
  for (const auto& [index, elements, state] : parts) {
    const Slot& slot = slots_[index];
    const Weight& weight = *slot.weight;
    const GroupConfig& settings = group_of(config_, weight.spec.group);
    const Tensor w = weight.shard.updated_of(weight.value);
    const WeightScaling& scaling = weight.spec.scaling;
    const double weight_decay = weight.spec.decay ? settings.weight_decay * scaling.decay(settings.optimizer) : 0.0;
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
                      .iterations = static_cast<int>(config_.muon.iterations),
                      .products = config_.muon.products});
    } else {
      const auto part = [&, range = elements](const Tensor& x) {
        return x.reshape({x.num_elements()}).rows(range.offset, range.end());
      };
      steps.all.push_back({.w = part(w),
                           .low = state.low,
                           .grad = part(weight.total),
                           .m = state.m,
                           .v = state.v,
                           .m_scales = scales_of(slot.m_scales, slot.random, w.num_elements(), elements),
                           .v_scales = scales_of(slot.v_scales, slot.random, w.num_elements(), elements),
                           .grad_scale = grad_scale,
                           .rates = slot.rates,
                           .random = random_of(slot.random, w.num_elements(), elements),
                           .beta1 = config_.adamw.beta1,
                           .beta2 = config_.adamw.beta2,
                           .eps = config_.adamw.eps * scaling.eps,
                           .weight_decay = weight_decay});
    }
  }
  ops_.adamw_steps(steps);
}

}  // namespace nmoe
