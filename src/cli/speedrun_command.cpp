#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/signals.h"
#include "base/version.h"
#include "chat/checkpoint_settings.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "cli/model_evaluation.h"
#include "cli/standard_output.h"
#include "config/load.h"
#include "parallel/launch.h"
#include "track/leaderboard.h"
#include "train/loop/run_config.h"
#include "train/loop/trainer.h"
#include "train/plan/run_folder.h"

namespace nmoe::cli {

namespace {

std::string_view precision_of(const RunConfig& run) {
  switch (run.precision) {
    case Precision::kDevice:
      return run.device == "cpu" ? "fp32" : "bf16";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp32:
      return "fp32";
    case Precision::kFp8:
      return "fp8";
    case Precision::kMxFp8:
      return "mxfp8";
    case Precision::kNvFp4:
      return "nvfp4";
  }
  NMOE_CHECK(false, "precision {}", static_cast<int>(run.precision));
}

// What is left of a speedrun whose training has ended: all of its entry but the scores, so that an evaluation that was
// cut short goes on without training again.
class SpeedrunFolder {
 public:
  explicit SpeedrunFolder(const Config& config) : path_(fs::path(config.run.dir) / "speedruns" / config.run.name) {}

  fs::path evaluation() const { return path_ / "evaluation"; }
  // Nothing where training has not ended. Error (usage) where it was of another configuration or target.
  std::optional<LeaderboardEntry> trained(const Config& config) const {
    if (!fs::exists(file())) return std::nullopt;
    LeaderboardEntry entry = parse_leaderboard_entry(read_file(file()), file());
    const std::string wanted = config_fingerprint(config);
    if (entry.config != wanted || entry.target_loss != config.train.target_loss) {
      throw usage_error(fmt::format("{} is of a speedrun to {} with the configuration {:.12}, this one is to {} with "
                                    "{:.12}",
                                    file().string(), entry.target_loss, entry.config, config.train.target_loss, wanted),
                        "choose another run.name");
    }
    return entry;
  }
  void keep(const LeaderboardEntry& entry) const {
    make_directories(path_);
    write_file_atomically(file(), leaderboard_entry_json(entry));
  }

 private:
  fs::path file() const { return path_ / "training.json"; }
  fs::path path_;
};

constexpr const char* kBeginAnew = "choose another run.name, or remove this run's checkpoints, to begin anew";

// Nothing in a process that leaves reports to another.
std::optional<LeaderboardEntry> train_to_target(const Config& config) {
  if (latest_checkpoint(checkpoint_dir(config))) {
    throw usage_error(fmt::format("{} holds checkpoints of a run that was not trained to its target in one go",
                                  checkpoint_dir(config).string()),
                      kBeginAnew);
  }
  const TrainSummary summary = train(
      config, {.version = std::string(version()), .commit = std::string(commit()), .text_ids_of = imported_text_ids});
  if (!summary.reports) return std::nullopt;
  if (summary.interrupted) {
    throw runtime_error(fmt::format("stopped after step {}: the training of a speedrun is timed from its first step to "
                                    "its last, and does not go on",
                                    summary.steps),
                        kBeginAnew);
  }
  if (!summary.target_reached) {
    throw runtime_error(
        fmt::format("no entry: after step {}, the last, the validation loss is {}, the target {}", summary.steps,
                    summary.valid ? fmt::format("{:.4f}", summary.valid->loss()) : "unknown", config.train.target_loss),
        "train longer (train.steps, optim.schedule), or to a higher train.target_loss, under another run.name");
  }
  const CheckpointReader reader = CheckpointReader::open(summary.checkpoint);
  const CheckpointInfo& info = reader.info();
  return LeaderboardEntry{.run = config.run.name,
                          .run_id = info.run_id,
                          .date = info.created_at,
                          .hardware = summary.device.substr(0, summary.device.find(", ")),
                          .ranks = config.parallel.ranks,
                          .precision = std::string(precision_of(config.run)),
                          .commit = info.nmoe_commit,
                          .config = config_fingerprint(config),
                          .data = info.data_fingerprint,
                          .parameters = info.num_parameters,
                          .target_loss = config.train.target_loss,
                          .steps = info.step,
                          .tokens = info.tokens,
                          .train_seconds = summary.seconds,
                          .loss_of = std::string(kAllTargets),
                          .valid_loss = summary.valid->loss(),
                          .bits_per_byte = summary.valid->bits_per_byte(),
                          .scores = {}};
}

// What is evaluated must be what was timed.
void check_is_trained(const LeaderboardEntry& entry, const fs::path& checkpoints) {
  const CheckpointReader reader = CheckpointReader::open(checkpoints);
  const CheckpointInfo& info = reader.info();
  if (info.run_id == entry.run_id && info.step == entry.steps) return;
  throw usage_error(fmt::format("{} is of step {} of {}, the speedrun ended at step {} of {}", reader.path().string(),
                                info.step, info.run_id, entry.steps, entry.run_id),
                    kBeginAnew);
}

// A suite's mean, or without one each of its tasks.
std::vector<LeaderboardScore> scores_of(const EvalReport& report) {
  std::vector<LeaderboardScore> scores;
  for (const SuiteMean& mean : report.means) scores.push_back({mean.name, mean.value, mean.standard_error});
  for (const TaskReport& task : report.tasks) {
    const auto of_task = [&](const SuiteMean& mean) { return mean.suite == task.suite; };
    if (std::ranges::any_of(report.means, of_task) || !task.has_accuracy()) continue;
    scores.push_back({task.name(), task.accuracy(), task.standard_error()});
  }
  return scores;
}

}  // namespace

void speedrun_command(const SpeedrunArguments& arguments) {
  const std::vector<LeaderboardEntry> entries = read_leaderboard(arguments.leaderboard);
  if (arguments.list) {
    if (entries.empty()) {
      throw usage_error(fmt::format("'{}' has no entries", arguments.leaderboard), "add one with n speedrun CONFIG");
    }
    print("{}", leaderboard_table(entries));
    return;
  }
  ignore_broken_pipes();
  const Config config = load_run_config(arguments.config.file, arguments.config.overrides);
  if (config.train.target_loss == 0.0) {
    throw usage_error("a speedrun ends at train.target_loss, and there is none",
                      "set train.target_loss (nats per token) and train.valid_every");
  }
  const SpeedrunFolder folder(config);
  const EvalArguments evaluation{.model = checkpoint_dir(config).string(),
                                 .tasks = arguments.tasks,
                                 .data = arguments.data,
                                 .out = folder.evaluation().string(),
                                 .batch = arguments.batch,
                                 .device = config.run.device,
                                 .fp32 = config.run.device != "cpu" && config.run.precision == Precision::kFp32,
                                 .threads = static_cast<int>(config.run.threads)};
  check_evaluation(evaluation);
  std::optional<LeaderboardEntry> entry = folder.trained(config);
  if (!entry) {
    entry = train_to_target(config);
    if (entry) folder.keep(*entry);
  }
  if (!entry || read_launch().process > 0) return;  // of several processes, the first evaluates
  check_is_trained(*entry, checkpoint_dir(config));
  entry->scores = scores_of(evaluate_model(evaluation));
  add_to_leaderboard(arguments.leaderboard, *entry);
  print("{}", leaderboard_table({*entry}));
}

}  // namespace nmoe::cli
