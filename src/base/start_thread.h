// Threads that may not be had: of processes and memory there are limits (ulimit -u, a container's pids.max).
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace nmoe {

// std::thread(function), for `purpose` ("worker 7 of 64"). Error (runtime) where the system gives none. NOTE: threads
// that were started before must be ended and joined by whoever catches it; their destructors would end the program.
template <class Function>
std::thread start_thread(std::string_view purpose, Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw runtime_error(
        fmt::format("cannot start a thread ({}): {}", purpose, error.code().message()),
        "ask for fewer threads (run.threads, --threads), or raise the limit: of processes (ulimit -u, a "
        "container's pids), or of memory for their stacks (ulimit -v)");
  }
}

}  // namespace nmoe
