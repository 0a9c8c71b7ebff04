#include "research/report/statistics.h"

#include <cmath>

#include "base/error.h"

namespace nmoe {
namespace {

// I_x(a, b) by its continued fraction (modified Lentz), which converges for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kEnough = 1e-15;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x)) / a;
  double c = 1.0, d = 1.0 - (a + b) * x / (a + 1.0);
  d = 1.0 / (std::abs(d) < kTiny ? kTiny : d);
  double value = d;
  const auto take = [&](double term) {
    d = 1.0 + term * d;
    c = 1.0 + term / c;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1.0 / (std::abs(d) < kTiny ? kTiny : d);
    value *= c * d;
    return std::abs(c * d - 1.0) < kEnough;
  };
  for (double m = 1.0; m < 10'000.0; ++m) {
    take(m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)));
    if (take(-(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)))) break;
  }
  return front * value;
}

// How probable it is that |t| is larger.
double tails(double t, double degrees) {
  const double x = degrees / (degrees + t * t), a = 0.5 * degrees, b = 0.5;
  if (x <= 0.0 || x >= 1.0) return x <= 0.0 ? 0.0 : 1.0;
  return x < (a + 1.0) / (a + b + 2.0) ? beta_fraction(a, b, x) : 1.0 - beta_fraction(b, a, 1.0 - x);
}

}  // namespace

double t_quantile(double degrees, double level) {
  NMOE_CHECK(degrees > 0.0 && level > 0.0 && level < 1.0, "t of {} degrees at {}", degrees, level);
  double low = 0.0, high = 1.0;
  while (tails(high, degrees) > 1.0 - level) high *= 2.0;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (tails(middle, degrees) > 1.0 - level ? low : high) = middle;
  }
  return high;
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
