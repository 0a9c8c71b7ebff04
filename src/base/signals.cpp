#include "base/signals.h"

#include <unistd.h>

#include <csignal>

namespace nmoe {
namespace {

volatile std::sig_atomic_t received_signal = 0;

void on_signal(int signal) {
  if (received_signal != 0) _exit(128 + signal);  // the shell's convention for death by signal
  received_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignal::~StopSignal() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignal::requested() const { return received_signal != 0; }

const char* StopSignal::name() const {
  if (received_signal == SIGINT) return "SIGINT";
  return received_signal == SIGTERM ? "SIGTERM" : "";
}

}  // namespace nmoe
