#include "train/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numbers>
#include <set>

#include "base/failure.h"
#include "base/files.h"
#include "base/process.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "config/load.h"
#include "ops/products/products.h"
#include "parallel/process_group.h"
#include "train/loop/batch_source.h"
#include "train/loop/checkpoint_saver.h"
#include "train/loop/pace.h"
#include "train/loop/training_data.h"
#include "train/loop/training_run.h"
#include "train/report/rank_recorder.h"
#include "train/report/recorder.h"
#include "train/report/router_report.h"
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
  return text;
}

// One rank of a run. Rank 0 also prints, records and saves; the first of each process hears signals.
//
// All ranks enqueue, finish, validate and stop in the same steps. What each sees for itself, a signal or its targets,
// they tell each other before a step; what the step sums over ranks, its loss and what routers did, all see alike.
class Trainer {
 public:
  // Of each process, the first rank hears `stop`, on its main thread.
  Trainer(const TrainingRun& run, std::unique_ptr<BatchSource> batches, Communicator& communicator, RunPlace& place,
          const StopSignal& stop)
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
        cursor_(batches_->cursor()),
        balance_(config_),
        stop_(rank_.mesh().process().index() == 0 ? &stop : nullptr),
        saver_(checkpoint_dir(config_), config_.checkpoint.keep_last, rank_) {}

  TrainSummary run();

 private:
  // A step that is on its way, and what its report needs.
  struct Enqueued {
    Progress progress;             // where it ends
    StreamCursor cursor;           // same
    int64_t targets = 0;           // with a loss, of all ranks
    int64_t special = 0;           // of these, those that stand for no text
    int64_t bytes = 0;             // of the others' text
    double flops = 0.0;            // of the whole run, where it ends
    std::vector<uint8_t> is_text;  // of this rank's targets, if it is logged: 1 for those that stand for text, else 0
    bool log = false;
    bool save = false;  // behind it, since it is time
  };
  const Progress& ahead() const { return enqueued_.empty() ? progress_ : enqueued_.back().progress; }
  void start();
  void loop();
  bool stop_requested() const { return stop_ && stop_->requested(); }
  bool save_is_due() const;
  std::string first_told(const std::string& mine);
  void require_same_start();
  void settle(int64_t steps = 1);  // what follows may take its time
  void rebalance();
  bool enqueue_step();
  void advance_to(const Enqueued& step);
  void pass_over(const Enqueued& step);
  void finish_step();
  void finish_steps();
  bool must_finish_step() const;
  std::optional<double> bits_per_byte(const Enqueued& step, std::span<const float> token_losses) const;
  void report(const Enqueued& step, StepResult result);
  void fail_non_finite(const StepResult& result);
  bool phases_due(int64_t step);
  void run_validation();
  void run_evaluation();
  void save();
  void save_at_end();
  void note_saved(const std::optional<Error>& error);
  void save_after_failure();
  void complete();
  const TrainingRun& run_;
  RunPlace& place_;
  const Config& config_;
  std::shared_ptr<RankMemory> memory_;
  Rank rank_;
  Engine engine_;
  Pace pace_;
  std::set<int64_t> seq_lens_;  // that steps have had
  std::unique_ptr<BatchSource> batches_;
  std::deque<Enqueued> enqueued_;
  Progress progress_;                    // of steps whose results are known
  StreamCursor cursor_;                  // behind them
  double flops_ = 0.0;                   // same
  std::optional<double> bits_per_byte_;  // of the last logged step
  int64_t passed_over_ = 0;              // steps without a token to learn, by this call
  int64_t validated_step_ = -1;          // last
  int64_t saved_step_ = -1;              // of the last checkpoint that was begun and has not failed
  std::chrono::steady_clock::time_point save_time_ = std::chrono::steady_clock::now();  // when it was begun
  // A step is being handed to the engine: what fails meanwhile may have changed some weights and not others.
  bool handing_over_ = false;
  bool can_save_ = true;             // that is, the last attempt did not fail
  std::exception_ptr data_failure_;  // of this rank; all stop, save, and then it is thrown
  std::string collapse_;             // of a router that was found collapsed
  BalanceWatch balance_;
  StepClock clock_;
  double reported_seconds_ = 0.0;
  int64_t reported_steps_ = 0;
  double reported_flops_ = 0.0;
  double loader_wait_s_ = 0.0;                           // since the last report
  std::chrono::steady_clock::time_point phases_time_{};  // when a step was timed last
  TrainSummary summary_;

  const StopSignal* stop_;  // null but in the first rank of a process

