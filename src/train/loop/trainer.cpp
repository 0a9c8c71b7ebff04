#include "train/loop/trainer.h"

#include <cstdlib>
#include <optional>

#include "base/say.h"
#include "base/signals.h"
#include "config/load.h"
#include "parallel/process_group.h"
#include "train/loop/rank_trainer.h"
#include "train/loop/training_run.h"

namespace nmoe {
namespace {

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
        RankTrainer trainer(*run, run->batches(Mesh(communicator).data().index()), communicator, place, stop);
        const TrainSummary of_rank = trainer.run();
        if (communicator.index() == 0) summary = of_rank;
      });
  return summary;
}

}  // namespace nmoe
