// scripts/racecheck_compare.py: what of a report is new.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace nmoe::test {
namespace {

constexpr const char* kScript = NMOE_SOURCE_DIR "/scripts/racecheck_compare.py";

class RacecheckTest : public TempDirTest {
 protected:
  static std::string race(const std::string& kernel, const std::string& first, const std::string& second, int at = 16) {
    return fmt::format(
        "========= Error: Race reported between {} access at void nmoe::cuda::(anonymous namespace)::{}<(int)64, "
        "nmoe::A<int>>(nmoe::Args)+{:#x}\n"
        "=========     and {} access at void nmoe::cuda::(anonymous namespace)::{}<(int)64, nmoe::A<int>>(nmoe::Args)"
        "+0x4c0 [96 hazards]\n=========\n",
        first, kernel, at, second, kernel);
  }
  static std::string summary(int count) {
    return fmt::format("========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n", count, count);
  }
  Outcome compare(const std::string& report, const std::string& known = "loop_kernel | Read, Write | 2 | barrier\n") {
    write_file_atomically(dir_ / "report", "========= COMPUTE-SANITIZER\n" + report);
    write_file_atomically(dir_ / "list", "# races\n\n" + known);
    return Program(dir_, {"/usr/bin/env", "python3", kScript, "report", "list"}).wait();
  }
};

TEST_F(RacecheckTest, WhatIsInTheListIsNotNew) {
  EXPECT_EQ(compare(summary(0)).exit_code, 0);
  const Outcome known = compare(race("loop_kernel", "Write", "Read") + race("loop_kernel", "Read", "Write", 32) +
                                race("loop_kernel", "Write", "Read") + summary(3));
  EXPECT_EQ(known.exit_code, 0) << known.out;
  EXPECT_EQ(known.out, "");
  EXPECT_EQ(compare(summary(0)).out, "not seen: loop_kernel, read against write\n");
}

TEST_F(RacecheckTest, AnyOtherIs) {
  const Outcome other = compare(race("sum_kernel", "Write", "Read") + summary(1));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_EQ(other.out.find("sum_kernel: 1 places of read against write, 0 are known to be false\n"), 0U) << other.out;
  EXPECT_EQ(compare(race("loop_kernel", "Write", "Write") + summary(1)).exit_code, 1);
  std::string three;  // a place more than was looked at
  for (const int at : {16, 32, 48}) three += race("loop_kernel", "Write", "Read", at);
  EXPECT_EQ(compare(three + summary(3)).exit_code, 1);
  const std::string by_line =
      "========= ERROR: Race reported between Write access at 0xf0 in loop.cu:9:sum_kernel(int*, int*)\n"
      "=========     and Read access at 0x4e0 in loop.cu:24:sum_kernel(int*, int*) [508 hazards]\n";
  EXPECT_EQ(compare(by_line + summary(1)).exit_code, 1);
  EXPECT_EQ(compare(by_line + summary(1), "sum_kernel | Write, Read | 1 | barrier\n").exit_code, 0);
}

// A program that came to no end, a form that nobody reads, a list that says nothing.
TEST_F(RacecheckTest, WhatCannotBeReadIsNoSuccess) {
  EXPECT_EQ(compare(race("loop_kernel", "Write", "Read")).exit_code, 2);
  EXPECT_EQ(compare("========= Error: something else\n" + summary(1)).exit_code, 2);
  EXPECT_EQ(compare(summary(0), "loop_kernel | Read, Write | 2\n").exit_code, 2);
  EXPECT_EQ(compare(summary(0), "loop_kernel | Read, Write | 2 |\n").exit_code, 2);
}

TEST_F(RacecheckTest, TheCommittedListCanBeRead) {
  write_file_atomically(dir_ / "report", summary(0));
  const Outcome outcome = Program(dir_, {"/usr/bin/env", "python3", kScript, "report",
                                         NMOE_SOURCE_DIR "/tests/ops/cuda/racecheck_false.txt"})
                              .wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out, "");
}

}  // namespace
}  // namespace nmoe::test
