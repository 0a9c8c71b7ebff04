// Ctrl-C, SIGTERM (a scheduler's preemption) and SIGHUP (a terminal that is gone): the first asks for a clean stop, the
// second leaves at once.
#pragma once

namespace nmoe {

// While one exists, it owns these signals, but for a SIGHUP that the process was told to ignore (nohup). One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // restores the default behaviour
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
  const char* name() const;  // "SIGINT", "SIGTERM" or "SIGHUP"; "" when none came
};

// From here on what is written to a reader that is gone fails as any other write does, rather than ending the process.
void ignore_broken_pipes();

// Keeps these signals away from the calling thread: for those that compute beside the one with the StopSignal.
void block_stop_signals();

}  // namespace nmoe
