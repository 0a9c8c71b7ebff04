#include "research/report/statistics.h"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "base/error.h"

namespace nmoe {
double t_quantile(double degrees, double level) {
  NMOE_CHECK(degrees > 0.0 && level > 0.0 && level < 1.0, "t of {} degrees at {}", degrees, level);
  const boost::math::students_t t(degrees);
  return boost::math::quantile(boost::math::complement(t, 0.5 * (1.0 - level)));
}

Spread spread_of(std::span<const double> values, double level) {
  NMOE_CHECK(!values.empty(), "a mean of no values");
  const auto count = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value / count;
  if (values.size() < 2) return spread;
  double squares = 0.0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1.0));
  spread.half_width = t_quantile(count - 1.0, level) * *spread.deviation / std::sqrt(count);
  return spread;
}

}  // namespace nmoe
