#include "train/plan/fit_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"
#include "config/schema.h"
#include "config/validate.h"
#include "config/value.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

constexpr Recompute kLevels[] = {Recompute::kNone, Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks};

// Keys that round more than the configuration does.
struct Rounding {
  std::string_view key;
  std::function<void(Config&)> set;
};
const std::vector<Rounding>& all_roundings() {
  static const std::vector<Rounding> all = {
      {"optim.adamw.state", [](Config& config) { config.optim.adamw.state = MomentFormat::kBf16; }},
      {"optim.muon.state", [](Config& config) { config.optim.muon.state = MomentFormat::kBf16; }},
      {"train.gradients", [](Config& config) { config.train.gradients = GradientFormat::kBf16; }},
      {"precision.saved", [](Config& config) { config.precision.saved = RowFormat::kFp8; }},
  };
  return all;
}

Field field(std::span<const Field> fields, std::string_view key) {
  const auto found = std::ranges::find(fields, key, &Field::key);
  NMOE_CHECK(found != fields.end(), "no key {}", key);
  return *found;
}

// "train.gradients = \"bf16\"", as `config` has it.
std::string assignment(const Config& config, std::string_view key) {
  Config copy = config;
  return fmt::format("{} = {}", key, to_toml(field(describe(copy), key).get()));
}

// Whether the key has an effect, says something new, and goes with all others.
bool applies(const Config& config, const Rounding& rounding) {
  Config rounded = config;
  rounding.set(rounded);
  if (assignment(rounded, rounding.key) == assignment(config, rounding.key)) return false;
  return field(describe(rounded), rounding.key).used() && find_issues(rounded).empty();
}

// All that microbatches can be, from small to large.
std::vector<int64_t> microbatch_sizes(const Config& config) {
  if (config.parallel.logical_shards > 0) return {config.train.microbatch_seqs};
  const int64_t share = config.train.batch_seqs / config.parallel.ranks;
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= share; ++size) {
    if (share % size == 0) sizes.push_back(size);
  }
  return sizes;
}

class FitSearch {
 public:
  FitSearch(const Config& config, const MemoryPlanner& planner, const DeviceRates& rates)
      : config_(config), planner_(planner), rates_(rates), sizes_(microbatch_sizes(config)) {}

  // Those that fit with the keys of `rounding` set, fastest first.
  std::vector<FitChoice> choices(std::span<const Rounding* const> roundings) const {
    Config base = config_;
    std::vector<std::string> rounds;
    for (const Rounding* rounding : roundings) {
      rounding->set(base);
      rounds.push_back(assignment(base, rounding->key));
    }
    std::vector<FitChoice> found;
    for (const Offload offload : {Offload::kNone, Offload::kFit}) {
      base.optim.offload = offload;
      add_levels(base, found);
      if (!found.empty() && gains_nothing_by_moving(found.back())) break;
    }
    for (FitChoice& choice : found) choice.rounds = rounds;
    std::ranges::stable_sort(found, {}, [](const FitChoice& choice) { return choice.time.total(); });
    return found;
  }

 private:
  bool gains_nothing_by_moving(const FitChoice& choice) const {
    const TrainConfig& train = choice.config.train;
    return choice.memory.device_bytes == 0 ||
           (train.recompute == PerLayer(Recompute::kNone) && train.microbatch_seqs == sizes_.back());
  }

  // For each level of recomputation the largest microbatch, if it is larger than those of less recomputation; and the
  // configured one at the least level that has room for it.
  void add_levels(Config base, std::vector<FitChoice>& found) const {
    int64_t largest = 0;
    const size_t before = found.size();
    for (const Recompute level : kLevels) {
      base.train.recompute = level;
      std::optional<FitChoice> best = largest_microbatch(base, largest);
      if (!best) continue;
      const int64_t configured = config_.train.microbatch_seqs;
      const int64_t size = best->config.train.microbatch_seqs;
      if (largest < configured && configured < size) {
        base.train.microbatch_seqs = configured;
        if (std::optional<FitChoice> same = fitting(base)) found.push_back(std::move(*same));
      }
      largest = size;
      found.push_back(std::move(*best));
      if (largest == sizes_.back()) break;
    }
    if (base.optim.offload == Offload::kNone) return;
    // Moving state that has room brings nothing.
    const auto brings_nothing = [&](const FitChoice& choice) {
      return choice.memory.storage[ArenaKind::kHostState] == 0 ||
             std::any_of(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(before),
                         [&](const FitChoice& none) {
                           return none.config.train.microbatch_seqs == choice.config.train.microbatch_seqs &&
                                  none.time.total() <= choice.time.total();
                         });
    };
    found.erase(std::remove_if(found.begin() + static_cast<std::ptrdiff_t>(before), found.end(), brings_nothing),
                found.end());
  }

