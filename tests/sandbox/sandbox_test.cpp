// What a contained program may do, and what it must not reach however it tries.
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "base/files.h"
#include "sandbox/test_sandbox.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe::test {
namespace {

// Where the machine does not let its users isolate anything, there is nothing to test. Found out without the sandbox.
class Isolation : public testing::Environment {
  void SetUp() override {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const bool can = ::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) == 0 &&
                       ::mount("tmpfs", "/proc", "tmpfs", 0, "size=64k") == 0;
      ::_exit(can ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    if (status != 0) GTEST_SKIP() << "this machine makes no namespaces for its users";
  }
};
[[maybe_unused]] const auto* const kIsolation = testing::AddGlobalTestEnvironment(new Isolation);

// The last line that Python says of an uncaught exception.
std::string last_words(const SandboxResult& result) {
  std::string_view text = result.err;
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

// Of a program that says "reached" behind what must not be possible.
testing::AssertionResult refused(std::string_view program) {
  const SandboxResult result = sandbox().run(std::string(program) + "\nprint('reached')\n");
  if (result.out.find("reached") != std::string::npos) return testing::AssertionFailure() << "it got through";
  if (result.end != SandboxEnd::kExited || result.status != 1) {
    return testing::AssertionFailure() << "it ended with status " << result.status << ": " << result.err;
  }
  return testing::AssertionSuccess() << last_words(result);
}

TEST(SandboxTest, RunsAProgram) {
  const SandboxResult result = sandbox().run(
      "import sys, math, json, re, collections, hashlib\n"
      "open('own', 'w').write('text')\n"
      "print(open('own').read(), math.gcd(12, 18), json.dumps([1]), sys.stdin.read() == '')\n"
      "print('aside', file=sys.stderr)\n"
      "sys.exit(7)\n");
  EXPECT_EQ(result.end, SandboxEnd::kExited);
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.out, "text 6 [1] True\n");
  EXPECT_EQ(result.err, "aside\n");
}

TEST(SandboxTest, SaysTheSameTwice) {
  const std::string program = "print(sorted({'a', 'b', 'c'}, key=hash), hash('text'))";
  EXPECT_EQ(sandbox().run(program).out, sandbox().run(program).out);
}

TEST(SandboxTest, KnowsNothingOfTheMachine) {
  const SandboxResult result = sandbox().run(
      "import os\n"
      "print(os.getpid(), os.getppid(), os.getuid(), os.getgid(), os.uname().nodename, sorted(os.environ), "
      "os.getcwd(),\n"
      "      os.listdir('/tmp'))\n"
      "print(sorted(set(os.listdir('/')) - {'lib', 'lib64'}))\n"
      "fds = []\n"
      "for fd in range(64):\n"
      "    try: os.fstat(fd); fds.append(fd)\n"
      "    except OSError: pass\n"
      "print(fds)\n");
  EXPECT_EQ(result.out,
            "1 0 65534 65534 sandbox ['HOME', 'LANG', 'PYTHONHASHSEED', 'TMPDIR'] /tmp ['program.py']\n"
            "['tmp', 'usr']\n"
            "[0, 1, 2]\n")
      << result.err;
}

TEST(SandboxTest, NoDescriptorOfTheProcessIsOpen) {
  // Not closed on exec, as a library might leave it.
  const int fd = ::open("/etc/passwd", O_RDONLY);
  ASSERT_GE(fd, 0);
  const int high = ::fcntl(fd, F_DUPFD, 50);
  for (const int open : {fd, high}) EXPECT_TRUE(refused(fmt::format("import os\nos.read({}, 1)", open)));
  ::close(fd);
  ::close(high);
}

// ---- attacks -----------------------------------------------------------------------------------

TEST(SandboxAttackTest, ReadsAFileOutside) {
  TempDir dir;
  const fs::path secret = dir.path() / "secret";
  write_file_atomically(secret, "key");
  EXPECT_TRUE(refused(fmt::format("open('{}').read()", secret.string())));
  EXPECT_TRUE(refused("open('/etc/passwd').read()"));
  EXPECT_TRUE(refused("open('/proc/1/environ').read()"));
  EXPECT_TRUE(refused("open('/tmp/../../../../etc/passwd').read()"));
}

TEST(SandboxAttackTest, WritesOutside) {
  TempDir dir;
  EXPECT_TRUE(refused(fmt::format("open('{}/new', 'w')", dir.path().string())));
  EXPECT_TRUE(fs::is_empty(dir.path()));
  EXPECT_TRUE(refused("import os\nopen(os.path.dirname(os.__file__) + '/os.py', 'a')"));
  EXPECT_TRUE(refused("import os\nos.remove(os.__file__)"));
  EXPECT_TRUE(refused("import os, sys\nos.chmod(os.path.realpath(sys.executable), 0o777)"));
}

// Locks, leases and notices would be felt by programs of the host that use the same files.
TEST(SandboxAttackTest, HoldsFilesOfTheHost) {
  for (const char* call :
       {"fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)", "fcntl(fd, fcntl.F_GETLEASE)",
        "fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS)", "lockf(fd, fcntl.LOCK_SH)", "flock(fd, fcntl.LOCK_SH)",
        "fcntl(fd, 37, bytes(32))", "fcntl(fd, fcntl.F_SETOWN, 1)", "fcntl(fd, fcntl.F_SETSIG, 9)",
        "fcntl(1, 1031, 4096)", "fcntl(fd, 1033, 1)", "fcntl(fd, 1036, bytes(8))"}) {
    EXPECT_TRUE(refused(fmt::format("import fcntl, os\nfd = os.open(os.__file__, os.O_RDONLY)\nfcntl.{}", call)))
        << call;
  }
}

TEST(SandboxTest, HasDescriptorsOfItsOwn) {
  const SandboxResult result = sandbox().run(
      "import fcntl, os\n"
      "fd = os.open('own', os.O_RDWR | os.O_CREAT)\n"
      "copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10), fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)]\n"
      "fcntl.fcntl(copies[1], fcntl.F_SETFD, 0)\n"
      "fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)\n"
      "print(copies, fcntl.fcntl(copies[1], fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND != 0)\n");
  EXPECT_EQ(result.out, "[10, 20] 0 True\n") << result.err;
}

TEST(SandboxAttackTest, Connects) {
  EXPECT_TRUE(refused("import socket\nsocket.create_connection(('127.0.0.1', 22), 1)"));
  EXPECT_TRUE(refused("import socket\nsocket.socket(socket.AF_UNIX)"));
  EXPECT_TRUE(refused("import socket\nsocket.socketpair()"));
}

TEST(SandboxAttackTest, BombsWithForks) {
  EXPECT_TRUE(refused("import os\nwhile True: os.fork()"));
  EXPECT_TRUE(refused("import subprocess\nsubprocess.run(['/usr/bin/python3'])"));
  EXPECT_TRUE(refused("import threading\nthreading.Thread(target=print).start()"));
}

TEST(SandboxAttackTest, TakesTenGiB) { EXPECT_TRUE(refused("x = bytearray(10 << 30)")); }

TEST(SandboxAttackTest, FillsTheFileSystem) {
  EXPECT_TRUE(refused("open('big', 'wb').write(bytes(2 << 20))"));
  EXPECT_TRUE(refused("for i in range(100): open(str(i), 'wb').write(bytes(1 << 20))"));
  EXPECT_TRUE(refused("for i in range(10000): open(str(i), 'w').close()"));
}

TEST(SandboxAttackTest, LoopsAndSleepsForEver) {
  const Sandbox brief({.seconds = 0.4});
  for (const char* program :
       {"while True: pass", "import time\ntime.sleep(1000)",
        "import signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except "
        "OSError: pass\nwhile True: pass"}) {
    const SandboxResult result = brief.run(program);
    EXPECT_EQ(result.end, SandboxEnd::kTimeLimit) << program;
    EXPECT_GE(result.seconds, 0.4);
    EXPECT_LT(result.seconds, 5.0);
  }
}

TEST(SandboxAttackTest, KillsTheParent) {
  const SandboxResult result = sandbox().run(
      "import os, signal\n"
      "for pid in list(range(2, 300)) + [" +
      std::to_string(::getpid()) +
      ", os.getppid(), -1]:\n"
      "    for s in (signal.SIGTERM, signal.SIGKILL):\n"
      "        try: os.kill(pid, s)\n"
      "        except OSError: pass\n"
      "print('done')\n");
  EXPECT_EQ(result.out, "done\n") << result.err;
}

TEST(SandboxAttackTest, PrintsAGigabyte) {
  for (const char* descriptor : {"1", "2"}) {
    const SandboxResult result =
        sandbox().run(fmt::format("import os\nfor i in range(1024): os.write({}, b'x' * (1 << 20))", descriptor));
    EXPECT_EQ(result.end, SandboxEnd::kOutputLimit);
    EXPECT_EQ(result.out.size() + result.err.size(), static_cast<size_t>(sandbox().options().output_bytes));
  }
}

TEST(SandboxAttackTest, GainsPrivileges) {
  EXPECT_TRUE(refused("import os\nos.setuid(0)"));
  EXPECT_TRUE(refused("import os\nos.chroot('/')"));
  EXPECT_TRUE(refused("import os\nos.mknod('/tmp/null', 0o20666, os.makedev(1, 3))"));
  EXPECT_TRUE(refused("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))"));
  // Calls that Python has no function for: all must say that there is no such call (38).
  const SandboxResult result = sandbox().run(
      "import ctypes\n"
      "libc = ctypes.CDLL(None, use_errno=True)\n"
      "calls = dict(socket=41, clone=56, ptrace=101, mount=165, umount2=166, keyctl=250, unshare=272, "
      "perf_event_open=298,\n"
      "             setns=308, process_vm_readv=310, process_vm_writev=311, memfd_create=319, bpf=321, "
      "userfaultfd=323,\n"
      "             io_uring_setup=425, clone3=435, pidfd_open=434, open_tree=428, fsopen=430, unknown=1000)\n"
      "for name, number in calls.items():\n"
      "    ctypes.set_errno(0)\n"
      "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38: print(name, "
      "ctypes.get_errno())\n"
      "print('tried')\n");
  // Where libffi may not be there, nothing of it can be called either.
  if (last_words(result).find("ModuleNotFoundError") != std::string::npos) GTEST_SKIP() << result.err;
  EXPECT_EQ(result.out, "tried\n") << result.err;
}

TEST(SandboxAttackTest, CrashesTheInterpreter) {
  const SandboxResult result = sandbox().run("import ctypes\nctypes.string_at(8)");
  EXPECT_EQ(result.end, SandboxEnd::kSignalled);
  EXPECT_EQ(result.status, SIGSEGV);
}

// ---- around it -----------------------------------------------------------------------------------

int num_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(SandboxTest, LeavesNothingBehind) {
  sandbox();
  const int before = num_descriptors();
  for (int i = 0; i < 5; ++i) sandbox().run("print(1)");
  EXPECT_EQ(num_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG | __WALL), -1);  // no children
  EXPECT_EQ(errno, ECHILD);
}

