// `cmake --install` makes a tree that works wherever it is put, and `cpack` a Debian package of it.
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

TEST_F(InstallTest, TheDebianPackageHasTheProgramAndNamesItsLibraries) {
  for (const char* tool : {"dpkg-shlibdeps", "dpkg-deb", "file"}) {
    if (Program(dir_, {"sh", "-c", std::string("command -v ") + tool}).wait().exit_code != 0)
      GTEST_SKIP() << "there is no " << tool << ": apt-get install dpkg-dev file";
  }
  const Outcome pack =
      Program(dir_, {NMOE_CPACK, "--config", NMOE_BUILD_DIR "/CPackConfig.cmake", "-B", dir_.string()}).wait();
  ASSERT_EQ(pack.exit_code, 0) << pack.out << pack.err;
  fs::path package;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() == ".deb") package = entry.path();
  }
  ASSERT_TRUE(contains(package.filename().string(), "nmoe_")) << pack.out;

  // Every library that the program is linked to is inside, or of a package that is named.
  const Outcome depends = Program(dir_, {"dpkg-deb", "--field", package.string(), "Depends"}).wait();
  EXPECT_TRUE(contains(depends.out, "libc6 (>= ")) << depends.out;
  EXPECT_TRUE(contains(depends.out, "libsqlite3-0")) << depends.out;

  const fs::path root = dir_ / "root";
  ASSERT_EQ(Program(dir_, {"dpkg-deb", "--extract", package.string(), root.string()}).wait().exit_code, 0);
  const std::string program = (root / "usr/bin/n").string();
  const Outcome version = Program(dir_, {program, "--version"}).wait();
  EXPECT_EQ(version.out, Program(dir_, {NMOE_PROGRAM, "--version"}).wait().out) << version.err;
  EXPECT_TRUE(
      contains(Program(dir_, {"ldd", program}).wait().out, (root / "usr/bin/../lib/nmoe/libduckdb.so").string()));
  for (const char* terms : {"copyright", "LICENSE.duckdb", "LICENSE.uplot"}) {
    EXPECT_TRUE(fs::exists(root / "usr/share/doc/nmoe" / terms)) << terms;
  }
}

}  // namespace
}  // namespace nmoe
