// Ranks in several processes, and how any number of processes runs its ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/signals.h"
#include "parallel/communicator.h"
#include "parallel/launch.h"
#include "parallel/process_links.h"
#include "parallel/thread_group.h"

namespace nmoe {

// The ranks that this process drives, as threads that meet among themselves; the first of them then talks to the other
// processes. Tensors are in host memory. They travel through process 0: a running sum goes from process to process
// in their order, and the total goes back to all.
class ProcessGroup {
 public:
  ProcessGroup(Meeting meeting, LinkTiming timing);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Of this process, numbered from 0 here; the communicator has the number in the run. To be used by one thread at a
  // time.
  Communicator& communicator(int64_t local_rank);

  // Calls `prepare` on this thread, then `drive` for each rank of this process (ThreadGroup::run). Returns when the
  // ranks of all processes have ended; throws what ended a rank here, or the PeerFailure of another process.
  // Last words as ThreadGroup::run's.
  void run(const std::function<void()>& prepare, const std::function<void(Communicator&)>& drive,
           const ThreadGroup::LastWords& last_words = {});

 private:
  class Member;
  class AllRanks;
  class Counterparts;
  class Chunks;
  using Calls = std::span<const ThreadGroup::Call* const>;

  bool is_first() const { return links_.process() == 0; }
  void call(int64_t local_rank, ThreadGroup::Call call, const ThreadGroup::Completion& complete);
  // By the thread that speaks, in a call.
  std::vector<std::string> exchange(std::string_view name, std::span<const Tensor> tensors, const std::string& offer);
  void gather(Calls calls);
  void sum(Calls calls);
  void sum_counterparts(Calls calls);
  void sum_first(Calls calls, const Chunks& chunks);
  void sum_other(Calls calls, const Chunks& chunks);
  void spread(Calls calls);
  void announce(int64_t local_rank, const std::exception_ptr& failure);

  const int64_t first_rank_;
  const int64_t num_ranks_;  // of the run
  ThreadGroup threads_;
  std::vector<std::unique_ptr<AllRanks>> all_ranks_;         // by rank here
  std::vector<std::unique_ptr<Counterparts>> counterparts_;  // same
  std::vector<std::string> gathered_;                        // by rank; written in a call, read before the next
  std::mutex patience_mutex_;
  std::vector<std::chrono::milliseconds> patience_;  // with each rank here
  ProcessLinks links_;                               // last: it calls fail() of threads_
};

struct RankRun {
  Launch launch = {};
  int64_t ranks = 1;                                        // of all processes
  std::chrono::milliseconds timeout = kDefaultRankTimeout;  // to meet, and that a rank waits for another
  std::string identity = {};                                // what must be the same in all processes (rendezvous.h)
  // Called with the reason before a process ends in which a rank hangs (ThreadGroup::run), by another thread than the
  // ranks'.
  ThreadGroup::LastWords last_words = {};
  const StopSignal* stop = nullptr;  // heard while processes meet (rendezvous.h)
};

// Calls `drive` once for each rank of this process, as threads, and returns when the ranks of all processes have ended.
// The processes meet first; then each calls `prepare` once, before its ranks begin: what it throws ends the run
// everywhere, as what a rank throws does. Rethrows what ended a rank here first; where it was a rank or a process
// elsewhere, PeerFailure. Errors before: ranks_of_process, meet_processes.
void run_ranks(const RankRun& run, const std::function<void()>& prepare,
               const std::function<void(Communicator&)>& drive);

}  // namespace nmoe
