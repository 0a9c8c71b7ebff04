// Which system calls a contained program may make.
#pragma once

#include <linux/filter.h>

#include <vector>

namespace nmoe {

// For seccomp(2). Only what an interpreter needs with files, memory, time and itself is let through; all else, with
// processes, threads, sockets, mounts, tracing, keys and whatever the kernel gets next, is answered ENOSYS. Calls of
// other architectures (i386, x32) kill.
std::vector<sock_filter> interpreter_syscall_filter();

}  // namespace nmoe
