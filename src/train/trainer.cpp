#include "train/trainer.h"

#include <algorithm>
#include <deque>
#include <numbers>

#include "base/files.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/text.h"
#include "checkpoint/async_writer.h"
#include "config/load.h"
#include "train/batch_stream.h"
#include "train/memory_plan.h"
#include "train/recorder.h"
#include "train/resume.h"
#include "train/router_report.h"
#include "train/training_data.h"

namespace nmoe {
namespace {

// A stop that is the run's own fault, with the status it leaves behind.
class RunFailure : public Error {
 public:
  RunFailure(RunStatus status, const std::string& what, std::string remedy)
      : Error(ErrorKind::kRuntime, what, std::move(remedy)), status_(status) {}
  RunStatus status() const { return status_; }

 private:
  RunStatus status_;
};

std::string answers_text(const ValidationResult& result) {
  return result.answers == 0 ? "" : fmt::format(", answers right {:.1f} %", 100.0 * result.answers_correct_share());
}

class Trainer {
 public:
  Trainer(Config config, const TrainOptions& options, TrainingData data)
      : config_(std::move(config)),
        options_(options),
        data_(std::move(data)),
        plan_(plan_memory(config_, data_.mapped_bytes())),
        batches_(config_, data_, plan_.cost.active_parameters),
        token_bytes_(token_byte_counts(*data_.tokenizer)),
        tokenizer_json_(data_.tokenizer->json()),
        cursor_(batches_.cursor()) {
    config_ = resolve_steps(std::move(config_), batches_.plan());
    fmt::print(stderr, "{}", print_plan(plan_, config_));
    if (data_.mixture) fmt::print(stderr, "{}", print_stream_plan(batches_.plan()));
    check_memory(plan_, config_);
    for (const DataSource& source : data_.sources) {
      if (source.valid) valid_splits_.push_back({source.name, split_reader(*source.valid, config_.data.seq_len)});
    }
    device_ = make_device(device_options(config_.run));
    storage_ = std::make_unique<Storage>(*device_, plan_.storage);
    fmt::print(stderr, "device: {}\n", device_->description());
    engine_ = std::make_unique<Engine>(config_, *storage_);
  }

  TrainSummary run();

 private:
  void start();
  // A step that is on its way, and what its report needs.
  struct Enqueued {
    Progress progress;    // where it ends
    StreamCursor cursor;  // same
    int64_t targets = 0;  // with a loss
    int64_t bytes = 0;    // of text in them
    bool log = false;
  };
  const Progress& ahead() const { return enqueued_.empty() ? progress_ : enqueued_.back().progress; }
  void loop(const StopSignal& stop);
  void enqueue_step();
  void finish_step();
  void finish_steps();
  void report(const Enqueued& step, StepResult result);
  void fail_non_finite(const StepResult& result);
  void run_validation();
  void save();
  void save_after_failure();
  void record_failure(RunStatus status, const std::string& reason);
  int64_t batch_tokens() const { return config_.train.batch_seqs * config_.data.seq_len; }

