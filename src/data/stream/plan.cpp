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

PlannedSource plan_source(const SourceFacts& facts, int64_t seq_len) {
  PlannedSource source{
      .name = facts.name, .hash = facts.hash, .num_tokens = facts.num_tokens, .num_padding = facts.num_padding};
  if (source.num_windows(seq_len) < 1) {
    throw usage_error(fmt::format("source {} has {} tokens; one sequence and its look-ahead need {}", facts.name,
                                  source.epoch_tokens(), seq_len + 1),
                      "lower data.seq_len, or prepare more text");
  }
  return source;
}

// A place in a source's order: sequence `index` of those of `seq_len` tokens.
struct SourcePlace {
  int64_t seq_len = 0;
  int64_t index = 0;
};

// The first sequence of another length that begins in the epoch there or behind.
SourcePlace in_sequences_of(int64_t seq_len, const PlannedSource& source, SourcePlace place) {
  if (seq_len == place.seq_len) return place;
  const int64_t windows_before = source.num_windows(place.seq_len), windows = source.num_windows(seq_len);
  const int64_t epoch = place.index / windows_before;
  const int64_t token = place.index % windows_before * place.seq_len;
  return {seq_len, epoch * windows + std::min((token + seq_len - 1) / seq_len, windows)};
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
  Planner(const Mixture& mixture, const std::vector<SourceFacts>& facts, int64_t seq_len, int64_t step_tokens,
          int64_t alignment)
      : mixture_(mixture), step_tokens_(step_tokens) {
    NMOE_CHECK(facts.size() == mixture.sources.size() && seq_len > 0, "{} sources, {} in the mixture; windows of {}",
               facts.size(), mixture.sources.size(), seq_len);
    plan_.seq_len = seq_len;
    plan_.alignment = alignment;
    for (const SourceFacts& source : facts) plan_.sources.push_back(plan_source(source, seq_len));
    places_.assign(facts.size(), {.seq_len = seq_len, .index = 0});
  }

  StreamPlan run(int64_t total_tokens) {
    Wide at_scale_one = 0;
    for (const MixtureStage& stage : mixture_.stages) at_scale_one += stage.tokens;
    int64_t alike = 0;  // sequences of the stages before that are as long
    for (size_t s = 0; s < mixture_.stages.size(); ++s) {
      const MixtureStage& stage = mixture_.stages[s];
      const int64_t seq_len = length_of(stage);
      // In whole numbers: rounding could take the last sequence, and with it a training step.
      const auto tokens = static_cast<int64_t>(Wide{stage.tokens} * total_tokens / at_scale_one);
      int64_t num_sequences = tokens / seq_len;
      if (num_sequences < 1 || num_sequences >= kEndlessSequences) {
        throw usage_error(fmt::format("stage {} has {} tokens under this profile: {} sequences of {}", stage.name,
                                      tokens, num_sequences < 1 ? "no" : "too many", seq_len),
                          num_sequences < 1 ? "choose a larger profile, or give the stage more tokens"
                                            : "choose a smaller profile, or give the stage fewer tokens");
      }
      alike += num_sequences;
      if (s + 1 < mixture_.stages.size() && length_of(mixture_.stages[s + 1]) != seq_len) {
        num_sequences -= left_over(seq_len, alike);
        if (num_sequences < 1) throw too_short(stage, mixture_.stages[s + 1], tokens);
        alike = 0;
      }
      plan_.stages.push_back(plan_stage(stage, seq_len, num_sequences));
    }
    return std::move(plan_);
  }

 private:
  int64_t length_of(const MixtureStage& stage) const { return stage.seq_len > 0 ? stage.seq_len : plan_.seq_len; }

  // Sequences behind the last whole step.
  int64_t left_over(int64_t seq_len, int64_t num_sequences) const {
    NMOE_CHECK(step_tokens_ > 0 && step_tokens_ % seq_len == 0, "steps of {} tokens, sequences of {}", step_tokens_,
               seq_len);
    return num_sequences % (step_tokens_ / seq_len);
  }

  // Sequences that the source may still give from a place on; kUnlimited: as many as are asked for.
  int64_t left_from(size_t source, SourcePlace place) const {
    const double max_epochs = mixture_.sources[source].max_epochs;
    if (max_epochs == 0) return kUnlimited;
    const double most = std::floor(max_epochs * static_cast<double>(plan_.sources[source].num_windows(place.seq_len)));
    return std::max<int64_t>(0, static_cast<int64_t>(std::min(most, kMaxCount)) - place.index);
  }

  // Where the stage goes on in each source, as long as that is.
  void move_to(const MixtureStage& stage, int64_t seq_len) {
    for (size_t i = 0; i < places_.size(); ++i) {
      const PlannedSource& source = plan_.sources[i];
      if (stage.weights[i] == 0) continue;
      if (source.num_windows(seq_len) < 1) {
        throw usage_error(fmt::format("source {} has {} tokens; one sequence of stage {} and its look-ahead need {}",
                                      source.name, source.epoch_tokens(), stage.name, seq_len + 1),
                          "lower the stage's seq_len, prepare more text, or leave the source out of the stage");
      }
      places_[i] = in_sequences_of(seq_len, source, places_[i]);
    }
  }

  PlannedStage plan_stage(const MixtureStage& stage, int64_t seq_len, int64_t num_sequences) {
    const size_t num_sources = places_.size();
    PlannedStage planned{.name = stage.name,
                         .seq_len = seq_len,
                         .num_sequences = num_sequences,
                         .quotas = std::vector<int64_t>(num_sources, 0),
                         .capped = std::vector<bool>(num_sources, false),
                         .first = {}};
    move_to(stage, seq_len);
    for (const SourcePlace& place : places_) planned.first.push_back(place.index);
    std::vector<double> shares = shares_of(stage.weights, mixture_.temperature);
    int64_t wanted = num_sequences;
    for (bool settled = false; !settled;) {
      if (std::ranges::all_of(shares, [](double share) { return share == 0.0; })) {
        throw exhausted(stage, wanted * seq_len);
      }
      const std::vector<int64_t> parts = apportion(wanted, shares);
      settled = true;
      for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t left = left_from(i, places_[i]);
        if (shares[i] == 0.0 || left == kUnlimited || parts[i] <= left) continue;
        planned.quotas[i] = left;
        planned.capped[i] = true;
        wanted -= left;
        shares[i] = 0.0;
        settled = false;
      }
      if (!settled) continue;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (shares[i] > 0.0) planned.quotas[i] = parts[i];
      }
    }
    for (size_t i = 0; i < num_sources; ++i) places_[i].index += planned.quotas[i];
    return planned;
  }

  static Error too_short(const MixtureStage& stage, const MixtureStage& next, int64_t tokens) {
    return usage_error(
        fmt::format("stage {} has {} tokens under this profile, too few to end with a whole step; it has "
                    "to, as the sequences of stage {} are of another length",
                    stage.name, tokens, next.name),
        "choose a larger profile, or give the stage more tokens");
  }

  Error exhausted(const MixtureStage& stage, int64_t missing_tokens) const {
    std::vector<std::string> limits;
    for (size_t i = 0; i < stage.weights.size(); ++i) {
      if (stage.weights[i] == 0) continue;
      limits.push_back(fmt::format("{} ({} tokens, max_epochs {})", plan_.sources[i].name,
                                   plan_.sources[i].epoch_tokens(), mixture_.sources[i].max_epochs));
    }
    return usage_error(fmt::format("stage {} lacks {} tokens: its sources are exhausted, {}", stage.name,
                                   missing_tokens, fmt::join(limits, ", ")),
                       "prepare more text, raise max_epochs, add sources, or choose a smaller profile");
  }

  const Mixture& mixture_;
  int64_t step_tokens_;
  StreamPlan plan_;
  std::vector<SourcePlace> places_;  // behind what each source has given
};

}  // namespace

