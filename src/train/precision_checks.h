// The checks of precision of a run: where an engine's steps leave what rounding loses of products, and what follows for
// its weights' products (precision_watch.h).
//
// Every precision.check_every steps a step measures the first product of each weight and kind on each rank, of its
// first microbatch. The counts are whole numbers, summed over all ranks, so that all see the same, in any order. With
// parallel.logical_shards what is measured is the first shard's, on whichever rank that is.
//
// Threads: that of the engine.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "config/config.h"
#include "model/weight.h"
#include "ops/storage.h"
#include "train/precision_watch.h"

namespace nmoe {

// What a step that was checked tells.
struct PrecisionReport {
  std::vector<RoleCheck> roles;  // empty: no check
  std::vector<PrecisionWatch::Change> changes;
};

class PrecisionChecks {
 public:
  // Behind set_operand_formats(). Nothing where run.precision is not low, or nobody looks.
  static std::optional<PrecisionChecks> make(const Config& config, WeightSet& weights, Arena& state);

  bool is_due(int64_t step) const { return step % config_.check_every == 0; }
  // Whether what a check finds changes what comes next.
  bool acts() const { return config_.fallback == PrecisionFallback::kAct; }
  Tensor counts() const { return counts_; }  // [W, kNumMeasured, 5] f64, on the device: RoundingCounts
  // Enqueues, in front of a step's first product, what makes it one that is checked. `dense`: whether this rank
  // measures what all ranks have.
  void begin(Ops& ops, bool dense);

  // Of counts that a step left, summed: decides.
  PrecisionReport observe(std::span<const double> counts);
  // Makes the next products of weights what was decided, if it acts. Whether any is now another.
  bool set_formats();
  void leave_all();  // as if all roles had to

  const std::vector<PrecisionRole>& state() const { return watch_.state(); }
  bool restore(std::span<const PrecisionRole> state);  // as PrecisionWatch's

 private:
  struct Watched {
    Weight* weight;
    size_t role;
  };
  PrecisionChecks(const PrecisionConfig& config, WeightSet& weights, std::vector<Watched> watched,
                  std::vector<PrecisionWatch::Role> roles);

  PrecisionConfig config_;
  WeightSet* weights_;
  std::vector<Watched> watched_;  // by rows of counts_
  PrecisionWatch watch_;
  Tensor counts_;
};

}  // namespace nmoe
