// Times training steps of a configuration.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "model/spec/cost.h"
#include "ops/device.h"
#include "ops/products/products.h"
#include "rdep/moves.h"
#include "rdep/statistics.h"

namespace nmoe {

struct TrainBench {
  // Of steps that were run apart, unrecorded and with a wait after every part: they add up to more than a step.
  struct Phase {
    std::string_view name;  // step_phase_name()
    double ms = 0.0;        // a step's, median
  };
  // One of the model's. Its part in the phases that are of layers, and, with several ranks, its exchange in the last
  // timed step.
  struct Layer {
    int64_t layer = 0;
    std::vector<Phase> phases;
    double rank_load_max_over_mean = 0.0;  // of the rows of ranks; 0: no exchange, as for all that follows
    std::vector<double> sent_bytes;        // by rank: what it put into the memory of others
    // By rank, of each transfer: the wait for others at its end, all of it, and what other work did not hide.
    std::vector<std::array<double, kTransfers.size()>> waited_ms, lasted_ms, exposed_ms;
  };
  // The memory of the device, or of this process where the device has none of its own.
  struct Memory {
    int64_t planned_bytes = 0;  // without the copy for checkpoints, of which a bench writes none
    int64_t peak_bytes = 0;     // when the steps were over: nothing that a step allocates goes before
  };
  std::string device;
  SoftwareVersions software;
  std::string product_identity;      // product_identity() of the first rank's device
  std::vector<ProductUse> products;  // of the steps on it; a recording's count once
  std::string fingerprint;           // of the configuration, its vocabulary resolved
  std::string tokens;                // where they came from: the corpus, or random ids
  int64_t warmup = 0;                // steps before
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  int64_t num_ranks = 1;
  int64_t num_microbatches = 0;  // of a step, on each rank
  ModelCost cost;
  double first_step_s = 0.0;  // from the start of the process to the end of its first step
  double ms_per_step = 0.0;   // mean of steps enqueued one behind the other, as a trainer does
  std::vector<Phase> phases;
  std::vector<Layer> layers;
  double tokens_per_s = 0.0;
  double flops_per_token = 0.0;  // mean of the timed steps, attention counted within the documents that they had
  double flops = 0.0;            // flops_per_token * tokens_per_s
  double peak_flops = 0.0;       // of all ranks; measured before and after the steps, the larger; or known
  std::string peak_source;
  Memory memory;
  // Of each timed step: mean cross-entropy in nats, and the fullest expert's rows over the mean, in the worst layer.
  std::vector<double> losses;
  std::vector<double> loads;             // 0 without routers
  double loss = 0.0;                     // mean of losses
  double load_max_over_mean = 0.0;       // mean of loads
  double rank_load_max_over_mean = 1.0;  // of the layer where it is most, in the last step; 1: there is one rank
  int64_t expert_moves = 0;              // in all steps (parallel.rebalance_every)
  Rebalancing last_rebalancing;
  double rebalancing_ms = 0.0;  // of that, with the wait for the steps before it
};

// Runs `warmup` steps, then times `steps`. On the corpus in data.path, or on random ids where there is none; then Error
// (usage) unless model.vocab_size is set. Error (runtime) for a loss or gradient that is not finite. Times and memory
// are those of the first rank.
TrainBench bench_train(const Config& config, int64_t warmup, int64_t steps);

}  // namespace nmoe
