#include "train/loop/rank_trainer.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/failure.h"
#include "base/process.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "data/stream/loader.h"
#include "ops/products/products.h"
#include "train/plan/run_folder.h"
#include "train/step/arithmetic_changes.h"

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

// All ranks have saved and ended, and this one, whose data could not be read, says why.
class DataFailure : public std::exception {};

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& exception) {
    return as_error(exception).what();
  }
}

// "loss 2.5", as metrics call it, and more where the run has more.
std::string losses_text(const StepResult& result) {
  std::string text;
  for (const auto& [objective, value] : result.losses) {
    const std::string_view tag = objective->metric.tag;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", tag.substr(tag.find('/') + 1), value);
  }
  for (size_t i = 0; i < result.depths.size(); ++i) {
    text += fmt::format(", loss of depth {} {}", i + 1, result.depths[i].loss);
  }
  return text;
}

}  // namespace

RankTrainer::RankTrainer(const TrainingRun& run, std::unique_ptr<BatchSource> batches, Communicator& communicator,
                         RunPlace& place, const StopSignal& stop)
    : run_(run),
      place_(place),
      config_(run.config),
      memory_(RankMemory::make(
          device_options(config_.run, Mesh(communicator).process().count(), Mesh(communicator).process().index()),
          run.memory.storage, communicator)),
      rank_{*memory_->device, communicator},
      engine_(config_, rank_, memory_->storage, run.seq_lens),
      pace_(config_.parallel, engine_),
      batches_(std::move(batches)),
      state_{.progress = {}, .cursor = batches_->cursor()},
      stop_(rank_.mesh().process().index() == 0 ? &stop : nullptr),
      reporter_(config_, rank_),
      saver_(run, engine_) {}

// Processes look for themselves where to go on and what to read.
void RankTrainer::require_same_start() {
  const TrainingStart& start = *run_.start;
  const std::string mine =
      fmt::format("step {} of {}, with the data {:.12}", start.progress().steps,
                  start.resumes() ? start.run_id() : "a new run", data_fingerprint(run_.data, run_.stream));
  const std::vector<std::string> all = rank_.mesh().all().all_gather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw runtime_error(fmt::format("rank 0 goes on from {}, rank {} from {}", all[0], rank, all[rank]),
                        "give all processes the same data, and a run.dir on a file system that their hosts share");
  }
}

void RankTrainer::start() {
  require_same_start();
  if (rank_.is_first()) {
    say("device: {}{}\n", rank_.device.description(),
        rank_.count() > 1 ? fmt::format(", on each of {} ranks", rank_.count()) : "");
    if (const std::string products = product_identity(rank_.device); !products.empty()) {
      say("dense products: {}\n", products);
    }
  }
  const TrainingStart& start = *run_.start;
  if (start.resumes()) {
    batches_->seek(*start.cursor());
    state_ = {.progress = start.progress(), .tokens = start.tokens(), .cursor = *start.cursor()};
    state_.flops = start.flops()
                       ? *start.flops()
                       : static_cast<double>(state_.tokens) * run_.memory.cost.flops_per_token(config_.data.seq_len);
  }
  tokens_before_ = state_.tokens;
  start.apply(engine_);
  if (rank_.is_first()) {
    recorder_ = std::make_unique<Recorder>(config_, rank_, start.run_id(), state_.progress.steps, run_.options.commit,
                                           run_.alert_command, run_.memory);
    place_.set(runs_path(config_), recorder_->run_id());
    if (state_.progress.steps > 0) recorder_->message(fmt::format("resumed from {}", start.checkpoint().string()));
    const std::string products = warn_of_other_products(start.product_identity(), product_identity(rank_.device));
    if (!products.empty()) recorder_->message(products);
    const std::string arithmetic =
        start.resumes() ? warn_of_changed_arithmetic(arithmetic_changes(), start.arithmetic_changes(), config_) : "";
    if (!arithmetic.empty()) recorder_->message(arithmetic);
  }
  const std::string run_id = rank_.mesh().all().all_gather(recorder_ ? recorder_->run_id() : "")[0];
  reporter_.begin(state_, run_id, recorder_.get());
  saver_.begin(state_, start.resumes(), recorder_.get());
}

// Of what the ranks have to say, the first that is not "".
std::string RankTrainer::first_told(const std::string& mine) {
  for (std::string& told : rank_.mesh().all().all_gather(mine)) {
    if (!told.empty()) return std::move(told);
  }
  return "";
}

bool RankTrainer::stop_requested() const { return stop_ != nullptr && stop_->requested(); }

