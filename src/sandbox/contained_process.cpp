#include "sandbox/contained_process.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

// What sanitizers put into functions knows the parent's stack, not this one.
#define NMOE_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

namespace nmoe {
namespace {

// Calls go to the kernel directly: a sanitizer's wrappers would take what happens here for the parent's doing.
template <class... Arguments>
NMOE_IN_CHILD long call(long number, Arguments... arguments) {
  return ::syscall(number, arguments...);
}

[[noreturn]] NMOE_IN_CHILD void give_up(ContainedStart& start, const char* step, const char* path) {
  start.failed_step = step;
  start.failed_path = path;
  start.failed_errno = errno;
  while (true) call(SYS_exit_group, 127);
}

NMOE_IN_CHILD void write_new_file(ContainedStart& start, const char* path, int flags, std::string_view content) {
  const long fd = call(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC | flags, 0644);
  if (fd < 0) give_up(start, "open", path);
  while (!content.empty()) {
    const long written = call(SYS_write, fd, content.data(), content.size());
    if (written <= 0) give_up(start, "write", path);
    content.remove_prefix(static_cast<size_t>(written));
  }
  call(SYS_close, fd);
}

NMOE_IN_CHILD void die_with_parent(ContainedStart& start) {
  if (call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) give_up(start, "die with the parent", "");
  // It may be dead already: then nobody reads what will be written to the output.
  pollfd output{.fd = 1, .events = 0, .revents = 0};
  if (call(SYS_poll, &output, 1, 0) == 1) give_up(start, "see the parent", "");
}

NMOE_IN_CHILD void keep_three_descriptors(ContainedStart& start) {
  if (call(SYS_dup2, start.input, 0) < 0 || call(SYS_dup2, start.output, 1) < 0 ||
      call(SYS_dup2, start.errors, 2) < 0 || call(SYS_close_range, 3U, ~0U, 0U) != 0) {
    give_up(start, "close the descriptors", "");
  }
}

NMOE_IN_CHILD void become_nobody(ContainedStart& start) {
  write_new_file(start, "/proc/self/setgroups", 0, "deny");
  write_new_file(start, "/proc/self/uid_map", 0, start.user_map);
  write_new_file(start, "/proc/self/gid_map", 0, start.group_map);
  static constexpr std::string_view kHost = "sandbox";
  if (call(SYS_sethostname, kHost.data(), kHost.size()) != 0) give_up(start, "set the host's name", "");
}

NMOE_IN_CHILD void enter_new_root(ContainedStart& start) {
  const char* const root = kNewRoot.data();
  if (call(SYS_mount, nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    give_up(start, "keep mounts apart", "/");
  if (call(SYS_mount, "tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, start.tmpfs_options.c_str()) != 0) {
    give_up(start, "mount a new root", root);
  }
  for (const std::string& folder : start.view->folders) {
    if (call(SYS_mkdirat, AT_FDCWD, folder.c_str(), 0755) != 0) give_up(start, "make", folder.c_str());
  }
  for (const std::string& file : start.view->files) write_new_file(start, file.c_str(), O_CREAT | O_EXCL, "");
  for (const ContainedView::Link& link : start.view->links) {
    if (call(SYS_symlinkat, link.target.c_str(), AT_FDCWD, link.path.c_str()) != 0) {
      give_up(start, "link", link.path.c_str());
    }
  }
  for (const ContainedView::Bind& bind : start.view->binds) {
    const char* const path = bind.path.c_str();
    if (call(SYS_mount, bind.source.c_str(), path, nullptr, MS_BIND | MS_REC, nullptr) != 0) {
      give_up(start, "show", bind.source.c_str());
    }
    mount_attr attributes{};
    attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if (call(SYS_mount_setattr, AT_FDCWD, path, AT_RECURSIVE, &attributes, sizeof(attributes)) != 0) {
      give_up(start, "write-protect", bind.source.c_str());
    }
  }
  write_new_file(start, start.program_path.c_str(), O_CREAT | O_EXCL, start.program);

  // The old root is stacked on the new one's place, and taken away from there (pivot_root(2), "pivot_root(".", ".")").
  if (call(SYS_chdir, root) != 0 || call(SYS_pivot_root, ".", ".") != 0) give_up(start, "change the root", root);
  if (call(SYS_umount2, ".", MNT_DETACH) != 0 || call(SYS_chdir, "/tmp") != 0) give_up(start, "leave the old root", "");
}

NMOE_IN_CHILD void limit_resources(ContainedStart& start) {
  for (const ResourceLimit& limit : start.limits) {
    rlimit now{};
    if (call(SYS_prlimit64, 0, limit.resource, nullptr, &now) != 0) give_up(start, "read a limit", "");
    const rlim_t value = std::min(now.rlim_max, limit.value);
    const rlimit wanted{.rlim_cur = value, .rlim_max = value};
    if (call(SYS_prlimit64, 0, limit.resource, &wanted, nullptr) != 0) give_up(start, "set a limit", "");
  }
}

// The parent blocks signals around clone(2), since its handlers would run here in its memory.
NMOE_IN_CHILD void forget_signals() {
  struct {  // as the kernel has it
    void* handler;
    unsigned long flags;
    void* restorer;
    unsigned long mask;
  } const default_action{};
  for (int signal = 1; signal <= 64; ++signal) {  // of SIGKILL and SIGSTOP it says EINVAL
    call(SYS_rt_sigaction, signal, &default_action, nullptr, sizeof(unsigned long));
  }
  const unsigned long none = 0;
  call(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof(none));
}

}  // namespace

NMOE_IN_CHILD int contained_main(void* argument) {
  ContainedStart& start = *static_cast<ContainedStart*>(argument);
  keep_three_descriptors(start);
  die_with_parent(start);
  become_nobody(start);
  enter_new_root(start);
  if (call(SYS_setsid) < 0) give_up(start, "leave the terminal", "");
  limit_resources(start);
  forget_signals();
  if (call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up(start, "give up new privileges", "");
  const sock_fprog filter{.len = static_cast<unsigned short>(start.filter->size()),
                          .filter = const_cast<sock_filter*>(start.filter->data())};
  if (call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) give_up(start, "filter system calls", "");
  call(SYS_execve, start.arguments[0], start.arguments, start.environment);
  give_up(start, "execute", start.arguments[0]);
}

}  // namespace nmoe
