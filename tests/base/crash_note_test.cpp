#include "base/crash_note.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace nmoe {
namespace {

TEST(CrashNoteDeathTest, ACrashInItsScopeIsTold) {
  const CrashNote outer("the file is damaged", "write it again");
  const CrashNote inner("a page is damaged\x1b", "leave it out");
  for (const int signal : {SIGSEGV, SIGFPE, SIGILL}) {
    EXPECT_EXIT(
        {
          const CrashNote::Scope scope(outer);
          std::raise(signal);
        },
        testing::ExitedWithCode(1), "^error: the file is damaged\nremedy: write it again\n$");
  }
  EXPECT_EXIT(
      {
        const CrashNote::Scope scope(outer);
        const CrashNote::Scope within(inner);
        std::abort();
      },
      testing::ExitedWithCode(1), "^error: a page is damaged[^\x1b]*\nremedy: leave it out\n$");
}

TEST(CrashNoteDeathTest, OtherCrashesAreWhatTheyWere) {
  const CrashNote note("the file is damaged", "write it again");
  EXPECT_EXIT(
      {
        { const CrashNote::Scope scope(note); }
        std::raise(SIGFPE);
      },
      testing::KilledBySignal(SIGFPE), "^$");
  EXPECT_EXIT(
      {
        const CrashNote::Scope scope(note);
        std::thread([] { std::raise(SIGFPE); }).join();
      },
      testing::KilledBySignal(SIGFPE), "^$");
}

}  // namespace
}  // namespace nmoe
