#include "base/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nmoe {
namespace {

// The value of a "Key:   123 kB" line.
int64_t read_kib_line(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t digit = line.find_first_of("0123456789");
    if (digit == std::string::npos) break;
    int64_t kib = 0;
    std::from_chars(line.data() + digit, line.data() + line.size(), kib);
    return kib * 1024;
  }
  throw runtime_error(fmt::format("{} has no line {}", path, key), "run on Linux with /proc mounted");
}

// The files of a control group.
struct GroupFiles {
  const char* limit;
  const char* usage;
  std::string_view cache;  // in memory.stat: read from files, and given back at need
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file "};

// Nothing where there is no number: "max" is no limit.
std::optional<int64_t> read_number(const std::filesystem::path& path) {
  int64_t number = 0;
  std::ifstream file(path);
  return file >> number ? std::optional(number) : std::nullopt;
}

// By `group` and all that it is in, as far as they are to be seen: in a container the upper ones are not.
int64_t left_by_group(const std::filesystem::path& root, const std::string& group, const GroupFiles& files) {
  int64_t left = std::numeric_limits<int64_t>::max();
  for (std::filesystem::path path = std::filesystem::path(group).relative_path();; path = path.parent_path()) {
    const std::filesystem::path dir = root / path;
    const auto limit = read_number(dir / files.limit), usage = read_number(dir / files.usage);
    if (limit && usage) {
      int64_t cache = 0;
      std::ifstream statistics(dir / "memory.stat");
      for (std::string line; std::getline(statistics, line);) {
        if (line.starts_with(files.cache)) cache = std::atoll(line.c_str() + files.cache.size());
      }
      left = std::min(left, std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cache)));
    }
    if (path.empty()) return left;
  }
}

}  // namespace

int64_t resident_bytes() { return read_kib_line("/proc/self/status", "VmRSS:"); }
int64_t peak_resident_bytes() { return read_kib_line("/proc/self/status", "VmHWM:"); }
int64_t available_memory_bytes() {
  int64_t available = read_kib_line("/proc/meminfo", "MemAvailable:");
  available = std::min(available, memory_left_by_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const int64_t used = read_kib_line("/proc/self/status", "VmSize:");
    available = std::min(available, std::max<int64_t>(0, static_cast<int64_t>(space.rlim_cur) - used));
  }
  return available;
}

int64_t memory_left_by_groups(const std::filesystem::path& membership, const std::filesystem::path& root) {
  int64_t left = std::numeric_limits<int64_t>::max();
  std::ifstream groups(membership);
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b", of version 2 "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      left = std::min({left, left_by_group(root, group, kVersion2), left_by_group(root / "unified", group, kVersion2)});
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_by_group(root / "memory", group, kVersion1));
    }
  }
  return left;
}

std::string host_name() {
  std::array<char, 256> name{};
  NMOE_CHECK(::gethostname(name.data(), name.size() - 1) == 0, "gethostname: errno {}", errno);
  return name.data();
}

double seconds_since_start() {
  // Since the system started: what went by, and when the process began, field 22 of stat (proc(5)). Its second field is
  // the program's name in brackets, which may hold anything.
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  double start_ticks = 0;
  fields >> start_ticks;
  NMOE_CHECK(!fields.fail() && uptime > 0, "/proc/self/stat reads '{}'", stat);
  return uptime - start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

void use_one_heap() {
  constexpr int kLargestBlock = 32 << 20;  // that a heap may hold: DEFAULT_MMAP_THRESHOLD_MAX
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, kLargestBlock);
  mallopt(M_TRIM_THRESHOLD, 16 * kLargestBlock);
}

void release_free_memory() { malloc_trim(0); }

}  // namespace nmoe
