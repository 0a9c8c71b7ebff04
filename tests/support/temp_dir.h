// A folder for the files of a test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "base/error.h"
#include "base/files.h"

namespace nmoe::test {

// A fresh folder, removed at the end with all that is in it.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "nmoe-test-XXXXXX").string();
    NMOE_CHECK(::mkdtemp(pattern.data()) != nullptr, "no folder can be made like {}", pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A test with a folder of its own.
class TempDirTest : public testing::Test {
 private:
  TempDir temp_;

 protected:
  const fs::path& dir_ = temp_.path();
};

}  // namespace nmoe::test
