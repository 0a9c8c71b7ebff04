#include "data/stream/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"

namespace nmoe {
namespace {

constexpr int64_t kUnlimited = -1;
// Of an endless stage: its tokens still fit 64 bits.
constexpr int64_t kEndlessSequences = int64_t{1} << 40;

// Counts that were computed as floating-point numbers end here, below the end of int64_t.
constexpr double kMaxCount = 0x1p62;

__extension__ using Wide = __int128;  // products of token counts

PlannedSource plan_source(const SourceFacts& facts, double max_epochs, int64_t seq_len) {
  PlannedSource source{.name = facts.name,
                       .hash = facts.hash,
                       .num_tokens = facts.num_tokens,
                       .num_windows = std::max<int64_t>(0, (facts.num_tokens - 1) / seq_len)};
  if (source.num_windows < 1) {
    throw usage_error(fmt::format("source {} has {} tokens; one sequence and its look-ahead need {}", facts.name,
                                  facts.num_tokens, seq_len + 1),
                      "lower data.seq_len, or prepare more text");
  }
  if (max_epochs > 0) {
    const double most = std::floor(max_epochs * static_cast<double>(source.num_windows));
    source.max_sequences = static_cast<int64_t>(std::min(most, kMaxCount));
  }
  return source;
}

// w_i^(1 / temperature) up to a common factor, 0 for a weight of 0. The greatest share is 1 and no other vanishes, so
// that counts as weights and temperatures near 0 stay within the range of a double.
std::vector<double> shares_of(const std::vector<double>& weights, double temperature) {
  const double greatest = std::ranges::max(weights);
  std::vector<double> shares;
  for (const double weight : weights) {
    const double share = std::pow(weight / greatest, 1.0 / temperature);
    shares.push_back(weight > 0 ? std::max(share, std::numeric_limits<double>::min()) : 0.0);
  }
  return shares;
}

// `total` in whole parts proportional to `shares`, which need not sum to 1.
std::vector<int64_t> apportion(int64_t total, const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<int64_t> parts;
  std::vector<double> remainders;
  for (const double share : shares) {
    const double exact = static_cast<double>(total) * (share / sum);
    parts.push_back(static_cast<int64_t>(std::floor(exact)));
    remainders.push_back(share > 0 ? exact - std::floor(exact) : -1.0);
  }
  std::vector<size_t> by_remainder(shares.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::ranges::stable_sort(by_remainder, std::greater{}, [&](size_t i) { return remainders[i]; });
  const int64_t left = total - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++parts[by_remainder[static_cast<size_t>(i) % parts.size()]];
  return parts;
}

class Planner {
 public:
  Planner(const Mixture& mixture, const std::vector<SourceFacts>& facts, int64_t seq_len) : mixture_(mixture) {
    NMOE_CHECK(facts.size() == mixture.sources.size() && seq_len > 0, "{} sources, {} in the mixture; windows of {}",
               facts.size(), mixture.sources.size(), seq_len);
    plan_.seq_len = seq_len;
    for (size_t i = 0; i < facts.size(); ++i) {
      plan_.sources.push_back(plan_source(facts[i], mixture.sources[i].max_epochs, seq_len));
      left_.push_back(plan_.sources.back().max_sequences);
    }
  }

  StreamPlan run(int64_t total_tokens) {
    Wide at_scale_one = 0;
    for (const MixtureStage& stage : mixture_.stages) at_scale_one += stage.tokens;
    for (const MixtureStage& stage : mixture_.stages) {
      // In whole numbers: rounding could take the last sequence, and with it a training step.
      const auto tokens = static_cast<int64_t>(Wide{stage.tokens} * total_tokens / at_scale_one);
      const int64_t num_sequences = tokens / plan_.seq_len;
      if (num_sequences < 1 || num_sequences >= kEndlessSequences) {
        throw usage_error(fmt::format("stage {} has {} tokens under this profile: {} sequences of {}", stage.name,
                                      tokens, num_sequences < 1 ? "no" : "too many", plan_.seq_len),
                          "choose another data.profile, or other stage budgets");
      }
      plan_.stages.push_back(plan_stage(stage, num_sequences));
    }
    return std::move(plan_);
  }

 private:
  PlannedStage plan_stage(const MixtureStage& stage, int64_t num_sequences) {
    PlannedStage planned{.name = stage.name,
                         .num_sequences = num_sequences,
                         .quotas = std::vector<int64_t>(left_.size(), 0),
                         .capped = std::vector<bool>(left_.size(), false)};
    std::vector<double> shares = shares_of(stage.weights, mixture_.temperature);
    int64_t wanted = num_sequences;
    for (bool settled = false; !settled;) {
      if (std::ranges::all_of(shares, [](double share) { return share == 0.0; })) throw exhausted(stage, wanted);
      const std::vector<int64_t> parts = apportion(wanted, shares);
      settled = true;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (shares[i] == 0.0 || left_[i] == kUnlimited || parts[i] <= left_[i]) continue;
        planned.quotas[i] = left_[i];
        planned.capped[i] = true;
        wanted -= left_[i];
        shares[i] = 0.0;
        settled = false;
      }
      if (!settled) continue;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (shares[i] > 0.0) planned.quotas[i] = parts[i];
      }
    }
    for (size_t i = 0; i < left_.size(); ++i) {
      if (left_[i] != kUnlimited) left_[i] -= planned.quotas[i];
    }
    return planned;
  }

