#include "parallel/thread_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "parallel/communicator_checks.h"
#include "parallel/rank_values.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::expect_barriers_to_hold;
using test::expect_gathers_in_rank_order;
using test::expect_values_of_rank_zero;
using test::sum;
using test::sum_in_rank_order;
using test::values_of;
using test::view;
using namespace std::chrono_literals;

constexpr auto kThreadTimeout = 60s;  // far more than any of these takes

class ThreadGroupTest : public ::testing::TestWithParam<int64_t> {
 protected:
  static int64_t count() { return GetParam(); }
  static void run(const std::function<void(Communicator&)>& drive) { run_ranks(count(), kThreadTimeout, drive); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroupTest, ::testing::Values(1, 2, 3, 4));

template <class T>
void expect_sums_in_rank_order(int64_t count) {
  for (const int64_t size : {0, 1, 15, 16, 17, 63, 1000, 4099}) {
    const std::vector<T> expected = sum_in_rank_order<T>(count, size);
    for (int round = 0; round < 3; ++round) {
      run_ranks(count, kThreadTimeout, [&](Communicator& ranks) {
        std::vector<T> values = values_of<T>(ranks.index(), size);
        sum(ranks, view(values));
        EXPECT_EQ(values, expected) << size << " elements on rank " << ranks.index();
      });
    }
  }
}

TEST_P(ThreadGroupTest, SumsAreInRankOrder) {
  expect_sums_in_rank_order<float>(count());
  expect_sums_in_rank_order<double>(count());
  expect_sums_in_rank_order<int32_t>(count());
}

// Values that were chosen for it: another order gives 0 or 2.
TEST(ThreadGroup, TheOrderOfASumShows) {
  const float values[] = {1.0f, 1e8f, -1e8f, 1.0f};
  run_ranks(4, kThreadTimeout, [&](Communicator& ranks) {
    std::vector<float> value = {values[ranks.index()]};
    sum(ranks, view(value));
    EXPECT_EQ(value[0], 1.0f);
  });
}

TEST_P(ThreadGroupTest, SeveralTensorsAreSummedInOneCall) {
  run([&](Communicator& ranks) {
    auto a = values_of<float>(ranks.index(), 33);
    auto b = values_of<double>(ranks.index(), 0);
    auto c = values_of<int32_t>(ranks.index(), 8);
    const Tensor tensors[] = {view(a), view(b), view(c)};
    ranks.all_reduce_sum(tensors, Lane::kCompute);
    EXPECT_EQ(a, sum_in_rank_order<float>(ranks.count(), 33));
    EXPECT_EQ(c, sum_in_rank_order<int32_t>(ranks.count(), 8));
    ranks.all_reduce_sum({}, Lane::kCompute);
  });
}

TEST_P(ThreadGroupTest, TensorsBecomeThoseOfRankZero) {
  run([](Communicator& ranks) { expect_values_of_rank_zero(ranks, 33); });
}

// The planning run of one rank is alone in its group.
TEST(ThreadGroup, TensorsWithoutDataAreLeftAlone) {
  ThreadGroup group(3, 1ms);
  sum(group.communicator(0), Tensor(nullptr, DType::kF32, {4, 8}));
}

TEST_P(ThreadGroupTest, GathersInRankOrder) {
  run([](Communicator& ranks) { expect_gathers_in_rank_order(ranks, count(), 200); });
}

TEST_P(ThreadGroupTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int64_t> arrived{0};
  run([&](Communicator& ranks) { expect_barriers_to_hold(ranks, arrived, count(), 500); });
}

// Calls of all kinds one behind the other, ranks being slow by turns.
TEST_P(ThreadGroupTest, ManyRounds) {
  run([&](Communicator& ranks) {
    std::vector<float> sums(100);
    for (int64_t round = 0; round < 300; ++round) {
      if (round % 50 == ranks.index()) std::this_thread::sleep_for(1ms);
      std::iota(sums.begin(), sums.end(), static_cast<float>(ranks.index() + round));
      sum(ranks, view(sums));
      const auto others = static_cast<float>(count() * (count() - 1) / 2);
      for (size_t i = 0; i < sums.size(); ++i) {
        ASSERT_EQ(sums[i], static_cast<float>(count()) * static_cast<float>(static_cast<int64_t>(i) + round) + others);
      }
      ASSERT_EQ(ranks.all_gather_values(round).back(), round);
    }
  });
}

TEST(ThreadGroup, AFailingRankEndsAllWithItsOwnError) {
  for (const int64_t count : {2, 4}) {
    for (int64_t failing = 0; failing < count; ++failing) {
      std::atomic<int> told{0};
      const Error error = error_of([&] {
        run_ranks(count, kThreadTimeout, [&](Communicator& ranks) {
          std::vector<float> values(1000);
          sum(ranks, view(values));
          if (ranks.index() == failing) throw usage_error("the disk is on fire", "put it out");
          try {
            for (;;) sum(ranks, view(values));
          } catch (const PeerFailure& failure) {
            EXPECT_EQ(std::string(failure.what()), fmt::format("rank {} failed: the disk is on fire", failing));
            EXPECT_EQ(failure.remedy(), "put it out");
            ++told;
            EXPECT_THROW(ranks.barrier(), PeerFailure);
            EXPECT_THROW(ranks.all_gather("x"), PeerFailure);
            throw;
          }
        });
      });
      EXPECT_EQ(std::string(error.what()), "the disk is on fire");
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(told, count - 1);
    }
  }
}

// Tensors are freed as a rank unwinds: nobody may be summing them then.
TEST(ThreadGroup, FailuresBetweenSums) {
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(run_ranks(3, kThreadTimeout,
                           [&](Communicator& ranks) {
                             for (int i = 0;; ++i) {
                               std::vector<double> values(5000);
                               if (ranks.index() == round % 3 && i == round % 5) throw std::runtime_error("enough");
                               sum(ranks, view(values));
                             }
                           }),
                 std::runtime_error);
  }
}

