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

  // One update from the gradients times grad_scale ([1] f64). progress.steps is this step's number, from 1.
  void step(const Progress& progress, Tensor grad_scale);

  // Everything a checkpoint must hold for the next step to be the same, named after the parameter:
  // "adamw.m.layers.0.attention.q", "adamw.v...." or "muon.momentum....".
  const std::vector<NamedTensor>& state() const { return state_; }
  // The settings of a trained group.
  const GroupConfig& group(ParameterGroup group) const;

 private:
  struct Slot {
    Parameter* parameter;
    Tensor m;  // AdamW's first moment or Muon's momentum
    Tensor v;  // AdamW's second moment; undefined for Muon
  };

  const OptimConfig& config_;
  Backend& ops_;
  std::vector<Slot> slots_;
  std::vector<NamedTensor> state_;
};

}  // namespace nmoe
