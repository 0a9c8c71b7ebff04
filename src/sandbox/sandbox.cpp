#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "sandbox/contained_process.h"
#include "sandbox/syscall_filter.h"

namespace nmoe {

// The same for all programs.
struct Sandbox::Prepared {
  fs::path python;  // the file itself, behind all links
  ContainedView view;
  std::vector<sock_filter> filter;
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNamespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
constexpr size_t kStackBytes = 64 << 10;  // contained_main's own needs are a fraction
constexpr int kNobody = 65534;            // who a program is inside

std::string reason(int error) { return std::generic_category().message(error); }

Error isolation_error(std::string_view what) {
  return runtime_error(
      fmt::format("generated code cannot be isolated here: {}", what),
      "let users make namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu from 23.10), "
      "kernel.unprivileged_userns_clone=1 (Debian before 11), user.max_user_namespaces above 0; start a container with "
      "--security-opt seccomp=unconfined --security-opt apparmor=unconfined; the kernel must be Linux 5.12 or newer. "
      "Without isolation it is not run");
}

Error start_error(const char* call) {
  if (errno == ENOMEM) return out_of_memory(fmt::format("a program cannot be started ({})", call));
  return runtime_error(fmt::format("cannot start a program: {}: {}", call, reason(errno)),
                       "close files, or raise the limit of open ones (ulimit -n)");
}

class Descriptor {
 public:
  Descriptor() = default;
  // Takes `fd` over, moved above the three standard ones where this process has closed one of those.
  Descriptor(int fd, const char* call) : fd_(fd) {
    if (fd_ >= 0 && fd_ < 3) {
      fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
      ::close(fd);
    }
    if (fd_ < 0) throw start_error(call);
  }
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw start_error("pipe2");
    read = Descriptor(ends[0], "pipe2");
    write = Descriptor(ends[1], "pipe2");
    NMOE_CHECK(::fcntl(read.get(), F_SETFL, O_NONBLOCK) == 0, "fcntl: errno {}", errno);
  }
  Descriptor read, write;
};

// Reads what is there. False when there is more than `limit` in all: then `text` has as much.
bool read_available(int fd, std::string& text, int64_t limit) {
  std::array<char, 16384> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;  // the end, or nothing now
    text.append(buffer.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(text.size()) > limit) {
      text.resize(static_cast<size_t>(limit));
      return false;
    }
  }
}

// What an interpreter needs: itself, the folders of libraries beside it and the system's, and a folder to write to.
ContainedView interpreter_view(const fs::path& python) {
  ContainedView view;
  const auto inside = [](const fs::path& path) { return std::string(kNewRoot) + path.string(); };
  const auto make_folder = [&](const fs::path& folder) {
    fs::path below = "/";
    for (const fs::path& part : folder.relative_path()) {
      below /= part;
      if (std::ranges::find(view.folders, inside(below)) == view.folders.end()) view.folders.push_back(inside(below));
    }
  };
  const fs::path prefix = python.parent_path().parent_path();
  std::vector<fs::path> folders{"/usr/lib", "/usr/lib64", "/lib", "/lib64", prefix / "lib", prefix / "lib64"};
  std::ranges::sort(folders);
  std::vector<fs::path> shown;
  const auto is_shown = [&](const fs::path& path) {
    return std::ranges::any_of(
        shown, [&](const fs::path& other) { return path == other || path.string().starts_with(other.string() + "/"); });
  };
  for (const fs::path& folder : folders) {
    if (is_shown(folder)) continue;
    if (fs::is_symlink(folder)) {
      make_folder(folder.parent_path());
      view.links.push_back({.target = fs::read_symlink(folder).string(), .path = inside(folder)});
    } else if (fs::is_directory(folder)) {
      make_folder(folder);
      view.binds.push_back({.source = folder.string(), .path = inside(folder)});
    } else {
      continue;
    }
    shown.push_back(folder);
  }
  if (!is_shown(python)) {
    make_folder(python.parent_path());
    view.files.push_back(inside(python));
    view.binds.push_back({.source = python.string(), .path = inside(python)});
  }
  make_folder("/tmp");
  return view;
}

std::vector<ResourceLimit> resource_limits(const SandboxOptions& options) {
  // Processor time runs out behind the wall clock: it is for a program that nobody watches any more.
  return {{RLIMIT_CPU, static_cast<rlim_t>(std::ceil(options.seconds)) + 1},
          {RLIMIT_AS, static_cast<rlim_t>(options.memory_bytes)},
          {RLIMIT_FSIZE, static_cast<rlim_t>(options.file_bytes)},
          {RLIMIT_NOFILE, 64},
          {RLIMIT_NPROC, 1},
          {RLIMIT_CORE, 0},
          {RLIMIT_STACK, 8 << 20},
          {RLIMIT_MEMLOCK, 0},
          {RLIMIT_MSGQUEUE, 0}};
}

// Starts it, and returns the process as a descriptor. It is contained and running the program then.
Descriptor start_contained(ContainedStart& start) {
  std::vector<std::byte> stack(kStackBytes);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  // Returns when the child has executed the program, or ended.
  const int pid = ::clone(contained_main, stack.data() + stack.size(),
                          CLONE_VM | CLONE_VFORK | CLONE_PIDFD | kNamespaces, &start, &pidfd);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0 && error == ENOMEM) throw out_of_memory("a program cannot be started (clone)");
  if (pid < 0) throw isolation_error(fmt::format("new namespaces: {}", reason(error)));
  return {pidfd, "clone"};
}

