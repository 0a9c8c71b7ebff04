// Times training steps of a configuration.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "model/cost.h"

namespace nmoe {

struct TrainBench {
  std::string device;
  std::string tokens;  // where they came from: the corpus, or random ids
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  ModelCost cost;
  double ms_per_step = 0.0;  // median
  double ms_forward_backward = 0.0;
  double ms_optimizer = 0.0;  // gradient norm, clipping, update, router bias
  double tokens_per_s = 0.0;
  double flops = 0.0;               // cost.flops_per_token * tokens_per_s
  double peak_flops = 0.0;          // measured before and after the steps; the larger
  double load_max_over_mean = 0.0;  // of the last step, worst layer; 0 without routers
};

// Runs `warmup` steps, then times `steps`. On the corpus in data.path, or on random ids where there is none (then
// model.vocab_size must be set).
TrainBench bench_train(const Config& config, int64_t warmup, int64_t steps);

}  // namespace nmoe