void RankTrainer::settle(int64_t steps) {
  pace_.settle(steps);
  if (recorder_) recorder_->expect_pause();
}

// Behind every so many steps, in front of the next: a run that goes on from there does it first.
void RankTrainer::rebalance() {
  const int64_t steps = ahead().steps;
  if (!engine_.rebalance_is_due(steps)) return;
  finish_steps();
  settle();
  const Rebalancing done = engine_.rebalance();
  if (recorder_) recorder_->record_rebalancing(steps + 1, done);
}

// A step without a target has no loss and no gradient; what else moves weights and moments (decay, momentum, the losses
// of routers) is not let do so either.
void RankTrainer::pass_over(const Enqueued& step) {
  finish_steps();
  state_ = step.end;
  ++summary_.steps_now;
  if (passed_over_++ > 0 || !recorder_) return;
  recorder_->message(fmt::format(
      "warning: step {}: none of its {} sequences has a token to learn: no loss, and no weight changes. Raise "
      "data.seq_len if prompts are longer; `n data info` counts windows that carry loss",
      state_.progress.steps, batches_->shape().batch_seqs));
}

// False, and nothing enqueued, when a rank was asked to stop or cannot read its data.
bool RankTrainer::enqueue_step() {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Pace::Pause pause(pace_);
    batches_->next();
  } catch (const std::exception&) {
    data_failure_ = std::current_exception();
  }
  reporter_.waited_for_batch(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  struct Share {
    int64_t tokens = 0;
    int64_t targets = 0;
    int64_t special = 0;
    int64_t bytes = 0;
    double flops = 0.0;
    int64_t stops = 0;
    int64_t written = 0;                                  // its part of a checkpoint
    int64_t saves = 0;                                    // rank 0's word that it is time for the next
    std::array<int64_t, MtpConfig::kMostDepths> ahead{};  // targets of further depths
  };
  Share mine{.tokens = data_failure_ ? 0 : batches_->num_tokens(),
             .targets = batches_->num_targets(),
             .flops = data_failure_ ? 0.0 : batches_->flops(run_.memory.cost),
             .stops = stop_requested() || data_failure_ ? 1 : 0,
             .written = saver_.has_written() ? 1 : 0,
             .saves = saver_.is_due() ? 1 : 0};
  for (const int32_t target : batches_->targets()) {
    if (target == kNoTarget) continue;
    const int32_t bytes = run_.token_bytes[static_cast<size_t>(target)];
    mine.bytes += bytes;
    mine.special += bytes == 0 ? 1 : 0;
  }
  const auto depth = static_cast<size_t>(config_.model.mtp.depth);
  if (!data_failure_) std::ranges::copy(batches_->num_targets_ahead(config_.model.mtp.depth), mine.ahead.begin());
  Share all;
  for (const Share& share : rank_.mesh().data().all_gather_values(mine)) {
    all.tokens += share.tokens;
    all.targets += share.targets;
    all.special += share.special;
    all.bytes += share.bytes;
    all.flops += share.flops;
    all.stops += share.stops;
    all.written += share.written;
    all.saves += share.saves;
    for (size_t k = 0; k < depth; ++k) all.ahead[k] += share.ahead[k];
  }
  if (all.written == rank_.count()) {
    const Pace::Pause pause(pace_);  // rank 0 may have a large folder to remove
    saver_.publish();
  }
  if (all.stops > 0) return false;

  Enqueued step;
  const RunState& before = enqueued_.empty() ? state_ : enqueued_.back().end;
  step.end = {.progress = {.steps = ahead().steps + 1, .tokens = ahead().tokens + step_tokens(config_)},
              .tokens = before.tokens + all.tokens,
              .cursor = batches_->cursor(),
              .flops = before.flops + (all.targets > 0 ? all.flops : 0.0)};
  step.targets = all.targets;
  step.special = all.special;
  step.bytes = all.bytes;
  step.save = all.saves > 0;
  if (step.targets == 0) {
    pass_over(step);
    return true;
  }
  const int64_t number = step.end.progress.steps;
  step.log = number == 1 || number == config_.train.steps || number % config_.train.log_every == 0;
  if (step.log) {
    for (const int32_t target : batches_->targets()) {
      step.is_text.push_back(target != kNoTarget && run_.token_bytes[static_cast<size_t>(target)] > 0 ? 1 : 0);
    }
  }
  if (seq_lens_.insert(batches_->shape().seq_len).second) {
    finish_steps();
    settle(Pace::kFirstSteps);
  }
  pace_.step_begins();
  if (run_.options.before_step) run_.options.before_step(engine_, number);
  handing_over_ = true;
  engine_.use_seq_len(batches_->shape().seq_len);
  for (int64_t i = 0; i < batches_->num_microbatches(); ++i) {
    engine_.load(i, batches_->microbatch(i));
  }
  engine_.step(step.end.progress, {step.targets, {all.ahead.begin(), all.ahead.begin() + depth}},
               /*in_detail=*/step.log, step.log && reporter_.phases_due(number));
  handing_over_ = false;
  enqueued_.push_back(std::move(step));
  return true;
}

