// Ranks of several processes meet as those of one do (thread_group_test.cpp).
#include "parallel/process_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "parallel/communicator_checks.h"
#include "parallel/mesh.h"
#include "parallel/processes.h"
#include "parallel/rank_values.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::at_once;
using test::contains;
using test::expect_barriers_to_hold;
using test::expect_gathers_in_rank_order;
using test::expect_values_of_rank_zero;
using test::free_port;
using test::launch_of;
using test::run_processes;
using test::sum;
using test::sum_in_rank_order;
using test::values_of;
using test::view;
using namespace std::chrono_literals;

constexpr auto kTimeout = 60s;  // far more than any of these takes

struct RankLayout {
  int64_t processes;
  int64_t ranks;
};
void PrintTo(const RankLayout& layout, std::ostream* out) { *out << layout.ranks << " on " << layout.processes; }

class ProcessGroupTest : public ::testing::TestWithParam<RankLayout> {
 protected:
  static int64_t count() { return GetParam().ranks; }
  static void run(const std::function<void(Communicator&)>& drive) {
    for (const auto& error : run_processes(GetParam().processes, count(), kTimeout, drive)) {
      EXPECT_FALSE(error.has_value()) << error->what();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, ProcessGroupTest,
                         ::testing::Values(RankLayout{1, 2}, RankLayout{2, 2}, RankLayout{2, 4}, RankLayout{3, 3},
                                           RankLayout{4, 4}));

template <class T>
void expect_sum_in_rank_order(Communicator& ranks, int64_t size) {
  std::vector<T> values = values_of<T>(ranks.index(), size);
  sum(ranks, view(values));
  EXPECT_EQ(values, sum_in_rank_order<T>(ranks.count(), size)) << size << " elements on rank " << ranks.index();
}

TEST_P(ProcessGroupTest, SumsAreInRankOrder) {
  run([](Communicator& ranks) {
    for (const int64_t size : {0, 1, 15, 63, 4099}) {
      expect_sum_in_rank_order<float>(ranks, size);
      expect_sum_in_rank_order<double>(ranks, size);
      expect_sum_in_rank_order<int32_t>(ranks, size);
    }
  });
}

// More than travels at once, in pieces that do not fit one behind the other.
TEST_P(ProcessGroupTest, LargeTensorsAreCutBetweenElements) {
  run([](Communicator& ranks) {
    auto a = values_of<int32_t>(ranks.index(), 262'143);  // 4 bytes less than a chunk
    auto b = values_of<double>(ranks.index(), 300'001);
    auto c = values_of<float>(ranks.index(), 1'000'003);
    const Tensor tensors[] = {view(a), view(b), view(c)};
    ranks.all_reduce_sum(tensors, Lane::kCompute);
    EXPECT_TRUE(a == sum_in_rank_order<int32_t>(ranks.count(), 262'143));
    EXPECT_TRUE(b == sum_in_rank_order<double>(ranks.count(), 300'001));
    EXPECT_TRUE(c == sum_in_rank_order<float>(ranks.count(), 1'000'003));
  });
}

TEST_P(ProcessGroupTest, TensorsBecomeThoseOfRankZero) {
  run([](Communicator& ranks) { expect_values_of_rank_zero(ranks, 500'003); });
}

TEST_P(ProcessGroupTest, GathersInRankOrder) {
  run([](Communicator& ranks) { expect_gathers_in_rank_order(ranks, count(), 30); });
}

TEST_P(ProcessGroupTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int64_t> arrived{0};
  run([&](Communicator& ranks) { expect_barriers_to_hold(ranks, arrived, count(), 50); });
}

TEST_P(ProcessGroupTest, TheRanksOfAProcessMeetAmongThemselves) {
  run([](Communicator& ranks) {
    Communicator& domain = ranks.process();
    const int64_t each = GetParam().ranks / GetParam().processes;
    ASSERT_EQ(domain.count(), each);
    EXPECT_EQ(domain.index(), ranks.index() % each);
    for (int64_t round = 0; round < 20; ++round) {
      std::vector<int32_t> value = {static_cast<int32_t>(ranks.index())};
      sum(domain, view(value));
      const int64_t first = ranks.index() / each * each;
      EXPECT_EQ(value[0], each * first + each * (each - 1) / 2);
      EXPECT_EQ(domain.all_gather_values(ranks.index())[0], first);
      sum(ranks, view(value));
    }
  });
}

// Rank i of each process and the i-th of all others.
TEST_P(ProcessGroupTest, CounterpartsMeetAcrossProcesses) {
  run([](Communicator& ranks) {
    const int64_t each = GetParam().ranks / GetParam().processes, here = ranks.index() % each;
    const Mesh mesh(ranks);
    Communicator& counterparts = mesh.expert_data();
    ASSERT_EQ(counterparts.count(), GetParam().processes);
    EXPECT_EQ(counterparts.index(), ranks.index() / each);
    EXPECT_EQ(mesh.experts().count() * mesh.expert_data().count(), mesh.data().count() * mesh.context().count());
    for (int64_t round = 0; round < 20; ++round) {
      // Ranks of one process may have tensors of different sizes.
      std::vector<int32_t> values(static_cast<size_t>(here + 1), static_cast<int32_t>(ranks.index()));
      sum(counterparts, view(values));
      const int64_t processes = GetParam().processes;
      const int64_t total = processes * here + each * processes * (processes - 1) / 2;
      EXPECT_EQ(values, std::vector<int32_t>(values.size(), static_cast<int32_t>(total)));
      const std::vector<int64_t> all = counterparts.all_gather_values(ranks.index());
      for (int64_t process = 0; process < processes; ++process) {
        EXPECT_EQ(all.at(static_cast<size_t>(process)), process * each + here);
      }
    }
  });
}

// ---- failures ----------------------------------------------------------------------------------

TEST(ProcessGroup, AFailingRankEndsAllProcesses) {
  for (int64_t failing = 0; failing < 4; ++failing) {
    std::atomic<int> told{0};
    const auto errors = run_processes(2, 4, kTimeout, [&](Communicator& ranks) {
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
    for (int64_t process = 0; process < 2; ++process) {
      const auto& error = errors[static_cast<size_t>(process)];
      ASSERT_TRUE(error.has_value());
      const bool own = failing / 2 == process;
      EXPECT_EQ(std::string(error->what()),
                own ? "the disk is on fire" : fmt::format("rank {} failed: the disk is on fire", failing));
      EXPECT_EQ(error->kind(), own ? ErrorKind::kUsage : ErrorKind::kRuntime);
    }
    EXPECT_EQ(told, 3);
  }
}

// Tensors are freed as a rank unwinds: nobody may be summing them then.
TEST(ProcessGroup, FailuresBetweenSums) {
  for (int round = 0; round < 12; ++round) {
    const auto errors = run_processes(2, 4, kTimeout, [&](Communicator& ranks) {
      for (int i = 0;; ++i) {
        std::vector<double> values(5000);
        if (ranks.index() == round % 4 && i == round % 5) throw runtime_error("enough", "");
        sum(ranks, view(values));
      }
    });
    for (const auto& error : errors) EXPECT_TRUE(contains(error->what(), "enough"));
  }
}

// What ranks agree on in a call is known to all, whoever fails as soon as it knows.
TEST(ProcessGroup, ACallThatAllHaveMadeIsCompleted) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> agreed{0};
    const auto errors = run_processes(3, 6, kTimeout, [&](Communicator& ranks) {
      ranks.barrier();
      EXPECT_EQ(ranks.all_gather(std::string(100'000, 'x')).size(), 6u);
      ++agreed;
      throw runtime_error("all agree to end", "");
    });
    EXPECT_EQ(agreed, 6);
    for (const auto& error : errors) EXPECT_EQ(std::string(error->what()), "all agree to end");
  }
}

TEST(ProcessGroup, WhatAProcessCannotPrepareEndsAll) {
  for (int64_t failing = 0; failing < 2; ++failing) {
    const int port = free_port();
    const auto errors = at_once(2, [&](int64_t process) {
      run_ranks(
          {.launch = launch_of(process, 2, port), .ranks = 4, .timeout = kTimeout},
          [&] {
            if (process == failing) throw usage_error("there are no data", "prepare some");
          },
          [](Communicator& ranks) { ranks.barrier(); });
    });
    const auto index = static_cast<size_t>(failing);
    EXPECT_EQ(std::string(errors[index]->what()), "there are no data");
    EXPECT_EQ(std::string(errors[1 - index]->what()), fmt::format("rank {} failed: there are no data", 2 * failing));
  }
}

TEST(ProcessGroup, ATimeoutNamesTheProcessThatAllWaitFor) {
  for (int64_t slow = 0; slow < 3; ++slow) {
    std::atomic<bool> ended{false};
    const auto errors = run_processes(3, 3, 2s, [&](Communicator& ranks) {
      ranks.barrier();
      if (ranks.index() == slow) {
        while (!ended) std::this_thread::sleep_for(1ms);
        EXPECT_THROW(ranks.barrier(), PeerFailure);
        return;
      }
      try {
        ranks.all_gather("x");
      } catch (...) {
        ended = true;
        throw;
      }
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_TRUE(contains(error->what(), "waited 2 s for process " + std::to_string(slow)));
      EXPECT_TRUE(
          contains(error->what(), fmt::format("rank {}) in all_gather (2), which last came to barrier (1)", slow)));
      EXPECT_TRUE(contains(error->remedy(), "parallel.timeout_s"));
    }
  }
}

TEST(ProcessGroup, AProcessThatEndsEarlyIsFound) {
  const auto errors = run_processes(3, 3, kTimeout, [](Communicator& ranks) {
    if (ranks.index() != 2) ranks.barrier();
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(contains(error->what(), "rank 2) has ended, and process "));
    EXPECT_TRUE(contains(error->what(), "waits for it in barrier (1)"));
  }
}

TEST(ProcessGroup, ProcessesThatDifferAreFound) {
  const auto failure_of = [](const std::function<void(Communicator&)>& drive) {
    return std::string(run_processes(2, 2, kTimeout, drive)[0]->what());
  };
  EXPECT_TRUE(contains(failure_of([](Communicator& ranks) {
                         if (ranks.index() == 0) return ranks.barrier();
                         ranks.all_gather("x");
                       }),
                       "ranks differ in call 1: barrier"));
  EXPECT_TRUE(contains(failure_of([](Communicator& ranks) {
                         std::vector<float> values(static_cast<size_t>(4 + ranks.index()));
                         sum(ranks, view(values));
                       }),
                       "ranks differ in tensor 0 of all_reduce_sum in call 1: 4 elements of F32 in process 0, 5 of"));
}

TEST(ProcessGroup, RanksAreSharedEquallyOrRefused) {
  const Error error = test::error_of([] {
    run_ranks(
        {.launch = launch_of(0, 2, 1), .ranks = 3}, [] {}, [](Communicator&) {});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "parallel.ranks = 3 cannot be shared equally by 2 processes"));
  EXPECT_TRUE(contains(error.remedy(), "a multiple of 2"));
}

}  // namespace
}  // namespace nmoe
