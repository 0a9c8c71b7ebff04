#include "layout/device_functions.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace nmoe::test {
namespace {

TEST(DeviceFunctions, NoBodyIsLong) {
  const std::set<std::string> extensions = {".h", ".cuh", ".cu"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(NMOE_SOURCE_DIR) / "src")) {
    if (entry.is_regular_file() && extensions.contains(entry.path().extension().string())) {
      files.push_back(entry.path());
    }
  }
  EXPECT_EQ(one_a_line(long_device_functions(files, 150, read_file)), "");
}

TEST(DeviceFunctions, ALongBodyIsFound) {
  const std::string text =
      "__device__ int declared(int x);\n"
      "__constant__ int table[2];\n"
      "__global__ void __launch_bounds__(kThreads)\n"
      "    kernel(const int* x) {\n"
      "  // a brace in a comment: {\n"
      "  if (x[0] == '}') return;\n"
      "}\n"
      "NMOE_HOST_DEVICE inline int short_one() { return 1; }\n"
      "int host() {\n\n\n\n\n\n}\n";
  const auto read = [&](const fs::path&) { return text; };
  EXPECT_EQ(long_device_functions({"a.cu"}, 3, read),
            std::vector<std::string>{"a.cu:4: a function for GPUs of 4 lines; at most 3"});
  EXPECT_EQ(long_device_functions({"a.cu"}, 4, read), std::vector<std::string>{});
}

}  // namespace
}  // namespace nmoe::test