// The oldest that is on its way; waits for it.
void RankTrainer::finish_step() {
  StepResult result = engine_.take_result();
  pace_.step_ended();
  if (!result.finite) fail_non_finite(result);
  const Enqueued step = std::move(enqueued_.front());
  enqueued_.pop_front();
  state_ = step.end;
  ++summary_.steps_now;
  std::optional<Pace::Pause> pause;
  if (recorder_ || step.log) pause.emplace(pace_);
  const std::string stop = reporter_.report(step, std::move(result));
  if (collapse_.empty()) collapse_ = stop;
}

void RankTrainer::finish_steps() {
  while (!enqueued_.empty()) finish_step();
}

// Several ranks go by the number of steps alone: when a result arrives differs from one to another.
bool RankTrainer::must_finish_step() const {
  if (engine_.decision_is_pending() || (rank_.count() > 1 && pace_.is_settling())) return engine_.num_pending() > 0;
  return engine_.num_pending() == Engine::kMaxPending || (rank_.count() == 1 && engine_.has_result());
}

void RankTrainer::fail_non_finite(const StepResult& result) {
  settle();
  if (recorder_) recorder_->record_failure(state_.progress.steps + 1, result);
  // What comes first on any rank: from there it spreads to those whose tokens its experts get.
  const NonFinite mine = engine_.find_non_finite();
  const auto places = rank_.mesh().all().all_gather_values(mine.place);
  const std::vector<std::string> names = rank_.mesh().all().all_gather(mine.name);
  const auto first = static_cast<size_t>(std::ranges::min_element(places) - places.begin());
  const std::string culprit =
      names.size() > 1 && !names[first].empty() ? fmt::format("{} on rank {}", names[first], first) : names[first];
  enqueued_.clear();  // they have changed nothing
  throw RunFailure(
      RunStatus::kFailedNan,
      fmt::format("step {}: {}, gradient norm {}; first bad tensor: {}", state_.progress.steps + 1, losses_text(result),
                  result.grad_norm, culprit.empty() ? "none within a microbatch (their sum overflowed)" : culprit),
      fmt::format("the weights after step {} are kept; start another run.name with lower learning rates in [optim], a "
                  "longer optim.schedule.warmup or optim.clip_norm",
                  state_.progress.steps));
}

void RankTrainer::run_validation() {
  if (validated_step_ == state_.progress.steps) return;
  validated_step_ = state_.progress.steps;
  if (!run_.samples->empty()) {
    std::vector<SampleText> samples = run_.samples->write(engine_, state_.progress.steps);
    if (recorder_) recorder_->record_samples(state_.progress.steps, std::move(samples));
  }
  if (run_.valid_splits.empty()) return;
  ValidationResult all;
  double all_seconds = 0.0;
  for (const auto& [source, split] : run_.valid_splits) {
    const auto begin = std::chrono::steady_clock::now();
    const ValidationResult result =
        validate(engine_, split, run_.token_bytes, config_.train.valid_seqs, config_.train.microbatch_seqs);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (recorder_ && run_.valid_splits.size() > 1) {
      recorder_->record_validation(state_.progress.steps, source, result, seconds);
    }
    all += result;
    all_seconds += seconds;
  }
  if (recorder_) recorder_->record_validation(state_.progress.steps, "", all, all_seconds);
  if (all.tokens == 0) return;
  summary_.valid = all;
  summary_.target_reached = all.loss() <= config_.train.target_loss;
}

void RankTrainer::run_evaluation() {
  if (run_.evaluation == nullptr) return;
  const EvalReport report = run_.evaluation->run(engine_, config_);
  if (recorder_) recorder_->record_evaluation(state_.progress.steps, report);
}