TEST(ThreadGroup, ATimeoutNamesWhoWaitedForWhom) {
  std::atomic<bool> timed_out{false};
  const Error error = error_of([&] {
    run_ranks(2, 1s, [&](Communicator& ranks) {
      ranks.barrier();
      if (ranks.index() == 1) {
        while (!timed_out) std::this_thread::sleep_for(1ms);
        EXPECT_THROW(ranks.barrier(), PeerFailure);
        return;
      }
      try {
        ranks.all_gather("x");
      } catch (...) {
        timed_out = true;
        throw;
      }
    });
  });
  EXPECT_EQ(std::string(error.what()),
            "rank 0 waited 1 s for rank 1 in all_gather (2), which last came to barrier (1)");
  EXPECT_TRUE(contains(error.remedy(), "parallel.timeout_s"));
}

// One may ask for more time, and is waited for from then on.
TEST(ThreadGroup, OthersHaveThePatienceThatARankAskedFor) {
  run_ranks(2, kThreadTimeout, [](Communicator& ranks) {
    ranks.barrier();
    if (ranks.index() == 1) {
      ranks.set_patience(250ms);
      ranks.set_patience(kThreadTimeout);
      std::this_thread::sleep_for(400ms);
      ranks.set_patience(500ms);  // counted from here
    }
    ranks.barrier();
  });
  const Error error = error_of([&] {
    run_ranks(2, kThreadTimeout, [&](Communicator& ranks) {
      ranks.set_patience(100ms);
      while (ranks.index() == 1) {
        ranks.check();
        std::this_thread::sleep_for(1ms);
      }
      ranks.barrier();
    });
  });
  EXPECT_TRUE(contains(error.what(), "rank 0 waited 0.1 s for rank 1 in barrier (1), which has made no call"));
}

// When nobody waits for it either, as when the devices of all hang.
TEST(ThreadGroup, ARankThatMakesNoCallFails) {
  const Error error = error_of([&] {
    run_ranks(2, kThreadTimeout, [&](Communicator& ranks) {
      ranks.barrier();
      ranks.set_patience(ranks.index() == 1 ? 100ms : 30s);
      for (;;) {
        ranks.check();
        std::this_thread::sleep_for(1ms);
      }
    });
  });
  EXPECT_TRUE(contains(error.what(), "rank 1 has made no call for "));
  EXPECT_TRUE(contains(error.what(), "it last came to barrier (1)"));
}

TEST(ThreadGroup, AFailureIsToldOnceToWhoWantsToKnow) {
  std::array<std::atomic<int>, 3> told{};
  EXPECT_THROW(run_ranks(3, kThreadTimeout,
                         [&](Communicator& ranks) {
                           const auto index = static_cast<size_t>(ranks.index());
                           auto handle = ranks.on_failure([&told, index] { ++told[index]; });
                           if (index == 2) handle.reset();
                           ranks.barrier();
                           if (index == 1) throw std::runtime_error("enough");
                           EXPECT_THROW(ranks.barrier(), PeerFailure);
                           while (index == 0 && told[0] == 0) std::this_thread::sleep_for(1ms);
                           int late = 0;
                           const auto again = ranks.on_failure([&] { ++late; });
                           EXPECT_EQ(late, 1);
                         }),
               std::runtime_error);
  EXPECT_EQ(told[0], 1);
  EXPECT_EQ(told[2], 0);
}