  Config config_;
  TrainOptions options_;
  TrainingData data_;
  MemoryPlan plan_;
  BatchStream batches_;
  struct ValidSplit {
    std::string source;
    SequenceReader reader;
  };
  std::vector<ValidSplit> valid_splits_;
  std::vector<int32_t> token_bytes_;
  std::vector<CarriedFile> carried_;  // of the imported model that training began with
  std::string tokenizer_json_;        // in every checkpoint; 10 MB for large vocabularies
  std::unique_ptr<Device> device_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<AsyncCheckpointWriter> writer_;
  std::deque<Enqueued> enqueued_;
  Progress progress_;    // of steps whose results are known
  StreamCursor cursor_;  // behind them
  int64_t saved_step_ = -1;
  std::string collapse_;  // of a router that was found collapsed
  StepClock clock_;
  double reported_seconds_ = 0.0;
  int64_t reported_steps_ = 0;
  TrainSummary summary_;
};

void Trainer::start() {
  const fs::path folder = checkpoint_dir(config_);
  const TrainingStart start(config_, data_, batches_.plan(), folder, options_.resume);
  if (start.resumes()) {
    batches_.seek(*start.cursor());
    cursor_ = *start.cursor();
    progress_ = start.progress();
    saved_step_ = progress_.steps;
  }
  start.apply(*engine_);
  carried_ = start.carried();
  reported_steps_ = progress_.steps;
  recorder_ = std::make_unique<Recorder>(config_, engine_->optimizer(), start.run_id(), progress_.steps,
                                         options_.commit, plan_.cost.flops_per_token, device_->peak_flops());
  writer_ = std::make_unique<AsyncCheckpointWriter>(folder, config_.checkpoint.keep_last);
  if (progress_.steps > 0) recorder_->message(fmt::format("resumed from {}", start.checkpoint().string()));
}

void Trainer::enqueue_step() {
  batches_.next();
  Enqueued step;
  step.progress = {.steps = ahead().steps + 1, .tokens = ahead().tokens + batch_tokens()};
  step.cursor = batches_.cursor();
  step.targets = batches_.num_targets();
  for (const int32_t target : batches_.targets()) {
    if (target != kNoTarget) step.bytes += token_bytes_[static_cast<size_t>(target)];
  }
  const int64_t number = step.progress.steps;
  step.log = number == 1 || number == config_.train.steps || number % config_.train.log_every == 0;
  for (int64_t i = 0; i < batches_.num_microbatches(); ++i) {
    const Microbatch part = batches_.microbatch(i);
    engine_->load(i, part.inputs, part.targets, part.documents);
  }
  engine_->step(step.progress, step.targets, /*with_routers=*/step.log);
  enqueued_.push_back(step);
}

// The oldest that is on its way; waits for it.
void Trainer::finish_step() {
  StepResult result = engine_->take_result();
  if (!result.finite) fail_non_finite(result);
  const Enqueued step = enqueued_.front();
  enqueued_.pop_front();
  progress_ = step.progress;
  cursor_ = step.cursor;
  ++summary_.steps_now;
  report(step, std::move(result));
}

void Trainer::finish_steps() {
  while (!enqueued_.empty()) finish_step();
}

void Trainer::fail_non_finite(const StepResult& result) {
  const std::string culprit = engine_->find_non_finite();
  throw RunFailure(
      RunStatus::kFailedNan,
      fmt::format("step {}: loss {}, gradient norm {}; first bad tensor: {}", progress_.steps + 1, result.loss,
                  result.grad_norm, culprit.empty() ? "none within a microbatch (their sum overflowed)" : culprit),
      fmt::format("the weights after step {} are kept; start another run.name with lower learning rates in [optim], a "
                  "longer optim.schedule.warmup or optim.clip_norm",
                  progress_.steps));
}

void Trainer::report(const Enqueued& step, StepResult result) {
  const double nats = result.loss * static_cast<double>(step.targets);
  const StepReport report{
      .progress = step.progress,
      .result = std::move(result),
      .bits_per_byte = nats / (std::numbers::ln2 * static_cast<double>(std::max<int64_t>(step.bytes, 1))),
      .seconds = clock_.seconds() - reported_seconds_,
      .steps = step.progress.steps - reported_steps_};
  recorder_->show(report, step.log);
  if (!step.log) return;
  recorder_->record(report);
  reported_seconds_ = clock_.seconds();
  reported_steps_ = step.progress.steps;
  if (!collapse_.empty() || !config_.train.stop_on_collapse) return;
  collapse_ = find_collapse(report.result.routers, config_.model.moe);
  if (!collapse_.empty()) collapse_ = fmt::format("step {}: {}", step.progress.steps, collapse_);
}

void Trainer::run_validation() {
  if (valid_splits_.empty()) return;
  const bool several = valid_splits_.size() > 1;
  const auto report = [&](std::string_view source, const ValidationResult& result, double seconds) {
    const std::string prefix =
        source.empty() ? fmt::format("step {}", progress_.steps) : fmt::format("step {}: {}", progress_.steps, source);
    if (result.tokens == 0) {
      recorder_->message(fmt::format("{}: validation has no token with a loss", prefix));
      return;
    }
    recorder_->record_validation(progress_.steps, source, result, seconds);
    recorder_->message(fmt::format("{}: validation loss {:.4f} nats, {:.4f} bits per byte{}", prefix, result.loss(),
                                   result.bits_per_byte(), answers_text(result)));
  };
  ValidationResult all;
  double all_seconds = 0.0;
  for (const auto& [source, split] : valid_splits_) {
    const auto begin = std::chrono::steady_clock::now();
    const ValidationResult result =
        validate(*engine_, split, token_bytes_, config_.train.valid_seqs, config_.train.microbatch_seqs);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (several) report(source, result, seconds);
    all += result;
    all_seconds += seconds;
  }
  report("", all, all_seconds);
  if (all.tokens > 0) summary_.valid = all;
}

void Trainer::save() {
  if (saved_step_ == progress_.steps) return;
  writer_->wait();  // staging is free again after it
  engine_->stage();
  CheckpointState state;
  state.info.step = progress_.steps;
  state.info.tokens = progress_.tokens;
  state.info.cursor = cursor_;
  state.info.num_parameters = plan_.cost.parameters;
  state.info.run_id = recorder_->run_id();
  state.info.config_fingerprint = config_fingerprint(config_);
  state.info.data_fingerprint = data_fingerprint(data_, batches_.plan());
  state.info.nmoe_version = options_.version;
  state.info.nmoe_commit = options_.commit;
  state.config_toml = print_config(config_);
  state.tokenizer_json = tokenizer_json_;
  if (const auto latest = latest_checkpoint(checkpoint_dir(config_))) {
    // Whichever they were read from may be pruned by now.
    for (CarriedFile& file : carried_) file.source = *latest / kCarriedFolder / file.name;
  }
  state.carried = carried_;
  state.model = engine_->staging().model;
  state.optimizer = engine_->staging().optimizer;
  writer_->submit(std::move(state), [this] { engine_->wait_staged(); });
  saved_step_ = progress_.steps;
}

// Steps are enqueued ahead of their results. Validation and checkpoints are of the steps before them: those are
// finished first.
void Trainer::loop(const StopSignal& stop) {
  clock_.start();
  while (ahead().steps < config_.train.steps && !stop.requested() && collapse_.empty()) {
    enqueue_step();
    const int64_t number = ahead().steps;
    const auto due = [&](int64_t every) { return every > 0 && number % every == 0 && number < config_.train.steps; };
    const bool valid_due = due(config_.train.valid_every), save_due = due(config_.checkpoint.every);
    if (!valid_due && !save_due) {
      while (engine_->has_result() || engine_->num_pending() == Engine::kMaxPending) finish_step();
      continue;
    }
    finish_steps();
    if (!collapse_.empty()) break;
    clock_.stop();
    if (valid_due) run_validation();
    if (save_due) save();
    clock_.start();
  }
  finish_steps();
  clock_.stop();
  if (collapse_.empty()) return;
  throw RunFailure(RunStatus::kFailedCollapse, collapse_,
                   "raise model.moe.bias_rate or model.moe.balance_loss, or lower optim.router.lr; "
                   "train.stop_on_collapse = false trains on regardless");
}

// What cannot be recorded either, say on a full disk, must not hide the failure itself.
void Trainer::record_failure(RunStatus status, const std::string& reason) {
  try {
    recorder_->finish(status, reason);
  } catch (const std::exception& error) {
    recorder_->message(fmt::format("the end of the run is not recorded: {}", error.what()));
  }
}

void Trainer::save_after_failure() {
  try {
    save();
    writer_->wait();
  } catch (const std::exception& error) {
    recorder_->message(fmt::format("the state is not saved: {}", error.what()));
  }
}

TrainSummary Trainer::run() {
  start();
  const StopSignal stop;
  try {
    loop(stop);
    summary_.interrupted = stop.requested();
    if (!summary_.interrupted) run_validation();
    save();
    writer_->wait();
    recorder_->finish(summary_.interrupted ? RunStatus::kInterrupted : RunStatus::kCompleted,
                      summary_.interrupted ? fmt::format("stopped by {}", stop.name()) : "");
  } catch (const RunFailure& failure) {
    record_failure(failure.status(), failure.what());
    save_after_failure();
    throw;
  } catch (const std::exception& error) {
    record_failure(RunStatus::kFailed, error.what());
    throw;
  }
  if (const auto device = device_->memory_use()) {
    summary_.device_bytes_planned = plan_.device_bytes;
    summary_.device_bytes_used = device->used_bytes;
  }
  summary_.steps = progress_.steps;
  summary_.seconds = clock_.seconds();
  if (summary_.steps_now > 0) {
    summary_.tokens_per_s = static_cast<double>(summary_.steps_now * batch_tokens()) / summary_.seconds;
  }
  summary_.checkpoint = latest_checkpoint(checkpoint_dir(config_)).value_or(fs::path());
  return summary_;
}

}  // namespace

fs::path checkpoint_dir(const Config& config) { return fs::path(config.run.dir) / "checkpoints" / config.run.name; }

TrainSummary train(const Config& config, const TrainOptions& options) {
  TrainingData data = open_training_data(config);
  Config resolved = resolve_vocab_size(config, *data.tokenizer);
  return Trainer(std::move(resolved), options, std::move(data)).run();
}

}  // namespace nmoe
