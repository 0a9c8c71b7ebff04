#include "track/gpu_extremes.h"

#include <algorithm>
#include <string_view>

namespace nmoe {

void GpuExtremes::add(MetricRecord& record) {
  if (record.step != step_) by_tag_.clear();
  step_ = record.step;
  const size_t count = record.scalars.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string tag = record.scalars[i].first;
    const double value = record.scalars[i].second;
    const size_t name_at = tag.rfind('/') + 1;
    const std::string_view name = std::string_view(tag).substr(name_at);
    const auto keep = [&](std::string_view as, auto better) {
      const std::string of = tag.substr(0, name_at) + std::string(as);
      const auto [at, is_new] = by_tag_.emplace(of, value);
      if (!is_new) at->second = better(at->second, value);
      return at;
    };
    const auto greater = [](double a, double b) { return std::max(a, b); };
    if (name == "power_w") {
      record.scalars.push_back(*keep("power_max_w", greater));
    } else if (name == "temperature_c") {
      record.scalars.push_back(*keep("temperature_max_c", greater));
    } else if (name == "clock_sm_mhz") {
      record.scalars.push_back(*keep("clock_sm_min_mhz", [](double a, double b) { return std::min(a, b); }));
    } else if (name == "throttle_reasons") {
      const auto both = [](double a, double b) {
        return static_cast<double>(static_cast<uint64_t>(a) | static_cast<uint64_t>(b));
      };
      record.scalars[i].second = keep(name, both)->second;
    }
  }
}

}  // namespace nmoe