// Its end; __WALL because it sends no signal at its end.
siginfo_t reap(const Descriptor& process) {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PIDFD, static_cast<id_t>(process.get()), &info, WEXITED | __WALL);
  } while (result != 0 && errno == EINTR);
  NMOE_CHECK(result == 0, "waitid: errno {}", errno);
  return info;
}

}  // namespace

Sandbox::Sandbox(const SandboxOptions& options) : options_(options) {
  std::error_code error;
  const fs::path python = fs::canonical(options_.python, error);
  if (error || ::access(python.c_str(), X_OK) != 0) {
    throw usage_error(
        fmt::format("there is no Python interpreter at '{}' to run generated code", options_.python.string()),
        "install one (Debian: apt-get install python3), or name another");
  }
  prepared_ = std::make_unique<const Prepared>(
      Prepared{.python = python, .view = interpreter_view(python), .filter = interpreter_syscall_filter()});
  check_isolation();
}

Sandbox::~Sandbox() = default;

SandboxResult Sandbox::run(std::string_view program) const {
  Pipe out, err;
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC), "open /dev/null");
  // -s -S: no packages but the interpreter's own. -B: nothing is compiled into the read-only folders.
  std::array<std::string, 5> words{prepared_->python.string(), "-s", "-S", "-B", "/tmp/program.py"};
  std::array<std::string, 4> variables{"LANG=C.UTF-8", "HOME=/tmp", "TMPDIR=/tmp", "PYTHONHASHSEED=0"};
  std::array<char*, 6> arguments{};
  std::array<char*, 5> environment{};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  for (size_t i = 0; i < variables.size(); ++i) environment[i] = variables[i].data();

  ContainedStart start;
  start.view = &prepared_->view;
  start.filter = &prepared_->filter;
  start.limits = resource_limits(options_);
  start.user_map = fmt::format("{} {} 1", kNobody, ::geteuid());
  start.group_map = fmt::format("{} {} 1", kNobody, ::getegid());
  start.tmpfs_options = fmt::format("mode=755,nr_inodes=1024,size={}", options_.file_system_bytes);
  start.program_path = std::string(kNewRoot) + words.back();
  start.program = program;
  start.input = null.get();
  start.output = out.write.get();
  start.errors = err.write.get();
  start.arguments = arguments.data();
  start.environment = environment.data();

  const Clock::time_point begin = Clock::now();
  const Clock::time_point deadline =
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds));
  const Descriptor process = start_contained(start);
  if (start.failed_step != nullptr) {
    reap(process);
    throw isolation_error(fmt::format("{}{}{}: {}", start.failed_step, *start.failed_path != 0 ? " " : "",
                                      start.failed_path, reason(start.failed_errno)));
  }
  out.write.close();
  err.write.close();

  SandboxResult result;
  bool killed = false;
  const auto kill = [&](SandboxEnd why) {
    if (std::exchange(killed, true)) return;
    result.end = why;
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  };
  std::array<pollfd, 3> waited{
      pollfd{process.get(), POLLIN, 0}, {out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) kill(SandboxEnd::kTimeLimit);
    // What is killed ends soon, and need not be heard.
    const int ready = ::poll(waited.data(), killed ? 1 : waited.size(), killed ? -1 : static_cast<int>(left));
    NMOE_CHECK(ready >= 0 || errno == EINTR, "poll: errno {}", errno);
    if (ready <= 0) continue;
    // Also when it has ended: what it wrote is still there.
    for (pollfd& pipe : std::span(waited).subspan(1)) {
      if (!killed &&
          !read_available(pipe.fd, pipe.fd == out.read.get() ? result.out : result.err, options_.output_bytes)) {
        kill(SandboxEnd::kOutputLimit);
      }
      if ((pipe.revents & (POLLHUP | POLLERR)) != 0 && (pipe.revents & POLLIN) == 0) pipe.fd = -1;  // closed
    }
    if (waited[0].revents != 0) break;
  }
  const siginfo_t info = reap(process);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.status = info.si_status;
  if (!killed && info.si_code != CLD_EXITED) result.end = SandboxEnd::kSignalled;
  return result;
}

void Sandbox::check_isolation() const {
  static constexpr std::string_view kProgram = R"(
import os, socket
def refused(action):
    try:
        action()
    except OSError:
        return True
    return False
checks = {
    "processes of its own": os.getpid() == 1,
    "a user of its own": os.getuid() == 65534,
    "no files of the system": refused(lambda: os.stat("/etc")) and refused(lambda: os.stat("/proc/self")),
    "no writing to what is shown": refused(lambda: open(os.path.dirname(os.__file__) + "/nmoe", "w")),
    "no network": refused(lambda: socket.socket()),
    "no processes": refused(lambda: os.fork()),
}
print([name for name, holds in checks.items() if not holds])
)";
  const SandboxResult result = run(kProgram);
  if (result.end != SandboxEnd::kExited || result.status != 0) {
    throw isolation_error(fmt::format("{} does not run in it (status {}): {}", prepared_->python.string(),
                                      result.status, result.err.empty() ? "it said nothing" : result.err));
  }
  if (result.out != "[]\n") throw isolation_error(fmt::format("what does not hold is {}", result.out));
}

}  // namespace nmoe
