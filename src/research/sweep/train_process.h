// A process `n train` that is waited for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"

namespace nmoe {

class TrainProcess {
 public:
  // Starts `command` (a program's path and its arguments) with what is set in `variables` in addition to the
  // environment; what it says is added to the file `log`. It hears no signals of this process's terminal, and gets
  // SIGTERM, at which training saves and ends, when this process ends, however that happens. To be called by a thread
  // that lives as long as the process. Error (runtime): it cannot be started.
  TrainProcess(const std::vector<std::string>& command,
               const std::vector<std::pair<std::string, std::string>>& variables, const fs::path& log);
  TrainProcess(TrainProcess&&) = default;
  TrainProcess& operator=(TrainProcess&&) = default;

  void terminate() const;  // SIGTERM
  // Once it has ended: its exit code, or 128 + the signal that ended it. Not to be called after that.
  std::optional<int> poll();
  double seconds() const;  // since it began

 private:
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace nmoe
