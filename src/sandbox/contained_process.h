// What a process does between clone(2) and execve(2) to be contained. It runs in the memory of its parent, whose thread
// is stopped meanwhile (CLONE_VM | CLONE_VFORK): starting a program then costs the same however large the parent is,
// but nothing here may allocate, lock or be interrupted, and everything it needs is prepared before.
#pragma once

#include <linux/filter.h>
#include <sys/resource.h>

#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// The new root is mounted here before it becomes "/": nothing that is shown below it lies in /proc.
inline constexpr std::string_view kNewRoot = "/proc";

// Paths below kNewRoot where none is said to be the machine's.
struct ContainedView {
  struct Link {
    std::string target, path;
  };
  struct Bind {
    std::string source, path;  // of the machine: a folder with all below it, or a file
  };
  std::vector<std::string> folders;  // to be made, parents first
  std::vector<std::string> files;    // to be made, empty
  std::vector<Link> links;
  std::vector<Bind> binds;  // read-only
};

struct ResourceLimit {
  int resource = 0;
  rlim_t value = 0;
};

// One program to start. Prepared by the parent but for `failed_...`.
struct ContainedStart {
  const ContainedView* view = nullptr;
  const std::vector<sock_filter>* filter = nullptr;
  std::vector<ResourceLimit> limits;
  std::string user_map, group_map;  // contents of /proc/self/uid_map, gid_map
  std::string tmpfs_options;
  std::string program_path;                  // a file to be written, below kNewRoot
  std::string_view program;                  // its content
  int input = -1, output = -1, errors = -1;  // descriptors above 2 that become 0, 1 and 2; no other is left open
  char* const* arguments = nullptr;          // the first is what is executed, as seen from inside
  char* const* environment = nullptr;

  const char* failed_step = nullptr;  // set when the program was not started
  const char* failed_path = "";
  int failed_errno = 0;
};

// For clone(2); `start` is a ContainedStart. Does not return: it becomes the program, or says what failed.
int contained_main(void* start);

}  // namespace nmoe
