// Ctrl-C and SIGTERM (a scheduler's preemption): the first asks for a clean stop, the second leaves at once.
#pragma once

namespace nmoe {

// While one exists, it owns both signals. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // restores the default behaviour
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
  const char* name() const;  // "SIGINT" or "SIGTERM"; "" when none came
};

}  // namespace nmoe