  // Of rank 0 alone.
  std::unique_ptr<Recorder> recorder_;
  std::vector<CarriedFile> carried_;  // of the imported model that training began with

  std::optional<RankRecorder> own_recorder_;
  CheckpointSaver saver_;  // last: while it writes, it uses the engine
};

// Processes look for themselves where to go on and what to read.
void Trainer::require_same_start() {
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

void Trainer::start() {
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
    cursor_ = *start.cursor();
    progress_ = start.progress();
    flops_ = start.flops()
                 ? *start.flops()
                 : static_cast<double>(progress_.tokens) * run_.memory.cost.flops_per_token(config_.data.seq_len);
    saved_step_ = progress_.steps;
  }
  start.apply(engine_);
  reported_steps_ = progress_.steps;
  reported_flops_ = flops_;
  if (rank_.is_first()) {
    carried_ = start.carried();
    recorder_ = std::make_unique<Recorder>(config_, rank_, start.run_id(), progress_.steps, run_.options.commit,
                                           run_.alert_command, run_.memory);
    place_.set(fs::path(config_.run.dir) / "experiments.db", recorder_->run_id());
    if (progress_.steps > 0) recorder_->message(fmt::format("resumed from {}", start.checkpoint().string()));
    const std::string products = warn_of_other_products(start.product_identity(), product_identity(rank_.device));
    if (!products.empty()) recorder_->message(products);
    const std::string arithmetic =
        start.resumes() ? warn_of_changed_arithmetic(arithmetic_changes(), start.arithmetic_changes(), config_) : "";
    if (!arithmetic.empty()) recorder_->message(arithmetic);
  }
  const std::string run_id = rank_.mesh().all().all_gather(recorder_ ? recorder_->run_id() : "")[0];
  own_recorder_.emplace(config_, rank_, run_id, progress_.steps, recorder_.get());
}

// Of what the ranks have to say, the first that is not "".
std::string Trainer::first_told(const std::string& mine) {
  for (std::string& told : rank_.mesh().all().all_gather(mine)) {
    if (!told.empty()) return std::move(told);
  }
  return "";
}

void Trainer::settle(int64_t steps) {
  pace_.settle(steps);
  if (recorder_) recorder_->expect_pause();
}

// Behind every so many steps, in front of the next: a run that goes on from there does it first.
void Trainer::rebalance() {
  const int64_t steps = ahead().steps;
  if (!engine_.rebalance_is_due(steps)) return;
  finish_steps();
  settle();
  const Rebalancing done = engine_.rebalance();
  if (recorder_) recorder_->record_rebalancing(steps + 1, done);
}

// By rank 0's clock. A checkpoint that is still being written is not waited for.
bool Trainer::save_is_due() const {
  const double minutes = config_.checkpoint.every_minutes;
  return rank_.is_first() && minutes > 0.0 && saver_.is_idle() &&
         std::chrono::steady_clock::now() - save_time_ >= std::chrono::duration<double, std::ratio<60>>(minutes);
}

// A step without a target has no loss and no gradient; what else moves weights and moments (decay, momentum, the losses
// of routers) is not let do so either.
void Trainer::pass_over(const Enqueued& step) {
  finish_steps();
  advance_to(step);
  ++summary_.steps_now;
  if (passed_over_++ > 0 || !recorder_) return;
  recorder_->message(fmt::format(
      "warning: step {}: none of its {} sequences has a token to learn: no loss, and no weight changes. Raise "
      "data.seq_len if prompts are longer; `n data info` counts windows that carry loss",
      progress_.steps, batches_->shape().batch_seqs));
}

