#include "infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

void check_sampling(const SamplingOptions& options) {
  const auto check = [](bool good, const char* name, auto value, const char* range) {
    if (!good) throw usage_error(fmt::format("{} is {}", name, value), fmt::format("give a number {}", range));
  };
  check(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty), "repetition_penalty",
        options.repetition_penalty, "above 0; 1 is no penalty");
  check(options.temperature >= 0 && std::isfinite(options.temperature), "temperature", options.temperature,
        "of at least 0; 0 takes the likeliest token");
  check(options.top_k >= 0, "top_k", options.top_k, "of at least 0; 0 is no limit");
  check(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "from 0 to 1; 1 is no limit");
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "from 0 to 1; 0 is no limit");
}

double sampling_uniform(const SamplingOptions& options, int64_t position) {
  return Philox(options.seed, "sample").uniform(static_cast<uint64_t>(position));
}

TokenDraw token_draw(const SamplingOptions& options, int64_t position) {
  return {.temperature = options.temperature,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .uniform = sampling_uniform(options, position),
          .top_k = options.top_k,
          .penalty = options.repetition_penalty};
}

Error no_finite_logit(int64_t position) {
  return runtime_error(fmt::format("the largest logit of an output's token {} is not finite", position),
                       "the model's weights are no good: take an earlier checkpoint");
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingOptions& options, uint64_t position,
                        std::span<const int32_t> seen) {
  NMOE_CHECK(!logits.empty(), "no logits");
  if (options.repetition_penalty != 1.0 && !seen.empty()) {
    // From the original each time: an id that was seen twice has its penalty once.
    penalised_.assign(logits.begin(), logits.end());
    const auto penalty = static_cast<float>(options.repetition_penalty);
    for (const int32_t id : seen) {
      if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
      const float logit = logits[static_cast<size_t>(id)];
      penalised_[static_cast<size_t>(id)] = logit > 0 ? logit / penalty : logit * penalty;
    }
    logits = penalised_;
  }
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*likeliest)) throw no_finite_logit(static_cast<int64_t>(position));
  if (options.temperature == 0.0) return static_cast<int32_t>(likeliest - logits.begin());

  // Below this the exponential is less than the rounding of the sum.
  constexpr double kNegligible = -60.0;
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const double exponent = (static_cast<double>(logits[id]) - static_cast<double>(*likeliest)) / options.temperature;
    if (exponent > kNegligible) candidates_.push_back({std::exp(exponent), static_cast<int32_t>(id)});
  }
  truncate(options);

  double kept = 0.0;
  for (const Candidate& candidate : candidates_) kept += candidate.weight;
  double remaining = sampling_uniform(options, static_cast<int64_t>(position)) * kept;
  for (const Candidate& candidate : candidates_) {
    remaining -= candidate.weight;
    if (remaining < 0.0) return candidate.id;
  }
  return candidates_.back().id;  // rounding left a sliver
}

void Sampler::truncate(const SamplingOptions& options) {
  auto end = candidates_.end();
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < candidates_.size()) {
    end = candidates_.begin() + options.top_k;
    std::partial_sort(candidates_.begin(), end, candidates_.end(), before);
    candidates_.erase(end, candidates_.end());
  }
  if (options.top_p < 1.0) {
    double total = 0.0, kept = 0.0;
    for (const Candidate& candidate : candidates_) total += candidate.weight;
    // A heap gives the likeliest one by one: most often few of them are needed.
    const auto after = [](const Candidate& a, const Candidate& b) { return before(b, a); };
    std::make_heap(candidates_.begin(), candidates_.end(), after);
    auto heap_end = candidates_.end();
    while (heap_end != candidates_.begin() && (heap_end == candidates_.end() || kept < options.top_p * total)) {
      std::pop_heap(candidates_.begin(), heap_end, after);
      kept += (--heap_end)->weight;
    }
    candidates_.erase(candidates_.begin(), heap_end);
    std::reverse(candidates_.begin(), candidates_.end());
  }
  if (options.min_p > 0.0) {
    double highest = 0.0;
    for (const Candidate& candidate : candidates_) highest = std::max(highest, candidate.weight);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options.min_p * highest; });
  }
}

}  // namespace nmoe
