// Finds, stores and passes on a run's alerts: by rank 0, from its own records as they are made and, on a thread of the
// desk's own, from the live files of all other ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/detached.h"
#include "base/files.h"
#include "track/live_file.h"
#include "track/record.h"
#include "track/run_log.h"
#include "train/report/alert_watch.h"

namespace nmoe {

class AlertDesk {
 public:
  struct Options {
    std::string run_name;
    std::vector<fs::path> databases;   // of the ranks
    int64_t top_k = 0;                 // of the model's experts; 0 without
    std::vector<std::string> command;  // track.alert_command; empty: none
  };
  // Alerts are added to alerts_path() of rank 0's database and to train.log beside it. For each alert, the command is
  // run with one more argument, the run's name and the alert's text, and with the alert's line of that file in
  // NMOE_ALERT. Its end is not waited for (base/detached.h).
  explicit AlertDesk(Options options);
  ~AlertDesk();
  AlertDesk(const AlertDesk&) = delete;
  AlertDesk& operator=(const AlertDesk&) = delete;

  // Takes a record of rank 0; `is_step`: of a logged step. Returns messages to print.
  std::vector<std::string> take(const MetricRecord& record, bool is_step);
  // Something other than a step may take long until the next logged step.
  void expect_pause();

 private:
  struct Follower;
  void run();
  void look();
  void raise(const Alert& alert);

  const Options options_;
  std::vector<std::unique_ptr<Follower>> followers_;  // of the ranks but the first; of the thread
  std::mutex mutex_;                                  // guards what follows
  std::condition_variable wake_;
  AlertWatch watch_;
  SilenceWatch silence_;
  DetachedPrograms programs_;
  RunLog log_;
  bool can_write_ = true;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
