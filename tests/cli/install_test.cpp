// `cmake --install` makes a tree that works wherever it is put.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::Outcome;
using test::Program;

class InstallTest : public test::TempDirTest {};

TEST_F(InstallTest, TheInstalledProgramRunsWhereItIsMovedTo) {
  const fs::path first = dir_ / "first", prefix = dir_ / "moved";
  const Outcome install = Program(dir_, {NMOE_CMAKE, "--install", NMOE_BUILD_DIR, "--prefix", first.string()}).wait();
  ASSERT_EQ(install.exit_code, 0) << install.err;
  fs::rename(first, prefix);

  const std::string program = (prefix / "bin/n").string();
  const Outcome version = Program(dir_, {program, "--version"}).wait();
  EXPECT_EQ(version.exit_code, 0) << version.err;
  EXPECT_TRUE(contains(version.out, "nmoe "));
  EXPECT_EQ(version.out, Program(dir_, {NMOE_PROGRAM, "--version"}).wait().out);

  // With its own copy of the library that no package has.
  const Outcome libraries = Program(dir_, {"ldd", program}).wait();
  EXPECT_TRUE(contains(libraries.out, (prefix / "bin/../lib/nmoe/libduckdb.so").string()));
  EXPECT_EQ(libraries.out.find("not found"), std::string::npos) << libraries.out;

  const Outcome config =
      Program(dir_, {program, "config", (prefix / "share/nmoe/configs/quickstart.toml").string()}).wait();
  EXPECT_EQ(config.exit_code, 0) << config.err;
  EXPECT_TRUE(contains(config.out, "# fingerprint "));
}

}  // namespace
}  // namespace nmoe
