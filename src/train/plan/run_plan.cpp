#include "train/plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "model/spec/spec.h"
#include "ops/moment_codes.h"
#include "optim/optimizer.h"
#include "train/plan/run_folder.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

// Where the run ends in its schedule, unless it is the schedule's end: a rate that was meant to fall and did not is
// easily taken for the configuration's fault.
std::string note_on_end(const Config& config) {
  const ScheduleConfig& schedule = config.optim.schedule;
  const int64_t steps = config.train.steps;
  if (steps == 0 || (schedule.warmup.is_none() && schedule.decay.is_none())) return "";
  const ScheduleEnds ends = schedule_ends(schedule);
  const int64_t end = schedule_position(schedule, steps, step_tokens(config));
  const std::string_view unit = schedule.unit == ScheduleUnit::kSteps ? "step" : "token";
  const std::string_view remedy =
      schedule.needs_length() ? "" : R"( (shares, such as decay = "50%", follow the run's length))";
  if (end < ends.warmup) {
    return fmt::format("\n  NOTE: the run ends at {} {}, still in the warm-up, at {:.0f} % of the peak rates", unit,
                       end, 100.0 * static_cast<double>(end) / static_cast<double>(ends.warmup));
  }
  if (schedule.decay.is_none()) return "";
  if (end <= ends.hold) {
    return fmt::format(
        "\n  NOTE: the run ends at {} {}, at the peak of its learning rates: the decay would begin after "
        "{} {}{}",
        unit, end, unit, ends.hold, remedy);
  }
  if (end >= ends.decay) return "";
  const double share = static_cast<double>(end - ends.hold) / static_cast<double>(ends.decay - ends.hold);
  return fmt::format("\n  NOTE: the run ends at {} {}, with {:.0f} % of the decay done, which goes on to {} {}{}", unit,
                     end, 100.0 * share, unit, ends.decay, remedy);
}

std::string describe_schedule(const Config& config) {
  const ScheduleConfig& schedule = config.optim.schedule;
  std::string text = "learning rates: ";
  if (schedule.needs_length() && schedule.length == 0) {
    return text + "shares of the run, whose length takes the corpus to be known";
  }
  const ScheduleEnds ends = schedule_ends(schedule);
  const char* unit = schedule.unit == ScheduleUnit::kSteps ? "step" : "token";
  const auto at = [&](int64_t position) { return fmt::format("{} {}", unit, position); };
  if (ends.warmup > 0) text += fmt::format("from 0 to their peaks at {}, ", at(ends.warmup));
  if (schedule.decay.is_none()) return text + "then held for ever" + note_on_end(config);
  if (ends.hold > ends.warmup) text += fmt::format("held to {}, ", at(ends.hold));
  text += fmt::format("then down to {} after {}", schedule.floor, at(ends.decay));
  if (schedule.floor > 0) text += ", and held there";
  return text + note_on_end(config);
}

// What the file system of `path`, which need not exist yet, has left for this user; nothing where it does not say.
std::optional<int64_t> free_bytes(fs::path path) {
  std::error_code error;
  for (path = fs::absolute(path, error); !fs::exists(path, error) && path.has_relative_path();) {
    path = path.parent_path();
  }
  const fs::space_info space = fs::space(path, error);
  return error ? std::nullopt : std::optional(static_cast<int64_t>(space.available));
}

std::string describe_checkpoints(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  std::string when;
  if (checkpoint.every > 0) when += fmt::format("every {} steps, ", checkpoint.every);
  if (checkpoint.every_minutes > 0) when += fmt::format("every {} minutes, ", checkpoint.every_minutes);
  when += when.empty() ? "at the end alone" : "and at the end";
  const int64_t bytes = checkpoint_bytes(config);
  std::string text = fmt::format("checkpoints: {}; {} each", when, human_bytes(bytes));
  const fs::path dir = checkpoint_dir(config);
  const std::optional<int64_t> room = free_bytes(dir);
  if (checkpoint.keep_last == 0) {
    text += ", all are kept";
  } else {
    // While one is written, those before it are still there.
    text += fmt::format(", the last {} kept: up to {} of disk", checkpoint.keep_last,
                        human_bytes((checkpoint.keep_last + 1) * bytes));
  }
  if (room) text += fmt::format(", of which {} has {}", dir.string(), human_bytes(*room));
  if (room && *room < (checkpoint.keep_last + 1) * bytes) text += "\n  NOTE: that is too little";
  if (checkpoint.staging_bytes < bytes / config.parallel.ranks) {
    text += fmt::format(
        "\n  training waits until {} of each are written; host memory has the rest by then, "
        "checkpoint.staging_bytes = {} a rank",
        human_bytes(bytes - config.parallel.ranks * checkpoint.staging_bytes), checkpoint.staging_bytes);
  }
  return text;
}

}  // namespace

