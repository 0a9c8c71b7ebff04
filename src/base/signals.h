// Ctrl-C and SIGTERM (a scheduler's preemption): the first asks for a clean stop, the second leaves at once.
#pragma once

namespace nmoe {

// While one exists, it owns both signals. One at a time. In the thread that makes it they are answered on a stack of
// their own: kernels of oneDNN point the stack register into their buffers, which an answer there would overwrite.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // restores the default behaviour
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
  const char* name() const;  // "SIGINT" or "SIGTERM"; "" when none came
};

// Keeps both signals away from the calling thread: for those that compute beside the one with the StopSignal.
void block_stop_signals();

}  // namespace nmoe
