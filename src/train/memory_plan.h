// The memory a run will use, by owner, before it uses any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/cost.h"
#include "train/engine.h"

namespace nmoe {

struct MemoryLine {
  std::string owner;
  int64_t bytes = 0;
  std::string meaning;
  bool on_device = false;  // in a device's memory, not the host's
};

struct MemoryPlan {
  StoragePlan storage;            // of one rank
  std::vector<MemoryLine> lines;  // largest part of a run's resident size, by owner; of all ranks
  int64_t total_bytes = 0;        // in host memory
  int64_t device_bytes = 0;       // in that of one rank's device, where it has its own
  int64_t device_limit = 0;       // what that can hold
  ModelCost cost;
};

// Measures `config` (vocab_size resolved) by a counting run. `data_bytes`: data files the run will read through
// memory maps. Loads what a run loads lazily (BLAS kernels, the metrics database), so that the line for the
// process itself is what this process really holds.
MemoryPlan plan_memory(const Config& config, int64_t data_bytes);

// Parameters and FLOPs of `config` (vocab_size resolved).
ModelCost cost_of(const Config& config);

// A table with parameters and FLOPs per token below it.
std::string print_plan(const MemoryPlan& plan, const Config& config);

// Error (usage) with the keys to lower when the plan exceeds train.memory_limit or what the machine has left.
void check_memory(const MemoryPlan& plan, const Config& config);

}  // namespace nmoe