  Error exhausted(const MixtureStage& stage, int64_t missing) const {
    std::vector<std::string> limits;
    for (size_t i = 0; i < stage.weights.size(); ++i) {
      if (stage.weights[i] == 0) continue;
      limits.push_back(fmt::format("{} ({} tokens, max_epochs {})", plan_.sources[i].name, plan_.sources[i].num_tokens,
                                   mixture_.sources[i].max_epochs));
    }
    return usage_error(fmt::format("stage {} lacks {} tokens: its sources are exhausted, {}", stage.name,
                                   missing * plan_.seq_len, fmt::join(limits, ", ")),
                       "prepare more text, raise max_epochs, add sources, or choose a smaller profile");
  }

  const Mixture& mixture_;
  StreamPlan plan_;
  std::vector<int64_t> left_;  // sequences that each source may still give, or kUnlimited
};

}  // namespace

int64_t StreamPlan::num_sequences() const {
  int64_t sum = 0;
  for (const PlannedStage& stage : stages) sum += stage.num_sequences;
  return sum;
}

std::string StreamPlan::hash() const {
  std::string text = fmt::format("nmoe stream 1\nseq_len {}\n", seq_len);
  for (const PlannedSource& source : sources) text += fmt::format("source {} {}\n", source.name, source.hash);
  for (const PlannedStage& stage : stages)
    text += fmt::format("stage {} {}\n", stage.name, fmt::join(stage.quotas, " "));
  return sha256_hex(text);
}

int64_t profile_tokens(const Mixture& mixture, std::string_view profile, int64_t active_parameters) {
  const auto found = std::ranges::find(mixture.profiles, profile, &MixtureProfile::name);
  if (found == mixture.profiles.end()) {
    std::vector<std::string> names;
    for (const MixtureProfile& known : mixture.profiles) names.push_back(known.name);
    throw usage_error(fmt::format("the mixture has no profile \"{}\"", profile),
                      names.empty()
                          ? "add [profiles.NAME] to the mixture file"
                          : fmt::format("set data.profile to one of its profiles: {}", fmt::join(names, ", ")));
  }
  if (found->tokens > 0) return found->tokens;
  double tokens = found->tokens_per_active_parameter * static_cast<double>(active_parameters);
  if (found->scale > 0) {
    for (const MixtureStage& stage : mixture.stages) tokens += found->scale * static_cast<double>(stage.tokens);
  }
  return static_cast<int64_t>(std::round(std::min(tokens, kMaxCount)));
}

StreamPlan make_stream_plan(const Mixture& mixture, const std::vector<SourceFacts>& sources, int64_t seq_len,
                            int64_t total_tokens) {
  return Planner(mixture, sources, seq_len).run(total_tokens);
}

StreamPlan single_source_plan(const SourceFacts& source, int64_t seq_len) {
  return {.seq_len = seq_len,
          .sources = {plan_source(source, /*max_epochs=*/0.0, seq_len)},
          .stages = {
              {.name = "train", .num_sequences = kEndlessSequences, .quotas = {kEndlessSequences}, .capped = {false}}}};
}

bool is_endless(const StreamPlan& plan) { return plan.num_sequences() >= kEndlessSequences; }

std::string print_stream_plan(const StreamPlan& plan) {
  std::string table = fmt::format("{:<12} {:<16} {:>12} {:>12} {:>8} {:>8}\n", "stage", "source", "tokens", "sequences",
                                  "share", "epochs");
  std::vector<int64_t> taken(plan.sources.size(), 0);
  for (const PlannedStage& stage : plan.stages) {
    for (size_t i = 0; i < plan.sources.size(); ++i) {
      taken[i] += stage.quotas[i];
      if (stage.quotas[i] == 0 && !stage.capped[i]) continue;
      const PlannedSource& source = plan.sources[i];
      table += fmt::format("{:<12} {:<16} {:>12} {:>12} {:>6.2f} % {:>8.3f}{}\n", stage.name, source.name,
                           human_count(static_cast<double>(stage.quotas[i] * plan.seq_len)), stage.quotas[i],
                           100.0 * static_cast<double>(stage.quotas[i]) / static_cast<double>(stage.num_sequences),
                           static_cast<double>(taken[i]) / static_cast<double>(source.num_windows),
                           stage.capped[i] ? "  exhausted: its max_epochs is reached" : "");
    }
  }
  table += fmt::format("{:<12} {:<16} {:>12} {:>12}\n", "total", "",
                       human_count(static_cast<double>(plan.num_tokens())), plan.num_sequences());
  return table;
}

}  // namespace nmoe
