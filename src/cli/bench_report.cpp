#include "cli/bench_report.h"

#include <fmt/format.h>

#include "base/version.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

nlohmann::ordered_json bench_origin(const std::string& device, const SoftwareVersions& software) {
  return {{"device", device},
          {"driver", software.driver},
          {"toolkit", software.toolkit},
          {"version", version()},
          {"commit", commit()}};
}

void print_bench_origin(const std::string& device, const SoftwareVersions& software, int width) {
  const auto line = [&](const char* name, const std::string& text) { print("{:<{}}{}\n", name, width, text); };
  line("device", device);
  if (!software.driver.empty()) line("software", fmt::format("{}, driver {}", software.toolkit, software.driver));
  line("program", fmt::format("nmoe {} ({})", version(), commit()));
}

}  // namespace nmoe::cli
