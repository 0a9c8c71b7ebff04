#include "train/loop/run_length.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "checkpoint/saved_config.h"
#include "optim/schedule.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

// Of an epoch of the plan's one source.
int64_t epoch_sequences(const StreamPlan& plan) { return plan.sources[0].num_windows(plan.seq_len); }

int64_t some_steps(int64_t steps, std::string_view key, const Value& value, const Config& config) {
  if (steps > 0) return steps;
  throw usage_error(fmt::format("{} = {} is less than a step, of train.batch_seqs = {} sequences of {} tokens", key,
                                to_toml(value), config.train.batch_seqs, config.data.seq_len),
                    fmt::format("raise {}, or lower train.batch_seqs", key));
}

}  // namespace

std::optional<int64_t> run_steps(const Config& config, const StreamPlan* plan) {
  const TrainConfig& train = config.train;
  if (train.epochs > 0.0) {
    if (!config.data.mixture.empty()) {
      throw usage_error(
          fmt::format("train.epochs = {} with data.mixture: sources of a mixture have epochs of their own",
                      to_toml(train.epochs)),
          "set train.steps or train.tokens; the data.profile says how much is read of each source");
    }
    if (plan == nullptr) return std::nullopt;
    const double sequences = train.epochs * static_cast<double>(epoch_sequences(*plan));
    const double steps = std::floor(sequences / static_cast<double>(train.batch_seqs));
    if (steps > 1e15) throw usage_error(fmt::format("train.epochs = {} has no end", train.epochs), "lower it");
    return some_steps(static_cast<int64_t>(steps), "train.epochs", train.epochs, config);
  }
  if (train.tokens > 0) return some_steps(train.tokens / step_tokens(config), "train.tokens", train.tokens, config);
  if (train.steps > 0) return train.steps;
  if (plan == nullptr) return std::nullopt;
  return plan->num_tokens() / step_tokens(config);
}

std::optional<double> run_epochs(const Config& config, const StreamPlan& plan) {
  if (!is_endless(plan)) return std::nullopt;
  return static_cast<double>(config.train.steps * config.train.batch_seqs) / static_cast<double>(epoch_sequences(plan));
}

Config resolve_length(Config config, const StreamPlan* plan) {
  const std::optional<int64_t> steps = run_steps(config, plan);
  config.train.steps = steps.value_or(0);
  if (!steps) return config;
  config.train.tokens = 0;
  config.train.epochs = 0.0;
  ScheduleConfig& schedule = config.optim.schedule;
  if (!schedule.needs_length()) return config;
  if (schedule.length == 0) schedule.length = schedule_position(schedule, *steps, step_tokens(config));
  if (schedule.hold.kind() == Span::Kind::kRest && schedule_ends(schedule).decay > schedule.length) {
    throw usage_error(
        fmt::format(
            "optim.schedule.hold = \"rest\", but warmup = {} and decay = {} are longer than the {} {} of the run",
            to_toml(schedule.warmup.value()), to_toml(schedule.decay.value()), schedule.length,
            schedule.unit == ScheduleUnit::kSteps ? "steps" : "tokens"),
        "shorten optim.schedule.warmup or decay, or train longer");
  }
  return config;
}

Config keep_schedule_length(Config config, const fs::path& folder) {
  ScheduleConfig& schedule = config.optim.schedule;
  if (!schedule.needs_length() || schedule.length > 0) return config;
  const std::optional<fs::path> latest = latest_checkpoint(folder);
  if (!latest) return config;
  schedule.length = saved_config(CheckpointReader::open(*latest)).optim.schedule.length;
  return config;
}

}  // namespace nmoe
