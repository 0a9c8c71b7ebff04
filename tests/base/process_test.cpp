#include "base/process.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/temp_dir.h"

namespace nmoe {
namespace {

class ProcessTest : public test::TempDirTest {
 protected:
  void write(const fs::path& name, std::string_view content) const {
    make_directories((dir_ / name).parent_path());
    write_file_atomically(dir_ / name, content);
  }
  int64_t left() const { return memory_left_by_groups(dir_ / "membership", dir_ / "sys"); }
};

TEST_F(ProcessTest, NoGroupNoLimit) {
  EXPECT_EQ(left(), std::numeric_limits<int64_t>::max());
  write("membership", "0::/a\n");
  write("sys/a/memory.max", "max\n");
  write("sys/a/memory.current", "100\n");
  EXPECT_EQ(left(), std::numeric_limits<int64_t>::max());
  EXPECT_GT(available_memory_bytes(), 0);
}

TEST_F(ProcessTest, TheLeastOfAllGroupsHolds) {
  write("membership", "0::/a/b\n");
  write("sys/a/memory.max", "1000\n");
  write("sys/a/memory.current", "700\n");
  write("sys/a/memory.stat", "anon 400\nfile 300\ninactive_file 250\n");
  EXPECT_EQ(left(), 1000 - (700 - 250));
  write("sys/a/b/memory.max", "500\n");
  write("sys/a/b/memory.current", "400\n");
  EXPECT_EQ(left(), 100);
  write("sys/a/b/memory.current", "600\n");
  EXPECT_EQ(left(), 0);
}

// In a container of version 1 the group of the host is not to be seen, but its own limit is.
TEST_F(ProcessTest, VersionOne) {
  write("membership", "9:cpu:/x\n4:memory:/docker/abc\n0::/\n");
  write("sys/memory/memory.limit_in_bytes", "2000\n");
  write("sys/memory/memory.usage_in_bytes", "1500\n");
  write("sys/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  EXPECT_EQ(left(), 1000);
}

}  // namespace
}  // namespace nmoe