int64_t checkpoint_bytes(const Config& config) {
  constexpr int64_t kMasterBytes = 4;
  // A moment of a weight, with its scales.
  const auto moment_bytes = [](MomentFormat format, const WeightSpec& weight) {
    const int64_t size = weight.shape.num_elements();
    if (format == MomentFormat::kFp8) return size + StateLayout{moments::kBlock}.shape(weight).num_elements();
    return size * (format == MomentFormat::kBf16 ? 2 : 4);
  };
  int64_t bytes = 0;
  for (const WeightSpec& weight : describe_model(config.model).weights) {
    bytes += kMasterBytes * weight.shape.num_elements();
    if (!weight.is_trained()) continue;
    const bool is_muon = group_of(config.optim, weight.group).optimizer == OptimizerKind::kMuon;
    bytes +=
        is_muon ? moment_bytes(config.optim.muon.state, weight) : 2 * moment_bytes(config.optim.adamw.state, weight);
  }
  return bytes;
}

double run_flops(const Config& config, const ModelCost& cost, const StreamPlan* plan) {
  int64_t left = config.train.steps * step_tokens(config);
  if (plan == nullptr) return static_cast<double>(left) * cost.flops_per_token(config.data.seq_len);
  double flops = 0.0;
  for (const PlannedStage& stage : plan->stages) {
    const int64_t tokens = std::min(left, stage.num_sequences * stage.seq_len);
    flops += static_cast<double>(tokens) * cost.flops_per_token(stage.seq_len);
    left -= tokens;
  }
  return flops;
}

std::string print_run_plan(const Config& config, double flops, std::optional<double> epochs, double peak_flops) {
  constexpr double kShare = 0.4;  // of the peak: what large models reach here (docs/results.md)
  std::string text;
  if (config.train.steps > 0) {
    const double tokens = static_cast<double>(config.train.steps) * static_cast<double>(step_tokens(config));
    const char* most = config.data.mask_documents ? "at most " : "";  // as if every sequence were one document
    text += fmt::format("  {} steps of {} tokens: {} tokens{}, {}{}\n", config.train.steps, step_tokens(config),
                        human_count(tokens), epochs ? fmt::format(", {:.2f} epochs", *epochs) : "", most,
                        human_quantity(flops, "FLOP"));
    if (peak_flops > 0.0) {
      const double peak = peak_flops * static_cast<double>(config.parallel.ranks);
      text += fmt::format("  {}{} at {:.0f} % of {}\n", most, human_seconds(flops / (kShare * peak)), 100.0 * kShare,
                          human_quantity(peak, "FLOP/s"));
    }
  }
  if (config.train.target_loss > 0.0) {
    text += fmt::format("  or until a validation, every {} steps, gives {} nats per token\n", config.train.valid_every,
                        config.train.target_loss);
  }
  const char* rule = config.model.scaling.rule == ScalingRule::kNone
                         ? ""
                         : "  rates, decays and epsilon are the base model's, times factors of each weight "
                           "([model.scaling]; n plan prints them)\n";
  return text + fmt::format("  {}\n{}  {}\n", describe_schedule(config), rule, describe_checkpoints(config));
}

void check_schedule(const Config& config, const Progress& done, bool resumes) {
  if (config.optim.schedule.needs_length() && config.optim.schedule.length == 0) return;  // nothing is known of its end
  const std::optional<int64_t> last = last_learning_step(config.optim.schedule, step_tokens(config));
  if (!last || config.train.steps <= std::max(*last, done.steps)) return;
  const ScheduleConfig& schedule = config.optim.schedule;
  const ScheduleEnds ends = schedule_ends(schedule);
  const std::string what = fmt::format(
      "train.steps = {}, but the learning rate is 0 from step {} on: optim.schedule ends after {} {} (warmup {} + hold "
      "{} + decay {})",
      config.train.steps, *last + 1, ends.decay, schedule.unit == ScheduleUnit::kSteps ? "steps" : "tokens",
      ends.warmup, ends.hold - ends.warmup, ends.decay - ends.hold);
  throw usage_error(
      what, resumes ? fmt::format("set train.steps = {}; a run keeps its schedule, so train on from its weights as "
                                  "another run: another run.name, and this one's checkpoints as model.init.from",
                                  *last)
                    : fmt::format("set train.steps = {}, lengthen optim.schedule.hold or decay, or set "
                                  "optim.schedule.floor, the rate that is then held",
                                  *last));
}

}  // namespace nmoe
