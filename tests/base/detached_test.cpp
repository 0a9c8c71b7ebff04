#include "base/detached.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <thread>

#include "base/files.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

// What a file holds once a program has put it in place.
std::string wait_for(const fs::path& path) {
  for (int i = 0; i < 1000 && !fs::exists(path); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return read_file(path);
}

// A run may itself have been started for an alert: its programs hear of its own alerts.
TEST(DetachedPrograms, TheVariableTakesThePlaceOfAnOlderOne) {
  const test::TempDir dir;
  const fs::path made = dir.path() / "made";
  ASSERT_EQ(::setenv("NMOE_TEST_DETACHED", "old", 1), 0);
  DetachedPrograms programs;
  ASSERT_TRUE(programs.start({"sh", "-c",
                              "env | grep -c ^NMOE_TEST_DETACHED= > $0.new; "
                              "printf %s \"$NMOE_TEST_DETACHED$1\" >> $0.new; mv $0.new $0",
                              made.string(), " argument"},
                             {"NMOE_TEST_DETACHED", "new"}));
  EXPECT_EQ(wait_for(made), "1\nnew argument");
  EXPECT_FALSE(programs.start({"nmoe-no-such-program"}, {"NMOE_TEST_DETACHED", "new"}));
  EXPECT_FALSE(programs.start({}, {"NMOE_TEST_DETACHED", "new"}));
  ASSERT_EQ(::unsetenv("NMOE_TEST_DETACHED"), 0);
}

TEST(DetachedPrograms, SoManyAtOnceAndNoMore) {
  const test::TempDir dir;
  DetachedPrograms programs;
  const fs::path go_on = dir.path() / "go_on";  // removed with the folder too, so that none outlives the test
  write_file_atomically(go_on, "");
  for (size_t i = 0; i < DetachedPrograms::kMost; ++i) {
    EXPECT_TRUE(programs.start({"sh", "-c", "while [ -e $0 ]; do sleep 0.01; done", go_on.string()}, {"A", "b"}));
  }
  EXPECT_FALSE(programs.start({"true"}, {"A", "b"}));
  fs::remove(go_on);
  bool started = false;
  for (int i = 0; i < 1000 && !started; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    started = programs.start({"true"}, {"A", "b"});
  }
  EXPECT_TRUE(started);
}

}  // namespace
}  // namespace nmoe
