// Applies each parameter group's optimizer and owns its state.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/parameters.h"
#include "ops/backend.h"
#include "optim/schedule.h"
#include "tensor/arena.h"
#include "tensor/named_tensor.h"

namespace nmoe {

class Optimizer {
 public:
  // State starts at zero in `arena`. `config` and `parameters` must outlive the optimizer.
  Optimizer(const OptimConfig& config, ParameterSet& parameters, Backend& ops, Arena& arena);

  // Puts the rates of the step that `progress` ends with on the device; progress.steps is its number, from 1.
  void set_rates(const Progress& progress);
  // One update from the gradients times grad_scale ([1] f64), at the rates that are set. Not finite: nothing is
  // changed.
  void step(Tensor grad_scale);

  // Everything a checkpoint must hold for the next step to be the same, named after the parameter:
  // "adamw.m.layers.0.attention.q", "adamw.v...." or "muon.momentum....".
  const std::vector<NamedTensor>& state() const { return state_; }
  // The settings of a trained group.
  const GroupConfig& group(ParameterGroup group) const;

 private:
  // Rates of parameters that train alike: [3] f64, ops/backend.h.
  struct Rates {
    const GroupConfig* group;
    Tensor tensor;
  };
  struct Slot {
    Parameter* parameter;
    Tensor rates;
    Tensor m;  // AdamW's first moment or Muon's momentum
    Tensor v;  // AdamW's second moment; undefined for Muon
  };

  const OptimConfig& config_;
  Backend& ops_;
  std::vector<Rates> rates_;
  std::vector<Slot> slots_;
  std::vector<NamedTensor> state_;
};

}  // namespace nmoe
