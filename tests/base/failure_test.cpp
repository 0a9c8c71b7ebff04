#include "base/failure.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;

// Of whatever says so, with the same remedy.
TEST(AsError, MemoryIsNamed) {
  const std::error_code none = std::make_error_code(std::errc::not_enough_memory);
  const std::bad_alloc plain;
  const std::bad_array_new_length length;
  const std::system_error system(none, "clone");
  const fs::filesystem_error file("cannot copy", "a", none);
  for (const std::exception* exception : std::vector<const std::exception*>{&plain, &length, &system, &file}) {
    const Error error = as_error(*exception);
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_TRUE(contains(error.what(), "memory is used up"));
    EXPECT_TRUE(contains(error.remedy(), "ulimit -v"));
    EXPECT_FALSE(contains(error.remedy(), "disk"));
    EXPECT_FALSE(contains(error.remedy(), "report"));
  }
  EXPECT_EQ(io_error("read", "a", ENOMEM).remedy(), as_error(plain).remedy());
  EXPECT_TRUE(contains(io_error("write", "a", ENOSPC).remedy(), "free space"));
}

TEST(AsError, TheRestIsAsItWas) {
  const Error mine = as_error(usage_error("what", "remedy"));
  EXPECT_EQ(mine.exit_code(), 2);
  EXPECT_EQ(mine.what(), std::string("what"));
  EXPECT_EQ(mine.remedy(), "remedy");
  EXPECT_TRUE(
      contains(as_error(fs::filesystem_error("x", std::make_error_code(std::errc::no_space_on_device))).remedy(),
               "disk is not full"));
  EXPECT_TRUE(contains(as_error(std::runtime_error("odd")).remedy(), "please report it"));
}

}  // namespace
}  // namespace nmoe
