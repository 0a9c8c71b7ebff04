#include "base/crash_note.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <utility>

#include "base/text.h"

namespace nmoe {
namespace {

constexpr std::array kCrashes = {SIGSEGV, SIGFPE, SIGILL, SIGABRT};

thread_local const CrashNote* note_of_thread = nullptr;

}  // namespace

CrashNote::CrashNote(const std::string& what, const std::string& remedy)
    : text_(terminal_safe(fmt::format("error: {}\nremedy: {}\n", what, remedy))) {}

void CrashNote::on_signal(int signal) {
  if (note_of_thread != nullptr) {
    const std::string& text = note_of_thread->text_;
    // There is nobody to tell when stderr is gone.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // not ours: it comes once more when this returns, and ends the process
  ::raise(signal);
}

CrashNote::Scope::Scope(const CrashNote& note) : outer_(std::exchange(note_of_thread, &note)) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    for (const int signal : kCrashes) ::sigaction(signal, &action, nullptr);
  });
}

CrashNote::Scope::~Scope() { note_of_thread = outer_; }

}  // namespace nmoe
