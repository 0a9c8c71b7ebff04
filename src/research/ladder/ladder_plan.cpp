#include "research/ladder/ladder_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "config/load.h"
#include "config/schema.h"
#include "model/spec/cost.h"
#include "research/sweep/expression.h"
#include "research/sweep/sweep_points.h"
#include "train/loop/run_config.h"
#include "train/loop/run_length.h"
#include "train/loop/training_data.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

constexpr size_t kShownPoints = 40;

double as_number(const Value& value) {
  const auto* whole = std::get_if<int64_t>(&value);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
}

// A rank's sequences of a batch: whole quarters of a microbatch, or, of less, any number.
int64_t rounded_share(double wanted, int64_t microbatch) {
  const auto quarter = static_cast<double>(std::max<int64_t>(1, microbatch / 4));
  const double unit = wanted < quarter ? 1.0 : quarter;
  return static_cast<int64_t>(std::max(1.0, std::round(wanted / unit)) * unit);
}
// The most sequences up to the base's that cut it into equal parts: a quarter of the base's at least.
int64_t microbatch_of(int64_t share, int64_t most) {
  int64_t seqs = std::min(share, most);
  while (share % seqs != 0) --seqs;
  return seqs;
}

// What sizes are measured by.
struct Size {
  double parameters, width, tokens;
};

class Planner {
 public:
  explicit Planner(const LadderFile& file) : file_(file) {
    of_all_ = file.sweep.overrides;
    of_all_.push_back(fmt::format("run.experiment=\"{}\"", file.sweep.name));
    of_all_.push_back(fmt::format("run.name=\"{}\"", file.sweep.name));
    base_ = load_run_config(file.sweep.base, of_all_);
    if (!base_.data.mixture.empty()) {
      throw fault("data.mixture's profile says how long a run is", "use data.path, so that sizes can say it");
    }
    if (!base_.optim.schedule.needs_length()) {
      throw fault("optim.schedule has lengths in counts, and the sizes of a ladder train for other lengths",
                  "write shares in [optim.schedule]: warmup = \"5%\", hold = \"rest\", decay = \"40%\"");
    }
    data_.emplace(open_training_data(base_));
    const Config base = with_vocabulary(base_);
    const int64_t steps = resolve_length(base, nullptr).train.steps;
    if (steps == 0) {
      throw fault("the base has no length that tokens can be compared with",
                  "set train.tokens or train.steps in it, or in [train] here");
    }
    base_size_ = measure(base);
    base_size_.tokens = static_cast<double>(steps * step_tokens(base));
  }

  // The points of the sizes, each with all its lengths, then those of the targets.
  std::vector<SweepPoint> points(std::vector<LadderPoint>& ladder) {
    SweepFile family = file_.sweep;
    for (const Value& target : file_.targets) family.axes.front().values.push_back({target});
    const std::vector<SweepPoint> sizes = sweep_points(family, base_);
    const size_t num_sizes = sizes.size() - file_.targets.size();
    std::vector<SweepPoint> points;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool is_target = i >= num_sizes;
      const Config config = config_of(sizes[i]);
      const Size size = measure(config);
      std::vector<double> tokens;
      const std::vector<double> ratios =
          is_target ? std::vector{file_.target_tokens_per_parameter} : file_.tokens_per_parameter;
      for (const double ratio : ratios) tokens.push_back(ratio * size.parameters);
      const double flops_per_token = model_cost(config.model).flops_per_token(config.data.seq_len);
      for (const double flops : file_.flops) {
        if (!is_target) tokens.push_back(flops / flops_per_token);
      }
      for (const double wanted : tokens) {
        points.push_back(sizes[i]);
        ladder.push_back({.dial = as_number(sizes[i].front().second), .is_target = is_target});
        add_length(config, {size.parameters, size.width, wanted}, points.back(), ladder.back());
      }
    }
    return points;
  }

 private:
  Error fault(const std::string& what, const std::string& remedy) const {
    return usage_error(fmt::format("{}: {}", file_.sweep.path.string(), what), remedy);
  }
  Config with_vocabulary(Config config) const { return resolve_vocab_size(std::move(config), *data_->tokenizer); }

  static Size measure(const Config& config) {
    return {static_cast<double>(model_cost(config.model).active_parameters), static_cast<double>(config.model.dim),
            0.0};
  }

  Config config_of(const SweepPoint& point) const {
    std::vector<std::string> settings = of_all_;
    for (const auto& [key, value] : point) settings.push_back(key + "=" + to_toml(value));
    try {
      return with_vocabulary(load_run_config(file_.sweep.base, settings));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", describe_point(point), error.what()), error.remedy());
    }
  }

  double factor(const std::string& law, const std::string& name, const Size& size, double batch) const {
    const auto value_of = [&](std::string_view what) {
      if (what == "tokens") return size.tokens / base_size_.tokens;
      if (what == "parameters") return size.parameters / base_size_.parameters;
      if (what == "width") return size.width / base_size_.width;
      if (what == "batch" && name != "batch") return batch;
      throw usage_error(fmt::format("\"{}\" names {}", law, what),
                        fmt::format("ladder.laws.{} sees tokens, parameters, width{}, each over the base's", name,
                                    name == "batch" ? "" : ", batch"));
    };
    try {
      const double value = evaluate(law, value_of);
      if (value > 0.0) return value;
      throw usage_error(fmt::format("\"{}\" is {}", law, value), "let it be above 0 for every size");
    } catch (const Error& error) {
      throw fault(fmt::format("ladder.laws.{}: {}", name, error.what()), error.remedy());
    }
  }

  void add_length(const Config& config, const Size& size, SweepPoint& point, LadderPoint& ladder) const {
    const auto base_seqs = static_cast<double>(base_.train.batch_seqs);
    const int64_t ranks = config.parallel.ranks;
    const double wanted = base_seqs * factor(file_.batch_law, "batch", size, 1.0) / static_cast<double>(ranks);
    const int64_t share = rounded_share(wanted, config.train.microbatch_seqs);
    ladder.batch_seqs = share * ranks;
    const double batch = static_cast<double>(ladder.batch_seqs) / base_seqs;
    ladder.rate = factor(file_.rate_law, "rate", size, batch);
    ladder.decay = factor(file_.decay_law, "decay", size, batch);
    ladder.parameters = size.parameters;
    add(point, "train.tokens", static_cast<int64_t>(std::llround(size.tokens)));
    add(point, "train.batch_seqs", ladder.batch_seqs);
    add(point, "train.microbatch_seqs", microbatch_of(share, config.train.microbatch_seqs));
    Config described = config;
    const std::vector<Field> fields = describe(described);
    for (const char* group : {"matrices", "experts", "router", "rest"}) {
      scale(fields, fmt::format("optim.{}.lr", group), ladder.rate, point);
      scale(fields, fmt::format("optim.{}.weight_decay", group), ladder.decay, point);
    }
  }

  // A key that has an effect and is not 0.
  void scale(const std::vector<Field>& fields, const std::string& key, double factor, SweepPoint& point) const {
    const Field& field = *std::ranges::find(fields, key, &Field::key);
    const double value = as_number(field.get());
    if (field.shown() && value != 0.0) add(point, key, factor * value);
  }

  void add(SweepPoint& point, const std::string& key, Value value) const {
    if (std::ranges::find(point, key, &SweepPoint::value_type::first) != point.end()) {
      throw fault(fmt::format("{} is set by the ladder's laws and in [sweep.keys]", key),
                  "remove it there; [ladder.laws] says how it follows from a size");
    }
    point.emplace_back(key, std::move(value));
  }

  const LadderFile& file_;
  std::vector<std::string> of_all_;
  Config base_;
  std::optional<TrainingData> data_;
  Size base_size_{};
};

