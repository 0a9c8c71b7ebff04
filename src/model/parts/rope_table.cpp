#include "model/parts/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace nmoe {
namespace {

double magnitude(double factor, double mscale) { return factor > 1.0 ? 0.1 * mscale * std::log(factor) + 1.0 : 1.0; }

// The (fractional) pair that makes `turns` full turns over the original context.
double pair_with_turns(double turns, double theta, double rope_dim, double positions) {
  return rope_dim * std::log(positions / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

// In turns over the original context: divided below `low`, kept above `high`.
double llama3_frequency(const RopeConfig& rope, double original) {
  const double turns = static_cast<double>(rope.original_max_positions) * original / (2.0 * std::numbers::pi);
  const double kept =
      std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return original * kept + original / rope.factor * (1.0 - kept);
}

double scaled(const RopeConfig& rope, double original) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return original;
    case RopeScaling::kLinear:
      return original / rope.factor;
    case RopeScaling::kLlama3:
      return llama3_frequency(rope, original);
  }
  NMOE_CHECK(false, "no scaling {}", static_cast<int>(rope.scaling));
}

std::vector<double> frequencies(const RopeConfig& rope, const YarnConfig& yarn, int64_t rope_dim) {
  const double dim = static_cast<double>(rope_dim);
  const double positions = static_cast<double>(yarn.original_max_positions);
  const double first = pair_with_turns(yarn.beta_fast, rope.theta, dim, positions),
               last = pair_with_turns(yarn.beta_slow, rope.theta, dim, positions);
  const double low = std::max(0.0, yarn.truncate ? std::floor(first) : first);
  double high = std::min(dim - 1.0, yarn.truncate ? std::ceil(last) : last);
  if (high <= low) high = low + 0.001;  // an empty ramp becomes a step

  std::vector<double> result(static_cast<size_t>(rope_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const double original = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dim);
    if (yarn.factor == 1.0) {
      result[i] = scaled(rope, original);
      continue;
    }
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result[i] = original * (1.0 - ramp) + original / yarn.factor * ramp;
  }
  return result;
}

}  // namespace

RopeAngles rope_angles(const RopeConfig& rope, const YarnConfig& yarn, int64_t rope_dim, int64_t num_positions) {
  const std::vector<double> frequency = frequencies(rope, yarn, rope_dim);
  const double scale = magnitude(yarn.factor, yarn.mscale) / magnitude(yarn.factor, yarn.mscale_all_dim);
  RopeAngles angles;
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double f : frequency) {
      const double angle = static_cast<double>(position) * f;
      angles.cos.push_back(scale * std::cos(angle));
      angles.sin.push_back(scale * std::sin(angle));
    }
  }
  return angles;
}

double yarn_softmax_scale(const YarnConfig& yarn) {
  if (yarn.mscale_all_dim == 0.0) return 1.0;
  const double m = magnitude(yarn.factor, yarn.mscale_all_dim);
  return m * m;
}

}  // namespace nmoe
