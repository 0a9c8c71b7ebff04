// The memory that a run will use, by owner, computed before it uses any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/spec/cost.h"
#include "train/plan/engine_plan.h"

namespace nmoe {

struct MemoryLine {
  std::string owner;
  int64_t bytes = 0;
  std::string meaning;
  bool on_device = false;  // in a device's memory, not the host's
};

struct MemoryPlan {
  StoragePlan storage;            // of one rank
  std::vector<MemoryLine> lines;  // largest part of a process's resident size, by owner; of its ranks
  int64_t total_bytes = 0;        // in host memory
  int64_t ranks = 1;              // in this process
  int64_t device_bytes = 0;       // in the memory of one rank's device, if it has its own
  int64_t device_limit = 0;       // capacity of that memory
  double device_flops = 0.0;      // its peak
  std::string part;               // the kind of GPU planned for instead of a present device; else ""
  ModelCost cost;
  ExpertRows expert_rows;  // of a rank; all zero if ranks do not share experts
  // Of optimizer state, that stay on the device with optim.offload = "fit": OptimConfig::state_on_device of the engines
  // that use this storage.
  int64_t state_on_device = -1;
  int64_t worst_bytes = 0;  // that one rank would need in addition to have room for the worst routing at once
};

// Measures `config` (vocab_size resolved) by a counting run. With optim.offload = "fit" it decides how much state stays
// on the device: as much as its memory, or train.memory_limit, has left for it; all where the host's memory is the
// device's. `data_bytes`: data files the run will read through memory
// maps. Loads what a run loads lazily (BLAS kernels, the metrics database), so that the line for the process itself is
// what this process really uses. `ranks`: the number of parallel.ranks that this process will drive.
//
// `part`: plans for that kind of GPU instead, on any machine; run.device is "cuda". The memory of CUDA and its
// libraries is then taken from an earlier measurement. `seq_lens`: the lengths of the run's sequences
// (sequence_lengths()); empty: data.seq_len alone.
MemoryPlan plan_memory(const Config& config, int64_t data_bytes, int64_t ranks, const std::optional<GpuPart>& part = {},
                       std::span<const int64_t> seq_lens = {});

// A table with parameters and FLOPs per token below it.
std::string print_plan(const MemoryPlan& plan, const Config& config);

// Error (usage), with the keys to lower, if the plan exceeds train.memory_limit or the machine's available memory. For
// a GPU that is not present, only its own memory counts.
void check_memory(const MemoryPlan& plan, const Config& config);

}  // namespace nmoe