int64_t StreamPlan::num_sequences() const {
  int64_t sum = 0;
  for (const PlannedStage& stage : stages) sum += stage.num_sequences;
  return sum;
}

int64_t StreamPlan::num_tokens() const {
  int64_t sum = 0;
  for (const PlannedStage& stage : stages) sum += stage.num_sequences * stage.seq_len;
  return sum;
}

double StreamPlan::padding_share() const {
  double tokens = 0.0, padding = 0.0;
  for (const PlannedStage& stage : stages) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const double taken = static_cast<double>(stage.quotas[i]) * static_cast<double>(stage.seq_len);
      tokens += taken;
      padding += taken * static_cast<double>(sources[i].num_padding) / static_cast<double>(sources[i].epoch_tokens());
    }
  }
  return padding / tokens;
}

std::string StreamPlan::hash() const {
  std::string text = fmt::format("nmoe stream 1\nseq_len {}\n", seq_len);
  if (alignment > 1) text += fmt::format("alignment {}\n", alignment);
  for (const PlannedSource& source : sources) text += fmt::format("source {} {}\n", source.name, source.hash);
  for (const PlannedStage& stage : stages) {
    const std::string length = stage.seq_len == seq_len ? "" : fmt::format(" seq_len {}", stage.seq_len);
    text += fmt::format("stage {} {}{}\n", stage.name, fmt::join(stage.quotas, " "), length);
  }
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
                            int64_t total_tokens, int64_t step_tokens, int64_t alignment) {
  return Planner(mixture, sources, seq_len, step_tokens, alignment).run(total_tokens);
}

