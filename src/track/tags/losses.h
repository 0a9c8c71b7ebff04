// The losses of objectives, which are declared with these (model/heads/objectives.h).
#pragma once

#include <array>
#include <cstddef>

#include "base/metric.h"
#include "model/heads/objectives.h"

namespace nmoe::tags {

inline constexpr const Metric& kLoss = kNextToken.metric;

inline constexpr auto kLossMetrics = [] {
  std::array<const Metric*, kObjectives.size()> metrics{};
  for (size_t i = 0; i < metrics.size(); ++i) metrics[i] = &kObjectives[i]->metric;
  return metrics;
}();

}  // namespace nmoe::tags
