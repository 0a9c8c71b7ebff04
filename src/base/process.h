// What the operating system says of this process and its machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace nmoe {

int64_t resident_bytes();       // memory in use now
int64_t peak_resident_bytes();  // most memory in use since the process, or reset_peak_resident_bytes(), began
// What can still be had without swapping or being killed: the least of what the machine, its control groups (a
// container's limits) and the limit on address space leave.
int64_t available_memory_bytes();

// What control groups leave of memory: `membership` is as /proc/self/cgroup, their file systems are mounted below
// `root` as below /sys/fs/cgroup. Both versions; a group's limit holds for those in it. INT64_MAX: no limit.
int64_t memory_left_by_groups(const std::filesystem::path& membership, const std::filesystem::path& root);

std::string host_name();

double seconds_since_start();  // of this process, by the system's clock of 10 ms

// Begins a new peak from what is in use now. Where the system does not allow that, the old one goes on.
void reset_peak_resident_bytes();

// From here on threads that begin allocate from the process's one heap, which keeps what is freed until
// release_free_memory(). A heap for each thread, and sizes at which blocks go back to the system that change as a
// program runs, would make its resident size a matter of chance. For programs whose threads seldom allocate.
void use_one_heap();

// Hands memory that was freed but kept for reuse back to the system, so that resident_bytes() means use.
void release_free_memory();

}  // namespace nmoe
