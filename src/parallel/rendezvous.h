// How the processes of a run find each other, over TCP.
//
// Process 0 listens; every other connects to it, twice: for control (process_links.h) and for the data of calls. Both
// ends prove that they know the secret, by HMAC-SHA256 over a nonce of each and over what the one that connects claims
// to be; neither tells the secret. With a secret process 0 listens at every interface, unless MASTER_ADDR means its own
// host only; without, everybody stays on one host. What is said afterwards is neither encrypted nor signed.
//
// Who sends something else, does not know the secret, speaks another version, has another identity, or claims to be a
// process that is there already, is refused, and process 0 goes on waiting for those that are missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/signals.h"
#include "parallel/launch.h"
#include "parallel/socket.h"

namespace nmoe {

struct RendezvousOptions {
  Launch launch;
  int64_t ranks = 0;     // of the run; a multiple of the number of processes
  std::string identity;  // lines of text; what must be the same in all processes. A line that differs is shown
  std::chrono::milliseconds timeout{};  // until all are there
  // Once it was asked to stop, a process waits no more than seconds: where the others come by then, all stop together.
  const StopSignal* stop = nullptr;
};

// What all know of each.
struct ProcessInfo {
  std::string host;
  int64_t first_rank = 0;
  int64_t num_ranks = 0;
};
std::string describe_process(int64_t process, const ProcessInfo& info);  // "process 1 (node7, ranks 2 to 3)"

struct Link {
  Socket control;
  Socket data;
};

// Of a run whose processes are all there.
struct Meeting {
  int64_t process = 0;  // this one
  std::vector<ProcessInfo> processes;
  std::vector<Link> links;  // by process: of process 0 to all others, of the others to process 0; the rest is closed
};

// Returns when all processes are there. Errors: (usage) no secret for an address of other hosts; refused by process 0;
// (runtime) not all came, or process 0 was not to be reached, before the timeout or after a signal; the port is taken.
Meeting meet_processes(const RendezvousOptions& options);

}  // namespace nmoe