// Steps are enqueued ahead of their results. Validation and checkpoints are of the steps before them: those are
// finished first.
void RankTrainer::loop() {
  const auto due = [&](int64_t every) {
    return every > 0 && ahead().steps % every == 0 && ahead().steps < config_.train.steps;
  };
  // A run that had reached its target has nothing left to do.
  if (config_.train.target_loss > 0.0 && state_.progress.steps > 0 && due(config_.train.valid_every)) run_validation();
  reporter_.clock().start();
  while (ahead().steps < config_.train.steps && collapse_.empty() && !summary_.target_reached) {
    rebalance();
    if (!collapse_.empty() || !enqueue_step()) break;
    const bool valid_due = due(config_.train.valid_every);
    const bool save_due = due(config_.checkpoint.every) || (!enqueued_.empty() && enqueued_.back().save);
    const bool eval_due = due(config_.eval.every);
    if (!valid_due && !eval_due && !save_due) {
      while (must_finish_step()) finish_step();
      continue;
    }
    finish_steps();
    if (!collapse_.empty()) break;
    reporter_.clock().stop();
    settle();
    if (valid_due) run_validation();
    if (summary_.target_reached) continue;
    if (eval_due) run_evaluation();
    if (save_due) saver_.save(state_);
    reporter_.clock().start();
  }
  finish_steps();
  reporter_.clock().stop();
  settle();
  if (passed_over_ > 0 && recorder_) {
    recorder_->message(fmt::format("warning: {} of {} steps had no token to learn", passed_over_, summary_.steps_now));
  }
  if (collapse_.empty()) return;
  throw RunFailure(RunStatus::kFailedCollapse, collapse_,
                   "raise model.moe.bias_rate or model.moe.balance_loss, or lower optim.router.lr; "
                   "train.stop_on_collapse = false trains on regardless");
}

// The state behind the last step that is known to be good, if no step was half done. All ranks call it, or a rank that
// is alone.
void RankTrainer::save_after_failure() {
  try {
    if (saver_.can_save() && !handing_over_) {
      for (; !enqueued_.empty() && engine_.take_result().finite; enqueued_.pop_front()) state_ = enqueued_.front().end;
      saver_.save(state_);
    }
    if (const auto error = saver_.finish()) throw Error(*error);
  } catch (const std::exception& exception) {
    const std::string message = fmt::format("the state is not saved: {}", as_error(exception).what());
    recorder_ ? recorder_->message(message) : say("rank {}: {}\n", rank_.index(), message);
  }
}

// What is left to do after the last step.
void RankTrainer::complete() {
  const std::string failure = first_told(data_failure_ ? message_of(data_failure_) : "");
  const std::string signal = first_told(stop_ ? stop_->name() : "");
  summary_.interrupted = !signal.empty();
  saver_.save_at_end(state_);  // first: text for validation that cannot be read must not cost what was learned
  if (!summary_.interrupted && failure.empty()) {
    run_validation();
    run_evaluation();
  }
  if (recorder_) {
    if (!failure.empty()) {
      recorder_->finish(RunStatus::kFailed, failure);
    } else if (summary_.interrupted) {
      recorder_->finish(RunStatus::kInterrupted, fmt::format("stopped by {}", signal));
    } else {
      recorder_->finish(RunStatus::kCompleted, "");
    }
  }
  if (data_failure_) throw DataFailure();
}

TrainSummary RankTrainer::run() {
  start();
  try {
    loop();
    complete();
  } catch (const DataFailure&) {
    std::rethrow_exception(data_failure_);
  } catch (const RunFailure& failure) {
    save_after_failure();
    if (recorder_) recorder_->finish(failure.status(), failure.what());
    throw;
  } catch (const std::exception& exception) {
    if (rank_.count() == 1) {
      save_after_failure();
    } else {
      // At once: what is left to do here, such as a checkpoint that is being written, may take long.
      rank_.mesh().all().fail(std::current_exception());
    }
    if (recorder_) recorder_->finish(RunStatus::kFailed, as_error(exception).what());
    throw;
  }
  if (const auto device = memory_->device->memory_use()) {
    summary_.device_bytes_planned = run_.memory.device_bytes;
    summary_.device_bytes_used = device->used_bytes;
  }
  summary_.device = memory_->device->description();
  summary_.steps = state_.progress.steps;
  summary_.seconds = reporter_.clock().seconds();
  if (summary_.steps_now > 0) {
    summary_.tokens_per_s = static_cast<double>(state_.tokens - tokens_before_) / summary_.seconds;
  }
  // Only rank 0's summary is used; it may be pruning what another would list.
  if (rank_.is_first()) summary_.checkpoint = latest_checkpoint(checkpoint_dir(config_)).value_or(fs::path());
  return summary_;
}

}  // namespace nmoe
