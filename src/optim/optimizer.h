// Applies each weight group's optimizer and owns its state: moments, and the rest of masters (Parameter::low). The
// state of a weight lives in one place, the device's memory or the host's, as optim.offload says. Operations reach it
// in either; the update of what lives in the host's takes it through the device's (optim/host_state.h).
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/weight_set.h"
#include "ops/ops.h"
#include "optim/host_state.h"
#include "optim/schedule.h"
#include "optim/state_layout.h"
#include "tensor/arena.h"
#include "tensor/named_tensor.h"

namespace nmoe {

// The settings of a trained group.
const GroupConfig& group_of(const OptimConfig& config, WeightGroup group);

// Of the elements of a weight that this rank updates: as `layout` has it, or empty.
struct OptimizerState : NamedTensor {
  Weight* weight = nullptr;
  bool in_host = false;
  StateLayout layout = {};

  // Copies `elements` of it to and from host memory, as Device::begin_download() and upload() say. What lives in the
  // host's goes there by way of the weight's gradient, which it overwrites, so that the host waits for nothing.
  void begin_download(Ops& ops, ElementRange elements, void* host) const;
  void upload(Ops& ops, ElementRange elements, const void* host) const;
};

// Where state may live: memory of the device, and mapped memory of the host (Device).
struct StateMemory {
  Arena& device;
  Arena& host;
  int64_t held_bytes = 0;  // of the host's: HostState
};

class Optimizer {
 public:
  // Groups of weights whose matrices are updated whole.
  static std::vector<WeightGroup> by_matrix(const OptimConfig& config);
  // The narrowest elements that are kept of weights which ranks cut: between its chunks they do so. `stat`: the
  // device's.
  static DType narrowest_state(const OptimConfig& config, DType stat);

  // What a step needs to know of its place in the schedule: [3] f64 as in ops/ops.h for each group, and for each factor
  // of rates in it (WeightScaling). `weights`: all of the model's.
  static Tensor allocate_rates(const OptimConfig& config, std::span<const WeightSpec> weights, Arena& arena);

  // Moments start at zero. Gives the weights the rest of their masters, which they do not have yet. `rates`, made by
  // allocate_rates, and rounding_key ([1] i64, another number in every step, of moments in BF16) are read by step().
  // `config` and `weights` must outlive the optimizer.
  Optimizer(const OptimConfig& config, WeightSet& weights, Ops& ops, StateMemory memory, Tensor rates,
            Tensor rounding_key);

  // After weights were told which experts are here (WeightShard::place_experts).
  void place_experts();

  // Fills `rates`, made by allocate_rates in host memory, for the step of `step_tokens` tokens that `progress` ends
  // with; progress.steps is its number, from 1. A rate is its group's scheduled_rate(), floor and all, times the
  // factor.
  void write_rates(const Progress& progress, int64_t step_tokens, Tensor rates) const;
  // One update of what this rank updates, from the gradients times grad_scale ([1] f64), at what the rates are then.
  // Not finite: nothing is changed. Borrows of `room`, a device's arena, for state that lives in host memory, and gives
  // it back but for what is held. What lives on the device is updated between blocks of what lives in the host's, as
  // evenly as whole weights allow, so that neither the lanes that move blocks nor the one that computes waits for the
  // other's end.
  void step(Tensor grad_scale, Arena& room);
  // Begins to fetch what step() will need of that, into the last `bytes` of `room`, as HostState::prefetch() says.
  void prefetch(Arena& room, int64_t bytes) { in_host_->prefetch(room, bytes); }
  // Of that state, and the same `room`, as HostState says: between steps, and where a step begins.
  void hold(Arena& room) { in_host_->hold(room); }
  void settle(Arena& room) { in_host_->settle(room); }
  void write_held(Arena& room) { in_host_->write_held(room); }

  // Everything a checkpoint must hold for the next step to be the same, named after the weight:
  // "adamw.m.layers.0.attention.q", "adamw.v...." or "muon.momentum....", and "adamw.m_scales....",
  // "adamw.v_scales...." of moments in 8 bits.
  const std::vector<OptimizerState>& state() const { return state_; }

 private:
  struct Slot {
    Weight* weight;
    Tensor rates;               // [3] f64
    MomentRounding random;      // of moments that are rounded
    Tensor m_scales, v_scales;  // [blocks] u8 and padding, of codes; on the device, wherever those are
  };
  // Weights with the same rates.
  struct RateClass {
    const GroupConfig* settings;
    double factor;
    bool operator==(const RateClass&) const = default;
  };
  // Its index in `classes`, to which it is added if it is not among them.
  static size_t class_of(const OptimConfig& config, const WeightSpec& weight, std::vector<RateClass>& classes);
  void update(std::span<const StatePart> parts, Tensor grad_scale);

  const OptimConfig& config_;
  Ops& ops_;
  std::vector<RateClass> classes_;    // in the order of their rates
  std::vector<Slot> slots_;           // of weights of which this rank updates something
  std::vector<StatePart> on_device_;  // of slots
  std::optional<HostState> in_host_;  // of the others
  std::vector<OptimizerState> state_;
};

}  // namespace nmoe
