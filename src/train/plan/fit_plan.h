// The choices of how a run uses memory that fit a device, fastest first: `n plan --fit`, `n train --fit`.
//
// Candidates are the products of train.recompute, train.microbatch_seqs, and optim.offload "none" and "fit". Of
// train.recompute there are all levels ("host" where the device has memory of its own), the list that is configured, if
// it is one, and lists of a level for the first layers and the one before it for the others. All keep what is computed,
// and the bits, too, but for microbatches of another size, which add gradients in another order (unless
// parallel.logical_shards fixes it, and with it their size). Others round what a step keeps: moments, gradients of
// experts, pre-activations; they are told apart, and are for a person to choose.
//
// Each candidate is planned by a counting run, as the run itself will be (train/plan/memory_plan.h), so what is said to
// fit does; on a GPU with a hundredth of its memory to spare, by which a plan may be wrong. Of those that differ in
// microbatches alone the largest that fits is the fastest, and is found by bisection; of like microbatches the one with
// the least recomputation: where a level fits and the one before does not, or only with more state in host memory than
// hides, the first layers have that level, as few as it takes, by bisection again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_time.h"

namespace nmoe {

struct FitChoice {
  Config config;  // with the choice's keys set
  MemoryPlan memory;
  StepTime time;                    // by the rates of FitPlan; only their order means something unless it is timed
  bool reorders_sums = false;       // microbatches of another size than was configured
  std::vector<std::string> rounds;  // "train.gradients = \"bf16\"": keys that change what is computed
};

struct FitPlan {
  std::vector<FitChoice> choices;  // that compute the same, fastest first
  // For each set of keys that round more the fastest that fits, if it is faster than without a part of them; fastest
  // first.
  std::vector<FitChoice> rounding;
  std::string timed_as;  // the part whose rates are used; "": none are known, and times are not predicted
};

// Of `config` (vocab_size resolved), which `planner` was made for.
FitPlan plan_fit(const Config& config, const MemoryPlanner& planner);

// The value of a key, names without quotes.
std::string fit_key(const Config& config, std::string_view key);
// The keys that choices differ in, as `config` has them: TOML, sections and all.
std::string fit_keys(const Config& config);

// For a plan without choices that compute the same.
Error nothing_fits(const FitPlan& plan, const Config& config);

// For the remedy of a run whose `plan` does not fit: what single keys would save of the memory in question, "; ..."
// each; "" if there are none. `part` and `seq_lens`: as for its planner.
std::string describe_savings(const Config& config, const MemoryPlan& plan, const std::optional<GpuPart>& part = {},
                             std::span<const int64_t> seq_lens = {});

}  // namespace nmoe
