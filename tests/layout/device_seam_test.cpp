// Above src/ops, nothing names a kind of device: what some devices have and others lack is asked of Device.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe::test {
namespace {

// "file:line: text" of lines that name one.
std::vector<std::string> names_of_devices(const std::string& file, const std::string& text) {
  static const std::regex kName(
      R"(\bcuda::|\bplanned::|\bcpu::|#include "ops/(cuda|cpu|planned)/|dynamic_cast<[^>]*Device\b)");
  std::vector<std::string> found;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (std::regex_search(line, kName)) found.push_back(file + ":" + std::to_string(number) + ": " + line);
  }
  return found;
}

TEST(DeviceSeam, NothingAboveTheOperationsNamesADevice) {
  const fs::path src = fs::path(NMOE_SOURCE_DIR) / "src";
  const std::set<std::string> extensions = {".h", ".cpp"};
  size_t num_files = 0;
  std::string found;
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    const fs::path file = entry.path().lexically_relative(src);
    if (!entry.is_regular_file() || !extensions.contains(file.extension().string()) || *file.begin() == "ops") continue;
    ++num_files;
    for (const std::string& name : names_of_devices(file.string(), read_file(entry.path()))) found += name + "\n";
  }
  EXPECT_GT(num_files, 300U);
  EXPECT_EQ(found, "");
}

TEST(DeviceSeam, NoDeviceIsCastToItsKind) {
  const fs::path ops = fs::path(NMOE_SOURCE_DIR) / "src" / "ops";
  for (const auto& entry : fs::recursive_directory_iterator(ops)) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path()).find("dynamic_cast"), std::string::npos) << entry.path();
  }
}

TEST(DeviceSeam, NamesAreFound) {
  EXPECT_EQ(names_of_devices("a.h", "int x;\nstd::optional<cuda::Part> part;\n"),
            std::vector<std::string>{"a.h:2: std::optional<cuda::Part> part;"});
  EXPECT_EQ(names_of_devices("a.h", "#include \"ops/cuda/parts.h\"\nauto* d = dynamic_cast<CudaDevice*>(&x);").size(),
            2U);
}

}  // namespace
}  // namespace nmoe::test