StreamPlan single_source_plan(const SourceFacts& source, int64_t seq_len, int64_t alignment) {
  return {.seq_len = seq_len,
          .alignment = alignment,
          .sources = {plan_source(source, seq_len)},
          .stages = {{.name = "train",
                      .seq_len = seq_len,
                      .num_sequences = kEndlessSequences,
                      .quotas = {kEndlessSequences},
                      .capped = {false},
                      .first = {0}}}};
}

bool is_endless(const StreamPlan& plan) { return plan.num_sequences() >= kEndlessSequences; }

std::string print_stream_plan(const StreamPlan& plan) {
  std::string table = fmt::format("{:<12} {:<16} {:>12} {:>12} {:>8} {:>8}\n", "stage", "source", "tokens", "sequences",
                                  "share", "epochs");
  for (const PlannedStage& stage : plan.stages) {
    for (size_t i = 0; i < plan.sources.size(); ++i) {
      if (stage.quotas[i] == 0 && !stage.capped[i]) continue;
      const PlannedSource& source = plan.sources[i];
      table += fmt::format("{:<12} {:<16} {:>12} {:>12} {:>6.2f} % {:>8.3f}{}{}\n", stage.name, source.name,
                           human_count(static_cast<double>(stage.quotas[i] * stage.seq_len)), stage.quotas[i],
                           100.0 * static_cast<double>(stage.quotas[i]) / static_cast<double>(stage.num_sequences),
                           static_cast<double>(stage.first[i] + stage.quotas[i]) /
                               static_cast<double>(source.num_windows(stage.seq_len)),
                           stage.seq_len == plan.seq_len ? "" : fmt::format("  of {} tokens", stage.seq_len),
                           stage.capped[i] ? "  exhausted: its max_epochs is reached" : "");
    }
  }
  table += fmt::format("{:<12} {:<16} {:>12} {:>12}\n", "total", "",
                       human_count(static_cast<double>(plan.num_tokens())), plan.num_sequences());
  return table;
}

std::string print_padding(const StreamPlan& plan) {
  if (plan.alignment == 1) return "";
  return fmt::format("padding: {:.2f} % of the tokens, as documents begin at multiples of {} (data.align_documents)\n",
                     100.0 * plan.padding_share(), plan.alignment);
}

}  // namespace nmoe