// False, and nothing enqueued, when a rank was asked to stop or cannot read its data.
bool Trainer::enqueue_step() {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Pace::Pause pause(pace_);
    batches_->next();
  } catch (const std::exception&) {
    data_failure_ = std::current_exception();
  }
  loader_wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  struct Share {
    int64_t targets = 0;
    int64_t special = 0;
    int64_t bytes = 0;
    double flops = 0.0;
    int64_t stops = 0;
    int64_t written = 0;  // its part of a checkpoint
    int64_t saves = 0;    // rank 0's word that it is time for the next
  };
  Share mine{.targets = batches_->num_targets(),
             .flops = data_failure_ ? 0.0 : batches_->flops(run_.memory.cost),
             .stops = stop_requested() || data_failure_ ? 1 : 0,
             .written = saver_.has_written() ? 1 : 0,
             .saves = save_is_due() ? 1 : 0};
  for (const int32_t target : batches_->targets()) {
    if (target == kNoTarget) continue;
    const int32_t bytes = run_.token_bytes[static_cast<size_t>(target)];
    mine.bytes += bytes;
    mine.special += bytes == 0 ? 1 : 0;
  }
  Share all;
  for (const Share& share : rank_.mesh().data().all_gather_values(mine)) {
    all.targets += share.targets;
    all.special += share.special;
    all.bytes += share.bytes;
    all.flops += share.flops;
    all.stops += share.stops;
    all.written += share.written;
    all.saves += share.saves;
  }
  if (all.written == rank_.count()) {
    const Pace::Pause pause(pace_);  // rank 0 may have a large folder to remove
    note_saved(saver_.publish());
  }
  if (all.stops > 0) return false;

  Enqueued step;
  step.progress = {.steps = ahead().steps + 1, .tokens = ahead().tokens + step_tokens(config_)};
  step.cursor = batches_->cursor();
  step.targets = all.targets;
  step.special = all.special;
  step.bytes = all.bytes;
  step.flops = (enqueued_.empty() ? flops_ : enqueued_.back().flops) + (all.targets > 0 ? all.flops : 0.0);
  step.save = all.saves > 0;
  if (step.targets == 0) {
    pass_over(step);
    return true;
  }
  const int64_t number = step.progress.steps;
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
  engine_.step(step.progress, step.targets, /*in_detail=*/step.log, step.log && phases_due(number));
  handing_over_ = false;
  enqueued_.push_back(std::move(step));
  return true;
}

// Its result is known.
void Trainer::advance_to(const Enqueued& step) {
  progress_ = step.progress;
  cursor_ = step.cursor;
  flops_ = step.flops;
}

// The oldest that is on its way; waits for it.
void Trainer::finish_step() {
  StepResult result = engine_.take_result();
  pace_.step_ended();
  if (!result.finite) fail_non_finite(result);
  const Enqueued step = std::move(enqueued_.front());
  enqueued_.pop_front();
  advance_to(step);
  ++summary_.steps_now;
  report(step, std::move(result));
}

void Trainer::finish_steps() {
  while (!enqueued_.empty()) finish_step();
}

// Several ranks go by the number of steps alone: when a result arrives differs from one to another.
bool Trainer::must_finish_step() const {
  if (engine_.decision_is_pending() || (rank_.count() > 1 && pace_.is_settling())) return engine_.num_pending() > 0;
  return engine_.num_pending() == Engine::kMaxPending || (rank_.count() == 1 && engine_.has_result());
}

void Trainer::fail_non_finite(const StepResult& result) {
  settle();
  if (recorder_) recorder_->record_failure(progress_.steps + 1, result);
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
      fmt::format("step {}: {}, gradient norm {}; first bad tensor: {}", progress_.steps + 1, losses_text(result),
                  result.grad_norm, culprit.empty() ? "none within a microbatch (their sum overflowed)" : culprit),
      fmt::format("the weights after step {} are kept; start another run.name with lower learning rates in [optim], a "
                  "longer optim.schedule.warmup or optim.clip_norm",
                  progress_.steps));
}

// Of the targets that stand for text, on all ranks: nothing if there are none. As validation has it (ValidationResult).
std::optional<double> Trainer::bits_per_byte(const Enqueued& step, std::span<const float> token_losses) const {
  NMOE_CHECK(token_losses.size() == step.is_text.size(), "{} losses of {} targets", token_losses.size(),
             step.is_text.size());
  double mine = 0.0, nats = 0.0;
  for (size_t i = 0; i < token_losses.size(); ++i) {
    if (step.is_text[i] != 0) mine += static_cast<double>(token_losses[i]);
  }
  for (const double of_rank : rank_.mesh().data().all_gather_values(mine)) nats += of_rank;
  if (step.bytes == 0) return std::nullopt;
  return nats / (std::numbers::ln2 * static_cast<double>(step.bytes));
}

