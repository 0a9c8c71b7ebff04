// What benches measure with.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace nmoe {

using BenchClock = std::chrono::steady_clock;

inline double ms_since(BenchClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(BenchClock::now() - begin).count();
}

// The upper of the two middle values where their number is even; there is at least one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace nmoe
