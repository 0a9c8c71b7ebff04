// Runs Python programs that nobody has read, such as a model's answers, so that they can do no harm: in user, mount,
// process, network, IPC and host name namespaces of their own, below a root that holds the interpreter read-only and a
// small file system in memory, without privileges to gain, behind a filter of system calls (one process, one thread, no
// sockets), under limits of time, memory, files and output. SECURITY.md says what that defends and what it does not.
//
// There is no unprotected way: where the system does not allow all of it, the constructor refuses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace nmoe {

struct SandboxOptions {
  std::filesystem::path python = "/usr/bin/python3";
  double seconds = 3.0;                  // of wall time from the start to the end of one program
  int64_t memory_bytes = 1 << 30;        // of address space
  int64_t output_bytes = 64 << 10;       // of standard output, and as many of standard error
  int64_t file_bytes = 1 << 20;          // of one file
  int64_t file_system_bytes = 16 << 20;  // of all files, which are gone with the program
};

enum class SandboxEnd {
  kExited,       // by itself
  kSignalled,    // by a signal: a crash of the interpreter
  kTimeLimit,    // killed
  kOutputLimit,  // killed
};

struct SandboxResult {
  SandboxEnd end = SandboxEnd::kExited;
  int status = 0;  // exit status, or the signal's number
  std::string out, err;
  double seconds = 0;
};

class Sandbox {
 public:
  // Runs a program that tries what must not be possible. Error (runtime), with the remedy, where isolation is
  // unavailable or does not hold; Error (usage) where there is no interpreter.
  explicit Sandbox(const SandboxOptions& options = {});
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Runs the text of a program to its end; nothing of it is left when this returns, nor when this process dies. Hashes
  // of strings are the same in every run. Any number of threads at the same time; the calling thread waits. Error
  // (runtime) when it could not be started.
  SandboxResult run(std::string_view program) const;

  const SandboxOptions& options() const { return options_; }

 private:
  struct Prepared;
  void check_isolation() const;

  SandboxOptions options_;
  std::unique_ptr<const Prepared> prepared_;
};

}  // namespace nmoe
