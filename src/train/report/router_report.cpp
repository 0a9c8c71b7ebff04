#include "train/report/router_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "track/tags/router.h"

namespace nmoe {
namespace {

struct Load {
  double mean = 0;
  double max = 0;
  double cv_percent = 0;
  int64_t active = 0;  // experts with at least one row

  double over_mean() const { return mean > 0 ? max / mean : 0.0; }
};

Load measure(const RouterHealth& layer) {
  const double num_experts = static_cast<double>(layer.counts.size());
  Load load;
  load.mean = std::accumulate(layer.counts.begin(), layer.counts.end(), 0.0) / num_experts;
  double variance = 0;
  for (const int32_t count : layer.counts) {
    load.max = std::max(load.max, static_cast<double>(count));
    load.active += count > 0 ? 1 : 0;
    variance += (count - load.mean) * (count - load.mean) / num_experts;
  }
  load.cv_percent = load.mean > 0 ? 100.0 * std::sqrt(variance) / load.mean : 0.0;
  return load;
}

}  // namespace

void report_routers(std::span<const RouterHealth> layers, MetricRecord& record) {
  if (layers.empty()) return;
  double sum_cv = 0, sum_cv_squared = 0, sum_entropy = 0, min_entropy = layers[0].entropy, dead = 0, active = 0;
  for (const RouterHealth& layer : layers) {
    const Load load = measure(layer);
    const double num_experts = static_cast<double>(layer.counts.size());
    const auto put = [&](const Metric& metric, auto value) { record.put(metric, {layer.layer}, value); };
    put(tags::kRouterLoadMaxOverMean, load.over_mean());
    put(tags::kRouterMaxLoad, load.mean > 0 ? 100.0 * load.max / (load.mean * num_experts) : 0.0);
    put(tags::kRouterCv, load.cv_percent);
    put(tags::kRouterEntropy, layer.entropy);
    put(tags::kRouterExpertsActive, static_cast<double>(load.active));
    put(tags::kRouterBiasRange, layer.bias_range());
    put(tags::kRouterBalanceLoss, layer.balance_loss);
    put(tags::kRouterZLoss, layer.z_loss);
    put(tags::kRouterLoad, std::vector<float>(layer.counts.begin(), layer.counts.end()));
    put(tags::kRouterBias, layer.bias);
    sum_cv += load.cv_percent;
    sum_cv_squared += load.cv_percent * load.cv_percent;
    sum_entropy += layer.entropy;
    min_entropy = std::min(min_entropy, layer.entropy);
    dead += num_experts - static_cast<double>(load.active);
    active += static_cast<double>(load.active);
  }
  const double count = static_cast<double>(layers.size());
  const double mean_cv = sum_cv / count;
  record.put(tags::kRoutersMeanCv, mean_cv);
  record.put(tags::kRoutersStdCv, std::sqrt(std::max(0.0, sum_cv_squared / count - mean_cv * mean_cv)));
  record.put(tags::kRoutersMeanEntropy, sum_entropy / count);
  record.put(tags::kRoutersMinEntropy, min_entropy);
  record.put(tags::kRoutersDeadExpertsCount, dead);
  record.put(tags::kRoutersExpertsActiveMean, active / count);
}

FullestExpert fullest_expert(std::span<const RouterHealth> layers) {
  FullestExpert fullest;
  for (const RouterHealth& layer : layers) {
    const double over_mean = measure(layer).over_mean();
    if (over_mean > fullest.over_mean) fullest = {.layer = layer.layer, .over_mean = over_mean};
  }
  return fullest;
}

BalanceWatch::BalanceWatch(const Config& config)
    : moe_(config.model.moe),
      router_lr_(config.optim.router.lr),
      limit_(std::min(kHealthyLoad, 0.75 * static_cast<double>(moe_.num_experts) / static_cast<double>(moe_.top_k))) {}

std::string BalanceWatch::observe(int64_t step, std::span<const RouterHealth> layers) {
  if (layers.empty()) return "";
  const FullestExpert fullest = fullest_expert(layers);
  const bool uneven = fullest.over_mean > limit_ && measure(layers[0]).mean >= kMinMeanRows;
  num_uneven_ = uneven ? num_uneven_ + 1 : 0;
  if (num_uneven_ < kNumSteps || step < quiet_until_) return "";
  quiet_until_ = 2 * step;
  const std::string balancing = moe_.bias_rate > 0.0 ? fmt::format("model.moe.bias_rate ({})", moe_.bias_rate)
                                                     : fmt::format("model.moe.balance_loss ({})", moe_.balance_loss);
  return fmt::format(
      "step {}: the router of layer {} is far from balance: its fullest expert gets {:.1f} times the mean, {:.0f} % "
      "of all tokens; raise {} or lower optim.router.lr ({}): docs/routing.md",
      step, fullest.layer, fullest.over_mean,
      100.0 * fullest.over_mean * static_cast<double>(moe_.top_k) / static_cast<double>(moe_.num_experts), balancing,
      router_lr_);
}

bool is_collapsed(int64_t num_active, double cv_percent, int64_t num_experts, int64_t top_k) {
  if (num_experts <= top_k + 1 || num_active > top_k + 1) return false;
  return cv_percent >= 97.0 * std::sqrt(static_cast<double>(num_experts - top_k) / static_cast<double>(top_k));
}

std::string find_collapse(std::span<const RouterHealth> layers, const MoeConfig& moe) {
  for (const RouterHealth& layer : layers) {
    const Load load = measure(layer);
    if (is_collapsed(load.active, load.cv_percent, moe.num_experts, moe.top_k)) {
      return fmt::format("the router of layer {} has collapsed: {} of {} experts get every token (load cv {:.0f} %)",
                         layer.layer, load.active, moe.num_experts, load.cv_percent);
    }
  }
  return "";
}

}  // namespace nmoe