void Trainer::report(const Enqueued& step, StepResult result) {
  std::optional<Pace::Pause> pause;
  if (recorder_ || step.log) pause.emplace(pace_);
  if (step.log) bits_per_byte_ = bits_per_byte(step, result.token_losses);
  const StepReport report{
      .progress = step.progress,
      .result = std::move(result),
      .bits_per_byte = bits_per_byte_,
      .special_share = static_cast<double>(step.special) / static_cast<double>(std::max<int64_t>(step.targets, 1)),
      .seconds = clock_.seconds() - reported_seconds_,
      .steps = step.progress.steps - reported_steps_,
      .flops = step.flops - reported_flops_,
      .total_flops = step.flops,
      .loader_wait_s = loader_wait_s_};
  if (recorder_) recorder_->show(report, step.log);
  if (!step.log) return;
  if (recorder_) {
    recorder_->record(report);
    const std::string imbalance = balance_.observe(step.progress.steps, report.result.routers);
    if (!imbalance.empty()) recorder_->message(imbalance);
  }
  own_recorder_->record(report);
  loader_wait_s_ = 0.0;
  reported_seconds_ = clock_.seconds();
  reported_steps_ = step.progress.steps;
  reported_flops_ = step.flops;
  if (!collapse_.empty() || !config_.train.stop_on_collapse) return;
  collapse_ = find_collapse(report.result.routers, config_.model.moe);
  if (!collapse_.empty()) collapse_ = fmt::format("step {}: {}", step.progress.steps, collapse_);
}

// Once a second at most, by each rank for itself: marks in a step cost it some microseconds each.
bool Trainer::phases_due(int64_t step) {
  const auto now = std::chrono::steady_clock::now();
  if (step == 1 || now - phases_time_ < std::chrono::seconds(1)) return false;
  phases_time_ = now;
  return true;
}

void Trainer::run_validation() {
  if (validated_step_ == progress_.steps) return;
  validated_step_ = progress_.steps;
  if (!run_.samples->empty()) {
    std::vector<SampleText> samples = run_.samples->write(engine_, progress_.steps);
    if (recorder_) recorder_->record_samples(progress_.steps, std::move(samples));
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
      recorder_->record_validation(progress_.steps, source, result, seconds);
    }
    all += result;
    all_seconds += seconds;
  }
  if (recorder_) recorder_->record_validation(progress_.steps, "", all, all_seconds);
  if (all.tokens == 0) return;
  summary_.valid = all;
  summary_.target_reached = all.loss() <= config_.train.target_loss;
}

void Trainer::run_evaluation() {
  if (run_.evaluation == nullptr) return;
  const EvalReport report = run_.evaluation->run(engine_, config_);
  if (recorder_) recorder_->record_evaluation(progress_.steps, report);
}

void Trainer::save() {
  if (saved_step_ == progress_.steps) return;
  note_saved(saver_.finish());  // then staging is free, and the last checkpoint is there to carry files from
  CheckpointHead head;
  head.info.step = progress_.steps;
  head.info.tokens = progress_.tokens;
  head.info.flops = flops_;
  head.info.cursor = cursor_;
  head.info.experts = engine_.experts();
  head.info.precision = engine_.precision();
  head.info.num_parameters = run_.memory.cost.parameters;
  if (recorder_) head.info.run_id = recorder_->run_id();
  head.info.config_fingerprint = config_fingerprint(config_);
  head.info.data_fingerprint = data_fingerprint(run_.data, run_.stream);
  head.info.arithmetic_changes = std::ssize(arithmetic_changes());
  head.info.product_identity = product_identity(rank_.device);
  head.info.nmoe_version = run_.options.version;
  head.info.nmoe_commit = run_.options.commit;
  head.config_toml = print_config(config_);
  head.tokenizer_json = run_.tokenizer_json;
  if (const auto latest = latest_checkpoint(checkpoint_dir(config_))) {
    // Whichever they were read from may be pruned by now.
    for (CarriedFile& file : carried_) file.source = *latest / kCarriedFolder / file.name;
  }
  head.carried = carried_;
  saver_.begin(engine_, std::move(head));
  saved_step_ = progress_.steps;
  save_time_ = std::chrono::steady_clock::now();
}

// The end of a checkpoint's writing. Where it could not be written training goes on: the disk may have room by the next
// one.
void Trainer::note_saved(const std::optional<Error>& error) {
  if (!error) {
    if (recorder_ && saved_step_ > 0) recorder_->record_checkpoint(saved_step_);
    return;
  }
  if (recorder_) {
    recorder_->message(fmt::format("warning: the checkpoint of step {} is not written: {}\n  {}", saved_step_,
                                   error->what(), error->remedy()));
  }
  saved_step_ = -1;
}

// Tried twice where it fails: there is no other time.
void Trainer::save_at_end() {
  save();
  std::optional<Error> error = saver_.finish();
  if (error) {
    note_saved(error);
    save();
    error = saver_.finish();
  }
  if (!error) return note_saved(error);
  can_save_ = false;
  const auto last = latest_checkpoint(checkpoint_dir(config_));
  throw runtime_error(
      fmt::format("the weights after step {} are not saved: {}; {}", progress_.steps, error->what(),
                  last ? fmt::format("the last whole checkpoint is {}", last->string()) : "the run has no checkpoint"),
      error->remedy() + ", then go on from there with --resume");
}

