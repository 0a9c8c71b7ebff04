// One rank of a run: its loop over steps, and what comes between them.
//
// Rank 0 also prints, records and saves; the first of each process hears signals. All ranks enqueue, finish, validate
// and stop in the same steps. What each sees for itself, a signal or its targets, they tell each other before a step;
// what the step sums over ranks, its losses and what routers did, all see alike.
//
// Threads: the one that drives the rank's device.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <set>
#include <string>

#include "train/loop/pace.h"
#include "train/loop/run_saver.h"
#include "train/loop/train_summary.h"
#include "train/loop/training_run.h"
#include "train/report/recorder.h"
#include "train/report/step_reporter.h"

namespace nmoe {

class RankTrainer {
 public:
  // Of each process, the first rank hears `stop`, on its main thread.
  RankTrainer(const TrainingRun& run, std::unique_ptr<BatchSource> batches, Communicator& communicator, RunPlace& place,
              const StopSignal& stop);

  TrainSummary run();

 private:
  // A step that is on its way.
  struct Enqueued : StepFacts {
    bool save = false;  // behind it, since it is time
  };
  const Progress& ahead() const { return enqueued_.empty() ? state_.progress : enqueued_.back().end.progress; }
  void start();
  void loop();
  bool stop_requested() const;
  std::string first_told(const std::string& mine);
  void require_same_start();
  void settle(int64_t steps = 1);  // what follows may take its time
  void rebalance();
  bool enqueue_step();
  void pass_over(const Enqueued& step);
  void finish_step();
  void finish_steps();
  bool must_finish_step() const;
  void fail_non_finite(const StepResult& result);
  void run_validation();
  void run_evaluation();
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
  RunState state_;               // behind the steps whose results are known
  int64_t tokens_before_ = 0;    // of the run's, by this call's first step
  int64_t passed_over_ = 0;      // steps without a token to learn, by this call
  int64_t validated_step_ = -1;  // last
  // A step is being handed to the engine: what fails meanwhile may have changed some weights and not others.
  bool handing_over_ = false;
  std::exception_ptr data_failure_;  // of this rank; all stop, save, and then it is thrown
  std::string collapse_;             // of a router that was found collapsed
  TrainSummary summary_;
  const StopSignal* stop_;              // null but in the first rank of a process
  std::unique_ptr<Recorder> recorder_;  // of rank 0 alone
  StepReporter reporter_;
  RunSaver saver_;  // last: while it writes, it uses the engine
};

}  // namespace nmoe