TEST(SandboxTest, RunsManyAtOnce) {
  std::vector<std::thread> threads;
  std::vector<std::string> said(4);
  for (size_t i = 0; i < said.size(); ++i) {
    threads.emplace_back([&said, i] {
      for (int round = 0; round < 5; ++round) said[i] += sandbox().run(fmt::format("print({}, end='')", i)).out;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < said.size(); ++i) EXPECT_EQ(said[i], std::string(5, static_cast<char>('0' + i)));
}

TEST(SandboxTest, DiesWithTheProcess) {
  // Its standard output is open for writing in the program alone once the process that runs it is dead.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  sandbox();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      [[maybe_unused]] const ssize_t written = ::write(ends[1], "x", 1);
    }).detach();
    sandbox().run("import time\ntime.sleep(1000)");
    ::_exit(0);
  }
  ::close(ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  // The program is the only child of that process, once it is there; soon after it dies with it.
  pid_t program = 0;
  for (int i = 0; i < 1000 && program == 0; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream(fmt::format("/proc/{0}/task/{0}/children", pid)) >> program;
  }
  ASSERT_GT(program, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  // Gone, or dead and not yet collected by whoever inherited it.
  const auto is_dead = [program] {
    std::string stat;
    std::getline(std::ifstream(fmt::format("/proc/{}/stat", program)), stat);
    return stat.empty() || stat.substr(stat.rfind(')') + 1).starts_with(" Z");
  };
  for (int i = 0; i < 1000 && !is_dead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(is_dead());
}

TEST(SandboxTest, RefusesWithoutIsolation) {
  // In a user namespace that allows no further ones, as a machine without any.
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(3);
    std::ofstream("/proc/sys/user/max_user_namespaces") << 0;
    try {
      const Sandbox refused;
    } catch (const Error& error) {
      const bool says = std::string_view(error.what()).find("cannot be isolated") != std::string_view::npos &&
                        error.remedy().find("max_user_namespaces") != std::string::npos;
      ::_exit(says ? 0 : 2);
    }
    ::_exit(1);  // it ran
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SandboxTest, NamesAnInterpreterThatIsNotThere) {
  const Error error = error_of([] { const Sandbox none({.python = "/usr/bin/python-of-nobody"}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "/usr/bin/python-of-nobody"));
}

}  // namespace
}  // namespace nmoe::test
