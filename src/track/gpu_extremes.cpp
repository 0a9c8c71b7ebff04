#include "track/gpu_extremes.h"

#include <algorithm>
#include <string>

#include "track/tag.h"
#include "track/tags/gpu.h"

namespace nmoe {

void GpuExtremes::add(MetricRecord& record) {
  if (record.step != step_) by_tag_.clear();
  step_ = record.step;
  const size_t count = record.scalars.size();
  for (size_t i = 0; i < count; ++i) {
    const auto [tag, value] = record.scalars[i];
    const auto is = [&tag = tag](const Metric& metric) { return parts_of(metric, tag).has_value(); };
    const auto keep = [&, &tag = tag, value = value](const Metric& as, auto better) {
      const std::string of = tag.substr(0, tag.rfind('/') + 1) + std::string(name_of(as));
      const auto [at, is_new] = by_tag_.emplace(of, value);
      if (!is_new) at->second = better(at->second, value);
      return at;
    };
    const auto greater = [](double a, double b) { return std::max(a, b); };
    if (is(tags::kGpuPowerW)) {
      record.scalars.push_back(*keep(tags::kGpuPowerMaxW, greater));
    } else if (is(tags::kGpuTemperatureC)) {
      record.scalars.push_back(*keep(tags::kGpuTemperatureMaxC, greater));
    } else if (is(tags::kGpuClockSmMhz)) {
      record.scalars.push_back(*keep(tags::kGpuClockSmMinMhz, [](double a, double b) { return std::min(a, b); }));
    } else if (is(tags::kGpuThrottleReasons)) {
      const auto both = [](double a, double b) {
        return static_cast<double>(static_cast<uint64_t>(a) | static_cast<uint64_t>(b));
      };
      record.scalars[i].second = keep(tags::kGpuThrottleReasons, both)->second;
    }
  }
}

}  // namespace nmoe
