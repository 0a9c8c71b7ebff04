// Programs that are started and not waited for.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace nmoe {

// Not thread-safe.
class DetachedPrograms {
 public:
  static constexpr size_t kMost = 8;  // at once

  // Starts `command`, a program (looked up in PATH where it has no '/') and its arguments, without a shell, in a
  // session of its own: it outlives this process and hears none of its terminal's signals. It gets no open file of this
  // process, /dev/null as its standard input, output and error, and `variable` in addition to the environment, or
  // instead of what that has of its name. False where kMost are running or it cannot be started.
  bool start(const std::vector<std::string>& command, const std::pair<std::string, std::string>& variable);
  // Forgets those that have ended.
  void reap();

 private:
  std::vector<pid_t> running_;
};

}  // namespace nmoe
