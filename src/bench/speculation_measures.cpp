#include "bench/speculation_measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "bench/timing.h"

namespace nmoe {
namespace {

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double ratio(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

void add_rates(SpeculationMeasures& measures) {
  const int64_t steps = std::accumulate(measures.histogram.begin(), measures.histogram.end(), int64_t{0});
  int64_t as_long = steps;
  for (size_t i = 0; i + 1 < measures.histogram.size(); ++i) {
    const int64_t longer = as_long - measures.histogram[i];
    measures.conditional_rates.push_back(ratio(longer, as_long));
    measures.joint_rates.push_back(ratio(longer, steps));
    as_long = longer;
  }
}

}  // namespace

SpeculationMeasures measure_speculation(std::span<const WrittenTurn> turns) {
  SpeculationMeasures measures;
  std::vector<double> lengths, rates, first;
  for (const WrittenTurn& turn : turns) {
    const int64_t tokens = std::ssize(turn.ids);
    NMOE_CHECK(std::accumulate(turn.lengths.begin(), turn.lengths.end(), int64_t{0}) == tokens,
               "{} tokens of prompt {}", tokens, turn.prompt);
    measures.drafted += turn.drafted;
    measures.accepted += turn.accepted;
    if (tokens == 0) continue;
    ++measures.turns;
    measures.tokens += tokens;
    lengths.push_back(ratio(tokens, std::ssize(turn.lengths)));
    first.push_back(turn.first_s - turn.submitted_s);
    if (turn.last_s > turn.first_s) rates.push_back(static_cast<double>(tokens - 1) / (turn.last_s - turn.first_s));
    for (const int64_t length : turn.lengths) {
      measures.histogram.resize(std::max(measures.histogram.size(), static_cast<size_t>(length)));
      ++measures.histogram[static_cast<size_t>(length - 1)];
    }
  }
  measures.acceptance_length = mean_of(lengths);
  measures.user_tokens_per_s = mean_of(rates);
  measures.median_user_tokens_per_s = rates.empty() ? 0.0 : median(rates);
  measures.first_token_s = mean_of(first);
  add_rates(measures);
  return measures;
}

double output_tokens_per_s(std::span<const WrittenTurn> turns) {
  int64_t tokens = 0;
  double begin = turns.empty() ? 0.0 : turns.front().submitted_s, end = begin;
  for (const WrittenTurn& turn : turns) {
    tokens += std::ssize(turn.ids);
    begin = std::min(begin, turn.submitted_s);
    end = std::max(end, turn.last_s);
  }
  return tokens == 0 ? 0.0 : static_cast<double>(tokens) / (end - begin);
}

std::optional<std::string> first_difference(std::span<const WrittenTurn> plain, std::span<const WrittenTurn> drafted) {
  NMOE_CHECK(plain.size() == drafted.size(), "{} turns and {}", plain.size(), drafted.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    const std::vector<int32_t>&a = plain[i].ids, &b = drafted[i].ids;
    const auto [first, second] = std::ranges::mismatch(a, b);
    if (first == a.end() && second == b.end()) continue;
    const auto text = [](const std::vector<int32_t>& ids, auto place) {
      return place == ids.end() ? std::string("the end") : fmt::format("{}", *place);
    };
    return fmt::format("prompt {}, turn {}, token {}: {} and {}", plain[i].prompt, plain[i].turn + 1,
                       first - a.begin() + 1, text(a, first), text(b, second));
  }
  return {};
}

}  // namespace nmoe
