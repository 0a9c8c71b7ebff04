// The memory that a run will use, by owner, computed before it uses any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/spec/cost.h"
#include "ops/device.h"
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

// Plans configurations of one run, which differ in how they use memory and not in their model, data and ranks.
class MemoryPlanner {
 public:
  // `config` (vocab_size resolved) for `ranks` of parallel.ranks, which this process will drive. `data_bytes`: data
  // files the run will read through memory maps. Loads what a run loads lazily (BLAS kernels, the metrics database), so
  // that the line for the process itself is what this process really uses.
  //
  // `part`: plans for that kind of GPU instead, on any machine; run.device is "cuda". The memory of CUDA and its
  // libraries is then taken from an earlier measurement. `seq_lens`: the lengths of the run's sequences
  // (sequence_lengths()); empty: data.seq_len alone.
  MemoryPlanner(const Config& config, int64_t data_bytes, int64_t ranks, const std::optional<GpuPart>& part = {},
                std::span<const int64_t> seq_lens = {});

  // By a counting run. With optim.offload = "fit" it decides how much state stays on the device: as much as its memory,
  // or train.memory_limit, has left for it; all where the host's memory is the device's. Without worst_bytes.
  MemoryPlan plan(const Config& config) const;
  // MemoryPlan::worst_bytes of a plan of `config`.
  int64_t worst_bytes(const Config& config, const MemoryPlan& plan) const;

  // What the device is called: a part's name, or its own.
  const std::string& device_name() const { return device_name_; }

 private:
  StoragePlan storage(const Config& config) const { return plan_engine_storage(config, ranks_, part_, seq_lens_); }

  int64_t data_bytes_, ranks_, process_bytes_;
  std::optional<GpuPart> part_;
  std::vector<int64_t> seq_lens_;
  std::unique_ptr<Device> device_;
  std::string device_name_;
};

// The plan of one configuration, as a MemoryPlanner makes it, and with worst_bytes.
MemoryPlan plan_memory(const Config& config, int64_t data_bytes, int64_t ranks, const std::optional<GpuPart>& part = {},
                       std::span<const int64_t> seq_lens = {});

// A table with parameters and FLOPs per token below it.
std::string print_plan(const MemoryPlan& plan, const Config& config);

// What must be left of a GPU's memory: nothing, or the hundredth by which a plan may be wrong.
enum class Spare { kNone, kHundredth };
// Whether the plan is within train.memory_limit and the machine's available memory. For a GPU that is not present, only
// its own memory counts.
bool fits_memory(const MemoryPlan& plan, const Config& config, Spare spare = Spare::kNone);
// The same of the device that computes alone, whatever a GPU's host has room for.
bool fits_device(const MemoryPlan& plan, const Config& config, Spare spare);
// Error (usage), with the keys to lower, if it is not. `savings`: asked then what other keys would save, for the remedy
// (train/plan/fit_plan.h).
void check_memory(const MemoryPlan& plan, const Config& config, const std::function<std::string()>& savings = {});

}  // namespace nmoe
