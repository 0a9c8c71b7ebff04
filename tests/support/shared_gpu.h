// Whether this process is alone on the machine's GPUs. What CUDA says of a GPU's memory is of all processes together.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace nmoe::test {

// Whether the folder of a process in `proc` says that it has a GPU open.
inline bool has_a_gpu_open(const std::filesystem::path& process) {
  namespace fs = std::filesystem;
  constexpr std::string_view kDevice = "/dev/nvidia";  // and a number, of a GPU
  std::error_code ignored;                             // a process that has ended, or is somebody else's
  for (fs::directory_iterator file(process / "fd", ignored), end; file != end; file.increment(ignored)) {
    const std::string opened = fs::read_symlink(file->path(), ignored).string();
    if (!opened.starts_with(kDevice) || opened.size() == kDevice.size()) continue;
    if (std::isdigit(static_cast<unsigned char>(opened[kDevice.size()])) != 0) return true;
  }
  return false;
}

// Whether another process has, of those that this one may look at.
inline bool gpu_is_shared(const std::filesystem::path& proc = "/proc") {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (fs::directory_iterator process(proc, ignored), end; process != end; process.increment(ignored)) {
    const std::string pid = process->path().filename().string();
    if (!std::ranges::all_of(pid, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    if (pid != std::to_string(::getpid()) && has_a_gpu_open(process->path())) return true;
  }
  return false;
}

}  // namespace nmoe::test
