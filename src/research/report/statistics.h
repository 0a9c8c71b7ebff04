// Means and intervals of few values.
#pragma once

#include <optional>
#include <span>

namespace nmoe {

// The value that Student's t distribution with `degrees` > 0 of freedom exceeds with probability (1 - level) / 2, for
// `level` in (0, 1).
double t_quantile(double degrees, double level);

struct Spread {
  double mean = 0.0;
  std::optional<double> deviation;   // standard, with n - 1; of two values or more
  std::optional<double> half_width;  // of the interval of the mean at `level`: t deviation / sqrt(n)
};
// Sums in the values' order. At least one value.
Spread spread_of(std::span<const double> values, double level = 0.95);

}  // namespace nmoe
