#include "infer/logprobs.h"

#include <algorithm>
#include <numeric>

namespace nmoe {

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, const LogSum& log_sum, int count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(ids.size()));
  const auto at = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::partial_sort(ids.begin(), end, ids.end(),
                    [&](int32_t a, int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  std::vector<TokenLogprob> top;
  for (auto id = ids.begin(); id != end; ++id) {
    top.push_back({.id = *id, .logprob = log_sum.logprob(at(*id))});
  }
  return top;
}

}  // namespace nmoe
