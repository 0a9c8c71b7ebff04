// Processes of a run that are threads of the test.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/process_group.h"
#include "support/free_port.h"

namespace nmoe::test {

inline Launch launch_of(int64_t process, int64_t num_processes, int port) {
  return {.process = process, .num_processes = num_processes, .address = "127.0.0.1", .port = port};
}

// Calls `process` with the number of each, at the same time, and returns what each threw.
inline std::vector<std::optional<Error>> at_once(int64_t count, const std::function<void(int64_t)>& process) {
  std::vector<std::optional<Error>> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      auto& error = errors[static_cast<size_t>(index)];
      try {
        process(index);
      } catch (const Error& thrown) {
        error = thrown;
      } catch (const std::exception& thrown) {
        error = runtime_error(thrown.what(), "no remedy: not an Error");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// `ranks` ranks on so many processes.
inline std::vector<std::optional<Error>> run_processes(int64_t num_processes, int64_t ranks,
                                                       std::chrono::milliseconds timeout,
                                                       const std::function<void(Communicator&)>& drive) {
  const int port = free_port();
  return at_once(num_processes, [&](int64_t process) {
    run_ranks(
        {.launch = launch_of(process, num_processes, port), .ranks = ranks, .timeout = timeout}, [] {}, drive);
  });
}

}  // namespace nmoe::test
