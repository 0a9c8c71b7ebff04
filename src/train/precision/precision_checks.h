// A run's checks of precision: steps measure the rounding errors of products, from which the format of the following
// products of each part of a layer is decided (precision_watch.h).
//
// One step in precision.check_every measures, on each rank, each weight's first product of each kind in the first
// microbatch. The counts are integers, so that their sum over all ranks does not depend on an order. With
// parallel.logical_shards only the first shard is measured, on whichever rank it is.
//
// Threads: that of the engine.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "config/config.h"
#include "model/weight_set.h"
#include "ops/storage.h"
#include "train/precision/precision_watch.h"

namespace nmoe {

// The result of a step that was checked.
struct PrecisionReport {
  std::vector<RoleCheck> roles;  // empty: the step was not checked
  std::vector<PrecisionWatch::Change> changes;
};

class PrecisionChecks {
 public:
  // To be called after set_operand_formats(). Nothing if run.precision is not low, or checks are off.
  static std::optional<PrecisionChecks> make(const Config& config, WeightSet& weights, Arena& state);

  bool is_due(int64_t step) const { return step % config_.check_every == 0; }
  // Whether checks may change the formats of later products.
  bool acts() const { return config_.fallback == PrecisionFallback::kAct; }
  Tensor counts() const { return counts_; }  // [W, kNumMeasured, 5] f64, on the device: RoundingCounts
  // Makes this a checked step; to be called before its first product. `dense`: whether this
  // rank measures the weights that all ranks have.
  void begin(Ops& ops, bool dense);

  // Decides from a step's counts, summed over the ranks.
  PrecisionReport observe(std::span<const double> counts);
  // Gives the weights' products the formats that were decided, if acts(). Returns whether any has changed.
  bool set_formats();

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
