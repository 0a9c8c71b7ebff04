#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position) {
  NMOE_CHECK(!logits.empty(), "no logits");
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0.0) return static_cast<int32_t>(likeliest - logits.begin());

  std::vector<double> weights(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    weights[id] = std::exp((static_cast<double>(logits[id]) - static_cast<double>(*likeliest)) / options.temperature);
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
  });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0.0;
  size_t num_kept = 0;
  while (num_kept < order.size() && (num_kept == 0 || kept < options.top_p * total)) {
    kept += weights[static_cast<size_t>(order[num_kept++])];
  }
  double remaining = Philox(options.seed, "sample").uniform(position) * kept;
  for (size_t i = 0; i < num_kept; ++i) {
    remaining -= weights[static_cast<size_t>(order[i])];
    if (remaining < 0.0) return order[i];
  }
  return order[num_kept - 1];  // rounding left a sliver
}

}  // namespace nmoe