bool sets_length(const std::string& setting) {
  return std::ranges::any_of(std::array{"train.steps=", "train.tokens=", "train.epochs="},
                             [&](const char* key) { return setting.starts_with(key); });
}

}  // namespace

SweepPlan LadderPlan::without_targets() const {
  SweepPlan plan = sweep;
  std::erase_if(plan.runs, [&](const SweepRun& run) { return points[static_cast<size_t>(run.point) - 1].is_target; });
  return plan;
}

LadderPlan plan_ladder(const LadderFile& file, int64_t parallel) {
  LadderPlan plan{.file = file};
  const std::vector<SweepPoint> points = Planner(file).points(plan.points);
  SweepFile sweep = file.sweep;
  sweep.expressions.clear();
  std::erase_if(sweep.overrides, sets_length);  // the base's, which tokens are compared with
  SweepAxis all{.place = file.sizes().place};
  for (const auto& [key, value] : points.front()) all.keys.push_back(key);
  for (const SweepPoint& point : points) {
    all.values.emplace_back();
    for (const std::string& key : all.keys) {
      const auto found = std::ranges::find(point, key, &SweepPoint::value_type::first);
      if (found == point.end() || point.size() != all.keys.size()) {
        throw usage_error(fmt::format("{}: sizes of the ladder differ in which keys have an effect, such as {}",
                                      file.sweep.path.string(), key),
                          "let the dial and what follows from it change sizes alone");
      }
      all.values.back().push_back(found->second);
    }
  }
  sweep.axes = {std::move(all)};
  plan.sweep = plan_sweep(sweep, parallel);
  for (const SweepRun& run : plan.sweep.runs) {
    LadderPoint& point = plan.points[static_cast<size_t>(run.point) - 1];
    point.tokens = static_cast<double>(run.tokens);
    point.flops = run.flops;
  }
  return plan;
}

std::string print_ladder_plan(const LadderPlan& plan) {
  const LadderFile& file = plan.file;
  std::string text = fmt::format("  laws, over the base: batch {}, rate {}, decay {}\n", file.batch_law, file.rate_law,
                                 file.decay_law);
  text += fmt::format("  {:<24}{:>12}{:>10}{:>10}{:>12}{:>8}{:>8}{:>8}\n", file.sizes().keys.front(), "active",
                      "tokens", "FLOP", "tokens each", "batch", "rate", "decay");
  for (size_t i = 0; i < std::min(kShownPoints, plan.points.size()); ++i) {
    const LadderPoint& point = plan.points[i];
    text += fmt::format("  {:<24}{:>12}{:>10}{:>10}{:>12.1f}{:>8}{:>8.3f}{:>8.3f}\n",
                        fmt::format("{}{}", point.dial, point.is_target ? ", target" : ""),
                        human_count(point.parameters), human_count(point.tokens), human_count(point.flops),
                        point.tokens / point.parameters, point.batch_seqs, point.rate, point.decay);
  }
  if (plan.points.size() > kShownPoints) text += fmt::format("  ... and {} more\n", plan.points.size() - kShownPoints);
  return text;
}

}  // namespace nmoe
