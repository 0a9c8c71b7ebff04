#include "support/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"

namespace nmoe::test {
namespace {

int memory_file(const char* name) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  NMOE_CHECK(fd >= 0, "no memory file");
  return fd;
}

std::string content(int fd) {
  std::string text(static_cast<size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  NMOE_CHECK(size == static_cast<ssize_t>(text.size()), "read {} of {}", size, text.size());
  return text;
}

}  // namespace

Program::Program(const fs::path& dir, const std::vector<std::string>& command, std::string_view input)
    : in_(memory_file("in")), out_(memory_file("out")), err_(memory_file("err")) {
  NMOE_CHECK(::pwrite(in_, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()),
             "the input does not fit");
  // The reader's and the writers' places in these files differ: O_APPEND keeps them apart.
  ::fcntl(out_, F_SETFL, O_APPEND);
  ::fcntl(err_, F_SETFL, O_APPEND);

  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = ::fork();
  NMOE_CHECK(pid_ >= 0, "no new process");
  if (pid_ > 0) return;

  ::dup2(in_, STDIN_FILENO);
  ::dup2(out_, STDOUT_FILENO);
  ::dup2(err_, STDERR_FILENO);
  std::signal(SIGHUP, SIG_DFL);  // whatever the tests are run by
  if (::chdir(dir.c_str()) == 0) ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

Program::~Program() {
  if (pid_ > 0) {
    send(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_, out_, err_}) ::close(fd);
}

bool Program::ended() {
  if (pid_ == 0) return true;
  int status = 0;
  rusage usage{};
  if (::wait4(pid_, &status, WNOHANG, &usage) == 0) return false;
  pid_ = 0;
  outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome_.peak_resident_bytes = usage.ru_maxrss * 1024;
  return true;
}

bool Program::wait_for(std::string_view text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < deadline) {
    const bool last_look = ended();
    if (content(err_).find(text) != std::string::npos) return true;
    if (last_look) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::string Program::errors() const { return content(err_); }

void Program::send(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

Outcome Program::wait() {
  while (!ended()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  outcome_.out = content(out_);
  outcome_.err = content(err_);
  return std::move(outcome_);
}

Outcome run_n(const fs::path& dir, std::vector<std::string> arguments, std::string_view input) {
  arguments.insert(arguments.begin(), NMOE_PROGRAM);
  return Program(dir, arguments, input).wait();
}

}  // namespace nmoe::test
