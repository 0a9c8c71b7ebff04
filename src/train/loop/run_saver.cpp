#include "train/loop/run_saver.h"

#include <utility>

#include "config/load.h"
#include "ops/products/products.h"
#include "track/tags/training.h"
#include "train/plan/run_folder.h"
#include "train/step/arithmetic_changes.h"

namespace nmoe {

RunSaver::RunSaver(const TrainingRun& run, Engine& engine)
    : run_(run),
      config_(run.config),
      engine_(engine),
      saver_(checkpoint_dir(config_), config_.checkpoint.keep_last, engine.rank()) {}

void RunSaver::begin(const RunState& state, bool is_saved, Recorder* recorder) {
  recorder_ = recorder;
  if (is_saved) saved_step_ = state.progress.steps;
  if (recorder_ != nullptr) carried_ = run_.start->carried();
}

bool RunSaver::is_due() const {
  const double minutes = config_.checkpoint.every_minutes;
  return engine_.rank().is_first() && minutes > 0.0 && saver_.is_idle() &&
         std::chrono::steady_clock::now() - save_time_ >= std::chrono::duration<double, std::ratio<60>>(minutes);
}

void RunSaver::save(const RunState& state) {
  if (saved_step_ == state.progress.steps) return;
  const auto stop_begin = std::chrono::steady_clock::now();
  note(saver_.finish());  // then staging is free, and the last checkpoint is there to carry files from
  write_begin_ = std::chrono::steady_clock::now();
  CheckpointHead head;
  head.info.step = state.progress.steps;
  head.info.tokens = state.tokens;
  head.info.flops = state.flops;
  head.info.cursor = state.cursor;
  head.info.experts = engine_.experts();
  head.info.precision = engine_.precision();
  head.info.num_parameters = run_.memory.cost.parameters;
  if (recorder_ != nullptr) head.info.run_id = recorder_->run_id();
  head.info.config_fingerprint = config_fingerprint(config_);
  head.info.data_fingerprint = data_fingerprint(run_.data, run_.stream);
  head.info.arithmetic_changes = std::ssize(arithmetic_changes());
  head.info.product_identity = product_identity(engine_.rank().device);
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
  engine_.wait();  // or the copies would count as time of the next step
  saved_step_ = state.progress.steps;
  record_time(tags::kCheckpointStopS, stop_begin);
  save_time_ = std::chrono::steady_clock::now();
}

// The end of a checkpoint's writing. Where it could not be written training goes on: the disk may have room by the next
// one.
void RunSaver::note(const std::optional<Error>& error) {
  const auto write_begin = std::exchange(write_begin_, std::nullopt);
  if (!error) {
    if (recorder_ != nullptr && saved_step_ > 0) recorder_->record_checkpoint(saved_step_);
    if (write_begin) record_time(tags::kCheckpointWriteS, *write_begin);
    return;
  }
  if (recorder_ != nullptr) {
    recorder_->message(fmt::format("warning: the checkpoint of step {} is not written: {}\n  {}", saved_step_,
                                   error->what(), error->remedy()));
  }
  saved_step_ = -1;
}

void RunSaver::record_time(const Metric& which, std::chrono::steady_clock::time_point begin) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  if (recorder_ != nullptr) recorder_->record_checkpoint_time(saved_step_, which, passed.count());
}

void RunSaver::save_at_end(const RunState& state) {
  save(state);
  std::optional<Error> error = saver_.finish();
  if (error) {
    note(error);
    save(state);
    error = saver_.finish();
  }
  if (!error) return note(error);
  can_save_ = false;
  const auto last = latest_checkpoint(checkpoint_dir(config_));
  throw runtime_error(
      fmt::format("the weights after step {} are not saved: {}; {}", state.progress.steps, error->what(),
                  last ? fmt::format("the last whole checkpoint is {}", last->string()) : "the run has no checkpoint"),
      error->remedy() + ", then go on from there with --resume");
}

}  // namespace nmoe
