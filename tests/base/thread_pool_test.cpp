#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 5, 16));

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  EXPECT_EQ(pool_.num_threads(), GetParam());
  for (const int64_t num_tasks : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
    pool_.parallel_for(num_tasks, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
    for (const auto& count : runs) ASSERT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, GivesAThreadNumberToOneThreadAtATime) {
  std::vector<std::atomic<bool>> busy(static_cast<size_t>(GetParam()));
  std::atomic<int> violations{0};
  pool_.parallel_for(2000, [&](int64_t, int thread) {
    if (thread < 0 || thread >= GetParam()) {
      ++violations;
      return;
    }
    auto& flag = busy[static_cast<size_t>(thread)];
    if (flag.exchange(true)) ++violations;
    flag.store(false);
  });
  EXPECT_EQ(violations, 0);
}

TEST_P(ThreadPoolTest, RethrowsAnExceptionAndStaysUsable) {
  for (int round = 0; round < 20; ++round) {
    try {
      pool_.parallel_for(100, [](int64_t task, int) {
        if (task == 37) throw std::runtime_error("task 37");
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "task 37");
    }
    std::atomic<int64_t> sum{0};
    pool_.parallel_for(100, [&](int64_t task, int) { sum += task; });
    ASSERT_EQ(sum, 4950);
  }
}

// Every task throws: one exception arrives, the others are dropped and nothing hangs.
TEST_P(ThreadPoolTest, SurvivesExceptionsInEveryTask) {
  EXPECT_THROW(pool_.parallel_for(50, [](int64_t, int) { throw std::logic_error("all"); }), std::logic_error);
}

// What one loop wrote is visible to the next, whichever thread runs it.
TEST_P(ThreadPoolTest, LoopsFollowEachOther) {
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 300; ++round) {
    pool_.parallel_for(64, [&](int64_t task, int) { values[static_cast<size_t>((task + round) % 64)] += 1; });
  }
  for (const int64_t value : values) ASSERT_EQ(value, 300);
}

TEST(ThreadPool, ZeroThreadsMeansOneForEachCpu) {
  ThreadPool pool(0);
  EXPECT_GE(available_cpus(), 1);
  EXPECT_EQ(pool.num_threads(), available_cpus());
  EXPECT_THROW(ThreadPool(-1), CheckFailure);
}

// In a process of its own, as the limit would stay.
TEST(ThreadPoolDeathTest, ThreadsThatCannotBeHad) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take more address space than the limit";
#endif
  const auto try_many = [] {
    const rlimit little{.rlim_cur = rlim_t{1} << 30, .rlim_max = rlim_t{1} << 30};
    ::setrlimit(RLIMIT_AS, &little);  // stacks of 8 MiB: for a hundred
    try {
      const ThreadPool pool(4096);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s; %s", error.what(), error.remedy().c_str());
      std::_Exit(error.exit_code());
    }
    std::_Exit(77);
  };
  EXPECT_EXIT(try_many(), testing::ExitedWithCode(1), "of 4096.*ulimit");
}

}  // namespace
}  // namespace nmoe
