// The smoothed training loss, which a run is known by between validations: one batch's says little.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <span>

namespace nmoe {

// The mean of train/loss over the last kWindow logged steps, or over all while they are fewer. A window rather than
// weights that fade: it forgets where the curve was steep, and 16 recorded values say all of it after a resume.
class RecentLosses {
 public:
  static constexpr size_t kWindow = 16;

  void put(double loss) {
    values_.push_back(loss);
    if (values_.size() > kWindow) values_.pop_front();
  }
  // Summed from the oldest on; NaN of none.
  double mean() const {
    if (values_.empty()) return std::numeric_limits<double>::quiet_NaN();
    double sum = 0.0;
    for (const double value : values_) sum += value;
    return sum / static_cast<double>(values_.size());
  }

 private:
  std::deque<double> values_;  // oldest first
};

// The same once `losses` had been logged.
inline double recent_mean(std::span<const double> losses) {
  RecentLosses recent;
  for (const double loss : losses.last(std::min(losses.size(), RecentLosses::kWindow))) recent.put(loss);
  return recent.mean();
}

}  // namespace nmoe
