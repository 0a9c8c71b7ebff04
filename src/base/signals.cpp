#include "base/signals.h"

#include <unistd.h>

#include <csignal>

namespace nmoe {
namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received_signal = 0;

void on_signal(int signal) {
  if (received_signal != 0) _exit(128 + signal);  // the shell's convention for death by signal
  received_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;  // by nohup
    sigaction(signal, &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (const int signal : kStopSignals) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == on_signal) std::signal(signal, SIG_DFL);
  }
}

bool StopSignal::requested() const { return received_signal != 0; }

const char* StopSignal::name() const {
  switch (received_signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "";
  }
}

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

void block_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace nmoe