  // With the largest microbatch beyond `least` that fits.
  std::optional<FitChoice> largest_microbatch(Config config, int64_t least) const {
    std::optional<FitChoice> best;
    auto low = std::ranges::upper_bound(sizes_, least), high = sizes_.end();
    while (low != high) {
      const auto middle = low + (high - low) / 2;
      config.train.microbatch_seqs = *middle;
      if (std::optional<FitChoice> choice = fitting(config)) {
        best = std::move(choice);
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return best;
  }

  std::optional<FitChoice> fitting(const Config& config) const {
    MemoryPlan memory = planner_.plan(config);
    if (!fits_memory(memory, config)) return std::nullopt;
    const StepTime time = predict_step_time(config, rates_, memory.storage[ArenaKind::kHostState]);
    return FitChoice{.config = config,
                     .memory = std::move(memory),
                     .time = time,
                     .reorders_sums = config.train.microbatch_seqs != config_.train.microbatch_seqs,
                     .rounds = {}};
  }

  const Config& config_;
  const MemoryPlanner& planner_;
  const DeviceRates& rates_;
  std::vector<int64_t> sizes_;
};

// The rates of the planner's device; null: none are known.
const DeviceRates* known_rates(const Config& config, const MemoryPlanner& planner) {
  if (config.run.device != "cuda" || config.run.precision == Precision::kFp32) return nullptr;
  return find_device_rates(planner.device_name());
}

int64_t bytes_in_question(const MemoryPlan& plan) {
  return plan.device_bytes > 0 ? plan.device_bytes : plan.total_bytes;
}

}  // namespace

FitPlan plan_fit(const Config& config, const MemoryPlanner& planner) {
  const DeviceRates* rates = known_rates(config, planner);
  const FitSearch search(config, planner, rates != nullptr ? *rates : reference_rates());
  FitPlan plan{.timed_as = rates != nullptr ? std::string(rates->part) : ""};
  plan.choices = search.choices({});
  std::vector<const Rounding*> roundings;
  for (const Rounding& rounding : all_roundings()) {
    if (applies(config, rounding)) roundings.push_back(&rounding);
  }
  for (uint32_t set = 1; set < uint32_t{1} << roundings.size(); ++set) {
    std::vector<const Rounding*> chosen;
    for (size_t i = 0; i < roundings.size(); ++i) {
      if ((set >> i & 1) != 0) chosen.push_back(roundings[i]);
    }
    std::vector<FitChoice> found = search.choices(chosen);
    if (!found.empty()) plan.rounding.push_back(std::move(found[0]));
  }
  std::ranges::stable_sort(plan.rounding, {}, [](const FitChoice& choice) { return choice.time.total(); });
  return plan;
}

std::string fit_keys(const Config& config) {
  const auto value = [&](std::string_view key) { return assignment(config, key).substr(key.find('.') + 1); };
  return fmt::format("[train]\n{}\n{}\n[optim]\n{}\n", value("train.recompute"), value("train.microbatch_seqs"),
                     value("optim.offload"));
}

Error nothing_fits(const FitPlan& plan, const Config& config) {
  const std::string what = fmt::format(
      "no choice of train.recompute, train.microbatch_seqs and optim.offload makes the run fit on {} rank{}",
      config.parallel.ranks, config.parallel.ranks == 1 ? "" : "s");
  if (plan.rounding.empty()) {
    return usage_error(what, "raise parallel.ranks, or make the model smaller: keys that round more do not do, either");
  }
  return usage_error(what, fmt::format("set {}, which rounds more (n plan --fit has all such choices), or raise "
                                       "parallel.ranks",
                                       fmt::join(plan.rounding[0].rounds, ", ")));
}

std::string describe_savings(const Config& config, const MemoryPlanner& planner) {
  const int64_t now = bytes_in_question(planner.plan(config));
  std::string text;
  const auto offer = [&](const Config& other, std::string_view key, std::string_view note) {
    const int64_t saved = now - bytes_in_question(planner.plan(other));
    if (saved > 0) text += fmt::format("; {}{} takes {} less", assignment(other, key), note, human_bytes(saved));
  };
  for (const Recompute level : kLevels) {
    if (!config.train.recompute.any([&](Recompute own) { return own < level; })) continue;
    Config other = config;
    other.train.recompute = level;
    offer(other, "train.recompute", "");
  }
  const std::vector<int64_t> sizes = microbatch_sizes(config);
  if (const auto size = std::ranges::lower_bound(sizes, config.train.microbatch_seqs); size != sizes.begin()) {
    Config other = config;
    other.train.microbatch_seqs = *std::prev(size);
    offer(other, "train.microbatch_seqs", "");
  }
  for (const Rounding& rounding : all_roundings()) {
    if (!applies(config, rounding)) continue;
    Config other = config;
    rounding.set(other);
    offer(other, rounding.key, ", which rounds,");
  }
  if (!text.empty()) text += "; n plan --fit tries them together";
  return text;
}

}  // namespace nmoe
