#include "train/plan/fit_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"
#include "config/layers.h"
#include "config/schema.h"
#include "config/validate.h"
#include "config/value.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

// What train.recompute can be for all layers, from the least recomputation on.
std::vector<Recompute> recompute_levels(Config config) {
  std::vector<Recompute> levels = {Recompute::kNone, Recompute::kNorms, Recompute::kExperts, Recompute::kBlocks};
  config.train.recompute = Recompute::kHost;
  if (config.run.device != "cpu" && find_issues(config).empty()) levels.push_back(Recompute::kHost);
  return levels;
}

// Keys that round more than the configuration does, set together.
struct Rounding {
  std::vector<std::string_view> keys;
  std::function<void(Config&)> set;
};
const std::vector<Rounding>& all_roundings() {
  static const std::vector<Rounding> all = {
      {{"optim.adamw.state", "optim.muon.state"},
       [](Config& config) {
         for (MomentFormat* state : {&config.optim.adamw.state, &config.optim.muon.state}) {
           if (*state == MomentFormat::kFp32) *state = MomentFormat::kBf16;
         }
       }},
      {{"train.gradients", "parallel.rebalance_every"},
       [](Config& config) {
         config.train.gradients = GradientFormat::kBf16;
         if (config.parallel.ranks > 1) config.parallel.rebalance_every = 0;  // they have no room to move experts
       }},
      {{"precision.saved"}, [](Config& config) { config.precision.saved = RowFormat::kFp8; }},
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

// Of the keys of `rounding`, those that have an effect and say something new, as they are then set; none if they do not
// go with all others.
std::vector<std::string> assignments(const Config& config, const Rounding& rounding) {
  Config rounded = config;
  rounding.set(rounded);
  std::vector<std::string> changed;
  if (!find_issues(rounded).empty()) return changed;
  for (const std::string_view key : rounding.keys) {
    const std::string now = assignment(rounded, key);
    if (now != assignment(config, key) && field(describe(rounded), key).used()) changed.push_back(now);
  }
  return changed;
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

double seconds_of(const FitChoice& choice) { return choice.time.total(); }

class FitSearch {
 public:
  // Of configurations like `config`, which must outlive it.
  FitSearch(const Config& config, const MemoryPlanner& planner, const DeviceRates& rates)
      : config_(config),
        planner_(planner),
        rates_(rates),
        num_layers_(std::ssize(layer_specs(config.model))),
        levels_(recompute_levels(config)),
        sizes_(microbatch_sizes(config)) {}

  // Those worth naming, fastest first.
  std::vector<FitChoice> all() { return choices(std::nullopt); }
  // The fastest, if it takes less than so many seconds; with fewer plans.
  std::optional<FitChoice> fastest_below(double seconds) {
    std::vector<FitChoice> found = choices(seconds);
    if (found.empty() || seconds_of(found[0]) >= seconds) return std::nullopt;
    return std::move(found[0]);
  }

 private:
  // `below`: only the fastest is wanted, and only below so many seconds.
  std::vector<FitChoice> choices(std::optional<double> below) {
    std::vector<FitChoice> found;
    add_levels(Offload::kNone, below, found);
    const bool all_fits = std::ranges::any_of(found, [&](const FitChoice& choice) {
      const TrainConfig& train = choice.config.train;
      return train.recompute == PerLayer(Recompute::kNone) && train.microbatch_seqs == sizes_.back();
    });
    const bool may_move = config_.run.device != "cpu" && !all_fits;
    if (may_move) add_levels(Offload::kFit, below, found);
    if (config_.train.recompute.num_layers() > 0) {
      add_list(Offload::kNone, below, found);
      if (may_move) add_list(Offload::kFit, below, found);
    }
    std::ranges::stable_sort(found, {}, seconds_of);
    return found;
  }

  // For each level of recomputation the largest microbatch, if it is larger than those of less recomputation; and the
  // configured one at the least level that has room for it. Of either as many layers as it pays at the level before.
  // With state in host memory, what is not there faster without.
  void add_levels(Offload offload, std::optional<double> below, std::vector<FitChoice>& found) {
    Config base = config_;
    base.optim.offload = offload;
    if (!leaves_room(base)) return;
    int64_t largest = 0;
    Recompute lighter = levels_[0];  // the level before
    for (const Recompute level : levels_) {
      const Recompute before = std::exchange(lighter, level);
      base.train.recompute = before;
      if (below && is_late(base, sizes_.back(), *below, found)) break;
      base.train.recompute = level;
      std::optional<FitChoice> best = largest_microbatch(base, largest);
      if (!best) continue;
      const int64_t configured = config_.train.microbatch_seqs;
      const int64_t size = best->config.train.microbatch_seqs;
      if (!below && largest < configured && configured < size) {
        base.train.microbatch_seqs = configured;
        if (std::optional<FitChoice> same = fitting(base)) add(with_lighter_layers(std::move(*same), before), found);
      }
      largest = size;
      base.train.recompute = before;
      const bool mixes = !below || !is_late(base, size, *below, found);
      add(mixes ? with_lighter_layers(std::move(*best), before) : std::move(*best), found);
      if (largest == sizes_.back()) break;
    }
  }

  // The configured list of levels, with the largest microbatch and with the configured one.
  void add_list(Offload offload, std::optional<double> below, std::vector<FitChoice>& found) {
    Config base = config_;
    base.optim.offload = offload;
    if (below && is_late(base, sizes_.back(), *below, found)) return;
    std::optional<FitChoice> best = largest_microbatch(base, 0);
    if (!best) return;
    if (best->config.train.microbatch_seqs > config_.train.microbatch_seqs) {
      base.train.microbatch_seqs = config_.train.microbatch_seqs;
      if (std::optional<FitChoice> same = fitting(base)) add(std::move(*same), found);
    }
    add(std::move(*best), found);
  }

  static void add(FitChoice choice, std::vector<FitChoice>& found) {
    const bool moves = choice.config.optim.offload != Offload::kNone;
    const bool brings_nothing = moves && std::ranges::any_of(found, [&](const FitChoice& other) {
                                  return other.config.optim.offload == Offload::kNone &&
                                         other.config.train.microbatch_seqs == choice.config.train.microbatch_seqs &&
                                         seconds_of(other) <= seconds_of(choice);
                                });
    if (moves && choice.memory.storage[ArenaKind::kHostState] == 0) return;
    if (!brings_nothing) found.push_back(std::move(choice));
  }

  // Whether the least that it could take fits. Of a GPU's memory: the host's may have room for some state, and not for
  // all of it.
  bool leaves_room(Config config) {
    config.train.recompute = levels_.back();
    config.train.microbatch_seqs = sizes_.front();
    if (config.optim.offload == Offload::kFit) config.optim.offload = Offload::kState;
    return fits_device(plan(config), config, Spare::kHundredth);
  }

  // Whether even without state in host memory, and with microbatches of that size, it would be later than `below`, or
  // than what was found.
  bool is_late(Config config, int64_t microbatch_seqs, double below, const std::vector<FitChoice>& found) const {
    for (const FitChoice& choice : found) below = std::min(below, seconds_of(choice));
    config.train.microbatch_seqs = microbatch_seqs;
    return predict_step_time(config, rates_, 0).total() >= below;
  }

  // With the largest microbatch beyond `least` that fits; of those with state in host memory the fastest, since larger
  // ones leave less room for it.
  std::optional<FitChoice> largest_microbatch(Config config, int64_t least) {
    // What "fit" leaves on the device is what has room: it fits where it does with all of it in the host's memory.
    Config probe = config;
    const bool moves = config.optim.offload == Offload::kFit;
    if (moves) probe.optim.offload = Offload::kState;
    const auto first = std::ranges::upper_bound(sizes_, least);
    auto end = std::partition_point(first, sizes_.end(), [&](int64_t size) {
      probe.train.microbatch_seqs = size;
      return fits_device(plan(probe), probe, Spare::kHundredth);
    });
    std::optional<FitChoice> best;
    for (; end != first; --end) {
      config.train.microbatch_seqs = *std::prev(end);
      std::optional<FitChoice> choice = fitting(config);
      if (!choice) continue;
      if (best && seconds_of(*choice) >= seconds_of(*best)) break;
      best = std::move(choice);
      if (!moves || best->memory.storage[ArenaKind::kHostState] == 0) break;
    }
    return best;
  }

  // A choice of one level for all layers, with the last layers at a lighter one, so many that it is fastest. More of
  // them take less time as long as they fit and leave no more state in the host's memory than the update hides: beyond
  // that more time or more memory, so that the number is found by bisection.
  FitChoice with_lighter_layers(FitChoice choice, Recompute lighter) {
    const Recompute level = choice.config.train.recompute.of(0);
    if (lighter == level) return choice;
    const auto mixed = [&](int64_t layers) -> std::optional<FitChoice> {  // at the choice's level
      if (layers == num_layers_) return choice;
      Config config = choice.config;
      config.train.recompute =
          PerLayer(std::vector<LayerRun<Recompute>>{{layers, level}, {num_layers_ - layers, lighter}});
      return fitting(config);
    };
    int64_t few = level == Recompute::kHost ? int64_t{kInputSlots} : 0;  // of so many inputs none would travel
    int64_t enough = num_layers_;
    FitChoice best = choice;
    while (enough - few > 1) {
      const int64_t layers = few + (enough - few) / 2;
      std::optional<FitChoice> here = mixed(layers);
      const bool waits = here && seconds_of(*here) > predict_step_time(here->config, rates_, 0).total();
      const std::optional<FitChoice> more = waits ? mixed(layers + 1) : std::nullopt;
      const bool is_enough = here && (!more || seconds_of(*here) <= seconds_of(*more));
      (is_enough ? enough : few) = layers;
      if (is_enough && seconds_of(*here) < seconds_of(best)) best = std::move(*here);
    }
    return best;
  }

  std::optional<FitChoice> fitting(const Config& config) {
    MemoryPlan memory = plan(config);
    if (!fits_memory(memory, config, Spare::kHundredth)) return std::nullopt;
    const StepTime time = predict_step_time(config, rates_, memory.storage[ArenaKind::kHostState]);
    return FitChoice{.config = config,
                     .memory = std::move(memory),
                     .time = time,
                     .reorders_sums = config.train.microbatch_seqs != config_.train.microbatch_seqs,
                     .rounds = {}};
  }

  // The same keys are asked for more than once.
  MemoryPlan plan(const Config& config) {
    const auto is_same = [&](const Planned& planned) {
      return planned.recompute == config.train.recompute && planned.microbatch_seqs == config.train.microbatch_seqs &&
             planned.offload == config.optim.offload;
    };
    const auto found = std::ranges::find_if(planned_, is_same);
    if (found != planned_.end()) return found->memory;
    planned_.push_back(
        {config.train.recompute, config.train.microbatch_seqs, config.optim.offload, planner_.plan(config)});
    return planned_.back().memory;
  }

  struct Planned {
    PerLayer<Recompute> recompute;
    int64_t microbatch_seqs;
    Offload offload;
    MemoryPlan memory;
  };

  const Config& config_;
  const MemoryPlanner& planner_;
  const DeviceRates& rates_;
  int64_t num_layers_;
  std::vector<Recompute> levels_;
  std::vector<int64_t> sizes_;
  std::vector<Planned> planned_;
};

// The fastest choice with the roundings of `set`, a bit each, if all of them apply and it takes less than so many
// seconds.
std::optional<FitChoice> fastest_with(const Config& config, uint32_t set, double below, const MemoryPlanner& planner,
                                      const DeviceRates& rates) {
  Config rounded = config;
  std::vector<std::string> rounds;
  for (size_t i = 0; i < all_roundings().size(); ++i) {
    if ((set >> i & 1) == 0) continue;
    const std::vector<std::string> keys = assignments(rounded, all_roundings()[i]);
    if (keys.empty()) return std::nullopt;
    rounds.insert(rounds.end(), keys.begin(), keys.end());
    all_roundings()[i].set(rounded);
  }
  std::optional<FitChoice> choice = FitSearch(rounded, planner, rates).fastest_below(below);
  if (choice) choice->rounds = std::move(rounds);
  return choice;
}

// The rates of the planner's device; null: none are known.
const DeviceRates* known_rates(const Config& config, const MemoryPlanner& planner) {
  if (config.run.device != "cuda" || config.run.precision == Precision::kFp32) return nullptr;
  return find_device_rates(planner.device_name());
}

}  // namespace

FitPlan plan_fit(const Config& config, const MemoryPlanner& planner) {
  const DeviceRates* rates = known_rates(config, planner);
  const DeviceRates& used = rates != nullptr ? *rates : reference_rates();
  FitPlan plan{.timed_as = rates != nullptr ? std::string(rates->part) : ""};
  plan.choices = FitSearch(config, planner, used).all();
  // A set of roundings is worth naming if it is faster than none and than each part of it.
  const double none = plan.choices.empty() ? std::numeric_limits<double>::infinity() : seconds_of(plan.choices[0]);
  std::vector<double> best(size_t{1} << all_roundings().size(), none);
  for (uint32_t set = 1; set < best.size(); ++set) {
    for (uint32_t part = 1; part < set; ++part) {
      if ((part & set) == part) best[set] = std::min(best[set], best[part]);
    }
    std::optional<FitChoice> choice = fastest_with(config, set, best[set], planner, used);
    if (!choice) continue;
    best[set] = seconds_of(*choice);
    plan.rounding.push_back(std::move(*choice));
  }
  std::ranges::stable_sort(plan.rounding, {}, seconds_of);
  return plan;
}

std::string fit_key(const Config& config, std::string_view key) {
  Config copy = config;
  const Value value = field(describe(copy), key).get();
  const auto* name = std::get_if<std::string>(&value);
  return name != nullptr ? *name : to_toml(value);
}

std::string fit_keys(const Config& config) {
  const auto value = [&](std::string_view key) { return assignment(config, key).substr(key.find('.') + 1); };
  return fmt::format("[train]\n{}\n{}\n[optim]\n{}\n", value("train.recompute"), value("train.microbatch_seqs"),
                     value("optim.offload"));
}

Error nothing_fits(const FitPlan& plan, const Config& config) {
  const std::string what = fmt::format(
      "no choice of train.recompute, train.microbatch_seqs and optim.offload makes the run fit on {} rank{}{}",
      config.parallel.ranks, config.parallel.ranks == 1 ? "" : "s",
      config.run.device == "cpu" ? "" : " with a hundredth of the memory to spare");
  const std::string limit = config.train.memory_limit.empty() ? "" : ", or raise train.memory_limit";
  if (plan.rounding.empty()) {
    return usage_error(
        what, "raise parallel.ranks, or make the model smaller: keys that round more do not do, either" + limit);
  }
  return usage_error(what, fmt::format("set {}, which rounds more (n plan --fit has all such choices), or raise "
                                       "parallel.ranks{}",
                                       fmt::join(plan.rounding[0].rounds, ", "), limit));
}

std::string describe_savings(const Config& given, const MemoryPlan& plan, const std::optional<GpuPart>& part,
                             std::span<const int64_t> seq_lens) {
  Config config = given;
  config.optim.state_on_device = plan.state_on_device;
  const bool on_device = plan.device_bytes > 0;
  // Of the memory in question, by counting alone: there is little left to rehearse in.
  const auto bytes_of = [&](const StoragePlan& storage) {
    int64_t bytes = 0;
    for (const ArenaDescription& arena : arena_table()) {
      if (!on_device || arena.placement == Placement::kDevice) bytes += storage[arena.kind];
    }
    return on_device ? bytes : plan.ranks * bytes;
  };
  std::string text;
  const auto offer = [&](const Config& other, std::string_view what) {
    const int64_t saved = bytes_of(plan.storage) - bytes_of(plan_engine_storage(other, plan.ranks, part, seq_lens));
    if (saved > 0) text += fmt::format("; {} takes {} less", what, human_bytes(saved));
  };
  for (const Recompute level : recompute_levels(config)) {
    Config other = config;
    other.train.recompute = level;
    offer(other, assignment(other, "train.recompute"));
  }
  if (on_device) {
    Config other = config;
    other.optim.offload = Offload::kState;
    offer(other, assignment(other, "optim.offload"));
  }
  const std::vector<int64_t> sizes = microbatch_sizes(config);
  if (const auto size = std::ranges::lower_bound(sizes, config.train.microbatch_seqs); size != sizes.begin()) {
    Config other = config;
    other.train.microbatch_seqs = *std::prev(size);
    offer(other, assignment(other, "train.microbatch_seqs"));
  }
  for (const Rounding& rounding : all_roundings()) {
    const std::vector<std::string> keys = assignments(config, rounding);
    if (keys.empty()) continue;
    Config other = config;
    rounding.set(other);
    offer(other, fmt::format("{}, which rounds,", fmt::join(keys, " and ")));
  }
  if (!text.empty()) text += "; n plan --fit tries them together";
  return text;
}

}  // namespace nmoe
