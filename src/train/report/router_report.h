// Router health as numbers to log, and the rules that call a router collapsed or far from balance.
#pragma once

#include <span>
#include <string>

#include "config/config.h"
#include "track/record.h"
#include "train/step/engine.h"

namespace nmoe {

// Adds router/layer_LL/... and router_agg/... to `record` (track/tags/router.h has their meanings), LL being the
// model's layer (layer_01 is that of the weights layers.1).
void report_routers(std::span<const RouterHealth> layers, MetricRecord& record);

struct FullestExpert {
  int64_t layer = 0;       // of the model
  double over_mean = 0.0;  // its rows, divided by the mean of its layer's experts; 0 without routers
};
// Of the layer in which it is fullest.
FullestExpert fullest_expert(std::span<const RouterHealth> layers);

// Notices routers that stay far from balance. Every router is uneven at first, so steps before kFirstStep do not count,
// nor does a single step.
class BalanceWatch {
 public:
  static constexpr int64_t kFirstStep = 200;
  static constexpr int kNumSteps = 3;  // reported steps in a row that are out of balance
  // The fullest expert's rows over the mean, up to which a router is healthy; at most three quarters of num_experts /
  // top_k, where it would get every token.
  static constexpr double kHealthyLoad = 4.0;
  // With fewer rows an expert, chance alone makes loads uneven.
  static constexpr double kMinMeanRows = 16.0;

  // `config` is copied.
  explicit BalanceWatch(const Config& config);

  // Takes the routers' health in a reported step. Returns "" or a sentence with the layer, its load and the keys to
  // change; after one, no other until the run has twice as many steps.
  std::string observe(int64_t step, std::span<const RouterHealth> layers);

 private:
  MoeConfig moe_;
  double router_lr_;
  double limit_;
  int num_uneven_ = 0;  // reported steps in a row
  int64_t quiet_until_ = kFirstStep;
};

// At most top_k + 1 experts get any token and cv is at least 97 % of what exactly top_k experts sharing everything
// would have, 100 * sqrt((E - K) / K). Never if there are so few experts that an even load would satisfy this.
bool is_collapsed(int64_t num_active, double cv_percent, int64_t num_experts, int64_t top_k);

// "" or the layer that is collapsed, and why.
std::string find_collapse(std::span<const RouterHealth> layers, const MoeConfig& moe);

}  // namespace nmoe
