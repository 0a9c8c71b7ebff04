#include "base/process.h"

#include <malloc.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
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

}  // namespace

int64_t resident_bytes() { return read_kib_line("/proc/self/status", "VmRSS:"); }
int64_t peak_resident_bytes() { return read_kib_line("/proc/self/status", "VmHWM:"); }
int64_t available_memory_bytes() { return read_kib_line("/proc/meminfo", "MemAvailable:"); }

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