TEST(ThreadGroup, ARankThatEndsEarlyIsFound) {
  try {
    run_ranks(3, kThreadTimeout, [](Communicator& ranks) {
      if (ranks.index() != 2) ranks.barrier();
    });
    FAIL() << "no failure";
  } catch (const CheckFailure& failure) {
    EXPECT_TRUE(contains(failure.what(), "rank 2 has ended, and rank "));
    EXPECT_TRUE(contains(failure.what(), "waits for it in barrier (1)"));
  }
}

TEST(ThreadGroup, RanksThatDifferAreFound) {
  const auto failure_of = [](const std::function<void(Communicator&)>& drive) -> std::string {
    try {
      run_ranks(2, kThreadTimeout, drive);
    } catch (const CheckFailure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_TRUE(contains(failure_of([](Communicator& ranks) {
                         if (ranks.index() == 0) return ranks.barrier();
                         ranks.all_gather("x");
                       }),
                       "ranks differ in call 1"));
  EXPECT_TRUE(contains(failure_of([](Communicator& ranks) {
                         std::vector<float> values(static_cast<size_t>(4 + ranks.index()));
                         sum(ranks, view(values));
                       }),
                       "ranks differ in tensor 0 of all_reduce_sum"));
  EXPECT_TRUE(contains(failure_of([](Communicator& ranks) {
                         std::vector<uint8_t> values(4);
                         sum(ranks, view(values));
                       }),
                       "a sum over ranks of U8"));
}

TEST(ThreadGroup, TheDomainOfThreadsIsAllOfThem) {
  EXPECT_EQ(&single_rank().process(), &single_rank());
  run_ranks(2, kThreadTimeout, [&](Communicator& ranks) { EXPECT_EQ(&ranks.process(), &ranks); });
}

// A process's share of a run's ranks speaks of them by their numbers there.
TEST(ThreadGroup, MessagesCountFromTheFirstRank) {
  ThreadGroup group(2, kThreadTimeout, /*first_rank=*/6);
  EXPECT_EQ(group.communicator(1).index(), 1);
  group.run(
      [&](int64_t rank) {
        if (rank == 1) throw runtime_error("no more", "");
        EXPECT_EQ(std::string(error_of([&] { group.communicator(0).barrier(); }).what()), "rank 7 failed: no more");
      },
      [](int64_t rank, const std::exception_ptr&) { EXPECT_EQ(rank, 1); });
}

TEST(ThreadGroup, APeerFailureIsPassedOnAsItIs) {
  ThreadGroup group(1, kThreadTimeout);
  group.fail(0, std::make_exception_ptr(PeerFailure("the other host burns", "put it out")));
  const Error error = error_of([&] { group.communicator(0).barrier(); });
  EXPECT_EQ(std::string(error.what()), "the other host burns");
  EXPECT_EQ(error.remedy(), "put it out");
}

TEST(ThreadGroup, RankZeroCompletesACallForAll) {
  ThreadGroup group(3, kThreadTimeout);
  std::vector<int> values = {1, 2, 3};
  group.run(
      [&](int64_t rank) {
        for (int round = 0; round < 100; ++round) {
          group.together(rank, {.name = "double", .bytes = fmt::format("{}", rank)},
                         [&](std::span<const ThreadGroup::Call* const> calls) {
                           EXPECT_EQ(rank, 0);
                           for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(calls[i]->bytes, fmt::format("{}", i));
                           for (int& value : values) value = 1 - value;
                         });
        }
        EXPECT_EQ(values[static_cast<size_t>(rank)], static_cast<int>(rank) + 1);
      },
      [](int64_t, const std::exception_ptr&) { ADD_FAILURE() << "a rank failed"; });
}

TEST(ThreadGroup, RankZeroIsTheCallingThread) {
  const auto caller = std::this_thread::get_id();
  for (const int64_t count : {1, 3}) {
    run_ranks(count, kThreadTimeout,
              [&](Communicator& ranks) { EXPECT_EQ(std::this_thread::get_id() == caller, ranks.index() == 0); });
  }
}

// A thread cannot be ended from outside: the failure is printed, and the process ends without the rank that hangs.
TEST(RunRanksDeathTest, ARankThatHangsAfterAFailureEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    run_ranks(3, std::chrono::seconds(1), [](Communicator& ranks) {
      if (ranks.index() == 2) std::this_thread::sleep_for(std::chrono::minutes(5));
      if (ranks.index() == 1) throw runtime_error("the disk is full", "free some space");
      ranks.barrier();
    });
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1), "the disk is full[^x]*rank 2 did not end within 1 s");
}

}  // namespace
}  // namespace nmoe