// Steps are enqueued ahead of their results. Validation and checkpoints are of the steps before them: those are
// finished first.
void Trainer::loop() {
  const auto due = [&](int64_t every) {
    return every > 0 && ahead().steps % every == 0 && ahead().steps < config_.train.steps;
  };
  // A run that had reached its target has nothing left to do.
  if (config_.train.target_loss > 0.0 && progress_.steps > 0 && due(config_.train.valid_every)) run_validation();
  clock_.start();
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
    clock_.stop();
    settle();
    if (valid_due) run_validation();
    if (summary_.target_reached) continue;
    if (eval_due) run_evaluation();
    if (save_due) save();
    clock_.start();
  }
  finish_steps();
  clock_.stop();
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
void Trainer::save_after_failure() {
  try {
    if (can_save_ && !handing_over_) {
      for (; !enqueued_.empty() && engine_.take_result().finite; enqueued_.pop_front()) advance_to(enqueued_.front());
      save();
    }
    if (const auto error = saver_.finish()) throw Error(*error);
  } catch (const std::exception& exception) {
    const std::string message = fmt::format("the state is not saved: {}", as_error(exception).what());
    recorder_ ? recorder_->message(message) : say("rank {}: {}\n", rank_.index(), message);
  }
}

// What is left to do after the last step.
void Trainer::complete() {
  const std::string failure = first_told(data_failure_ ? message_of(data_failure_) : "");
  const std::string signal = first_told(stop_ ? stop_->name() : "");
  summary_.interrupted = !signal.empty();
  save_at_end();  // first: text for validation that cannot be read must not cost what was learned
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

TrainSummary Trainer::run() {
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
  summary_.steps = progress_.steps;
  summary_.seconds = clock_.seconds();
  if (summary_.steps_now > 0) {
    summary_.tokens_per_s = static_cast<double>(summary_.steps_now * step_tokens(config_)) / summary_.seconds;
  }
  // Only rank 0's summary is used; it may be pruning what another would list.
  if (rank_.is_first()) summary_.checkpoint = latest_checkpoint(checkpoint_dir(config_)).value_or(fs::path());
  return summary_;
}

// What all processes of a run must be given alike; where a host keeps its files is its own affair.
std::string identity_of(Config config, const TrainOptions& options) {
  config.run.dir.clear();
  config.run.threads = 0;
  config.data.path.clear();
  return fmt::format("program {} {}\nresume {}\n{}", options.version, options.commit, options.resume,
                     config_lines(config));
}

// Before anything asks for a device.
void prepare_process(const Config& config, const Launch& launch) {
  const int64_t here = ranks_of_process(launch, config.parallel.ranks);
  if (config.run.device == "cuda") {
    ::setenv("CUDA_VISIBLE_DEVICES", devices_of_process(launch, here).c_str(), /*replace=*/1);
  }
  if (launch.process > 0) return;
  say("process 0 of {}, with {} of {} ranks, is met at {}:{}\n", launch.num_processes, here, config.parallel.ranks,
      launch.address, launch.port);
}

}  // namespace

fs::path checkpoint_dir(const Config& config) { return fs::path(config.run.dir) / "checkpoints" / config.run.name; }

TrainSummary train(const Config& config, const TrainOptions& options) {
  // A signal before the first step ends the run in front of that, in all processes.
  std::optional<StopSignal> own_stop;
  const StopSignal& stop = options.stop != nullptr ? *options.stop : own_stop.emplace();
  const Launch launch = read_launch();
  if (!launch.is_alone()) prepare_process(config, launch);
  std::optional<TrainingRun> run;
  RunPlace place;
  TrainSummary summary{.reports = launch.process == 0};
  run_ranks(
      {.launch = launch,
       .ranks = config.parallel.ranks,
       .timeout = std::chrono::seconds(config.parallel.timeout_s),
       .identity = identity_of(config, options),
       .last_words = [&](const std::string& reason) { place.fail(reason); },
       .stop = &stop},
      [&] { run.emplace(config, options, launch); },
      [&](Communicator& communicator) {
        Trainer trainer(*run, run->batches(Mesh(communicator).data().index()), communicator, place, stop);
        const TrainSummary of_rank = trainer.run();
        if (communicator.index() == 0) summary = of_rank;
      });
  return summary;
}

}  // namespace nmoe
