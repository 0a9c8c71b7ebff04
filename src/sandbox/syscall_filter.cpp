#include "sandbox/syscall_filter.h"

#include <fcntl.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr int kAllowed[] = {
    // Its own start and end. The one execve that starts it comes behind the filter; another one changes nothing of
    // what holds.
    SCMP_SYS(execve), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(arch_prctl), SCMP_SYS(set_tid_address),
    SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(futex), SCMP_SYS(getrandom),
    // memory
    SCMP_SYS(brk), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mprotect), SCMP_SYS(mremap), SCMP_SYS(madvise),
    // files: those that are there, and its own
    SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(close), SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64),
    SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(pwrite64), SCMP_SYS(lseek), SCMP_SYS(stat), SCMP_SYS(lstat),
    SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents64), SCMP_SYS(getcwd), SCMP_SYS(chdir), SCMP_SYS(fchdir),
    SCMP_SYS(mkdir), SCMP_SYS(mkdirat), SCMP_SYS(rmdir), SCMP_SYS(unlink), SCMP_SYS(unlinkat), SCMP_SYS(rename),
    SCMP_SYS(renameat), SCMP_SYS(renameat2), SCMP_SYS(truncate), SCMP_SYS(ftruncate), SCMP_SYS(fsync),
    SCMP_SYS(fdatasync), SCMP_SYS(fadvise64), SCMP_SYS(chmod), SCMP_SYS(fchmod), SCMP_SYS(umask), SCMP_SYS(dup),
    SCMP_SYS(dup2), SCMP_SYS(dup3), SCMP_SYS(pipe), SCMP_SYS(pipe2),
    // time and waiting
    SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(gettimeofday), SCMP_SYS(time), SCMP_SYS(times),
    SCMP_SYS(nanosleep), SCMP_SYS(clock_nanosleep), SCMP_SYS(select), SCMP_SYS(pselect6), SCMP_SYS(poll),
    SCMP_SYS(ppoll), SCMP_SYS(sched_yield), SCMP_SYS(alarm), SCMP_SYS(getitimer), SCMP_SYS(setitimer),
    // signals, which reach nobody else
    SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(kill),
    SCMP_SYS(tgkill), SCMP_SYS(restart_syscall),
    // who and where it is
    SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid), SCMP_SYS(getpgrp), SCMP_SYS(getuid), SCMP_SYS(geteuid),
    SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getgroups), SCMP_SYS(getresuid), SCMP_SYS(getresgid),
    SCMP_SYS(getrlimit), SCMP_SYS(prlimit64), SCMP_SYS(getrusage), SCMP_SYS(sched_getaffinity), SCMP_SYS(sysinfo),
    SCMP_SYS(uname)};

// Of calls whose second argument says what they do. Of ioctl: whether a file is a terminal, and close-on-exec. Of
// fcntl: what is the descriptor's own; locks, leases and notices are of files, which the host's programs use too.
struct AllowedCommand {
  int call;
  unsigned command;
};
constexpr AllowedCommand kAllowedCommands[] = {
    {SCMP_SYS(ioctl), TCGETS},  {SCMP_SYS(ioctl), FIOCLEX},         {SCMP_SYS(ioctl), FIONCLEX},
    {SCMP_SYS(fcntl), F_DUPFD}, {SCMP_SYS(fcntl), F_DUPFD_CLOEXEC}, {SCMP_SYS(fcntl), F_GETFD},
    {SCMP_SYS(fcntl), F_SETFD}, {SCMP_SYS(fcntl), F_GETFL},         {SCMP_SYS(fcntl), F_SETFL}};

void check(int result, const char* call) { NMOE_CHECK(result == 0, "{}: error {}", call, -result); }

}  // namespace

std::vector<sock_filter> interpreter_syscall_filter() {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)),
                                                                 &seccomp_release);
  NMOE_CHECK(filter != nullptr, "seccomp_init");
  check(seccomp_attr_set(filter.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS), "seccomp_attr_set");
  check(seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2), "seccomp_attr_set");  // a tree, not a list
  for (const int call : kAllowed) check(seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0), "seccomp_rule_add");
  for (const auto& [call, command] : kAllowedCommands) {
    check(seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 1, SCMP_A1(SCMP_CMP_EQ, command)), "seccomp_rule_add");
  }

  const int fd = ::memfd_create("filter", MFD_CLOEXEC);
  NMOE_CHECK(fd >= 0, "memfd_create: errno {}", errno);
  const int exported = seccomp_export_bpf(filter.get(), fd);
  const off_t bytes = ::lseek(fd, 0, SEEK_END);
  std::vector<sock_filter> program(static_cast<size_t>(bytes) / sizeof(sock_filter));
  const ssize_t got = ::pread(fd, program.data(), static_cast<size_t>(bytes), 0);
  ::close(fd);
  check(exported, "seccomp_export_bpf");
  NMOE_CHECK(got == bytes && !program.empty(), "{} of {} bytes of a filter", got, bytes);
  return program;
}

}  // namespace nmoe
