// When and with what the states of a run are saved, by one rank together with the others (loop/checkpoint_saver.h).
//
// Threads: that of the rank, which owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "train/loop/checkpoint_saver.h"
#include "train/loop/training_run.h"
#include "train/report/recorder.h"
#include "train/step/engine.h"
#include "train/step/run_state.h"

namespace nmoe {

class RunSaver {
 public:
  // `run` and `engine` must outlive it.
  RunSaver(const TrainingRun& run, Engine& engine);

  // Saving begins behind `state`, which the last checkpoint has if `is_saved`. `recorder`: rank 0's, null on others.
  void begin(const RunState& state, bool is_saved, Recorder* recorder);

  // By rank 0's clock. A checkpoint that is still being written is not waited for.
  bool is_due() const;
  bool has_written() const { return saver_.has_written(); }
  bool can_save() const { return can_save_; }  // the last attempt at the end did not fail
  // Of a checkpoint that every rank has written.
  void publish() { note(saver_.publish()); }
  // Begins to save `state`, unless it is saved. Waits until it may change.
  void save(const RunState& state);
  // Saves it and waits. Error (runtime) where it fails twice: there is no other time.
  void save_at_end(const RunState& state);
  // Waits for what is being written; what kept it from that.
  std::optional<Error> finish() { return saver_.finish(); }

 private:
  void note(const std::optional<Error>& error);
  void record_time(const Metric& which, std::chrono::steady_clock::time_point begin);

  const TrainingRun& run_;
  const Config& config_;
  Engine& engine_;
  Recorder* recorder_ = nullptr;
  std::vector<CarriedFile> carried_;  // on rank 0: of the imported model that training began with
  int64_t saved_step_ = -1;           // of the last checkpoint that was begun and has not failed
  std::chrono::steady_clock::time_point save_time_ = std::chrono::steady_clock::now();  // when it was begun
  std::optional<std::chrono::steady_clock::time_point> write_begin_;  // of one whose writing has not been noted
  bool can_save_ = true;
  CheckpointSaver saver_;  // last: while it writes, it uses the engine
};

}  // namespace nmoe
