#include "infer/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nmoe {

double log_sum_exp(std::span<const float> logits) {
  const auto highest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double log_sum, int count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(ids.size()));
  const auto at = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::partial_sort(ids.begin(), end, ids.end(),
                    [&](int32_t a, int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  std::vector<TokenLogprob> top;
  for (auto id = ids.begin(); id != end; ++id) {
    top.push_back({.id = *id, .logprob = static_cast<float>(static_cast<double>(at(*id)) - log_sum)});
  }
  return top;
}

}  // namespace nmoe
