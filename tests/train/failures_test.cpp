// What befalls one rank ends the run everywhere within ten seconds, says why, and leaves a checkpoint to go on from.
// NMOE_TEST_DEVICE: on CPU threads, or on two GPUs.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "parallel/processes.h"
#include "support/tensors.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using namespace std::chrono_literals;

using Settings = std::vector<std::string>;

class RankFailureTest : public TrainerTest {
 protected:
  using BeforeStep = std::function<void(Engine& engine, int64_t step)>;
  static constexpr int64_t kBadStep = 6;  // steps are steady by then

  void SetUp() override {
    try {
      make_device({.kind = NMOE_TEST_DEVICE, .index = std::string_view(NMOE_TEST_DEVICE) == "cpu" ? 0 : 1});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static Settings two_ranks(int64_t steps) {
    return {"run.device=" NMOE_TEST_DEVICE, "model.moe.num_experts=8",
            "train.microbatch_seqs=2",      "parallel.ranks=2",
            "parallel.stall_s=2",           "checkpoint.every=2",
            "train.valid_every=3",          fmt::format("train.steps={}", steps)};
  }
  static void train_at(const fs::path& dir, const std::string& name, const Settings& settings, bool resumes,
                       const BeforeStep& before_step) {
    Settings all = settings;
    all.push_back("run.name=" + name);
    train(test::tiny_config(dir, all),
          {.resume = resumes, .version = "0.0.0", .commit = "abc", .before_step = before_step});
  }

  // The error of a run in which rank 1 does `what` before its sixth step.
  Error fail(const BeforeStep& what) {
    std::chrono::steady_clock::time_point begin;
    const Error error = error_of([&] {
      train_at(dir_, "bad", two_ranks(10), /*resumes=*/false, [&](Engine& engine, int64_t step) {
        if (step != kBadStep || engine.rank().index() != 1) return;
        begin = std::chrono::steady_clock::now();
        what(engine, step);
      });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
    EXPECT_EQ(error.exit_code(), 1);
    return error;
  }
  // The run goes on from its last checkpoint to where it would have come. One that is being written may be lost.
  void expect_resumes(int64_t from) {
    const int64_t step = CheckpointReader::open(checkpoints("bad")).info().step;
    EXPECT_TRUE(step == from || (step == 2 && from == 4)) << step;
    train_at(dir_, "bad", two_ranks(10), /*resumes=*/true, {});
    train_at(dir_, "straight", two_ranks(10), /*resumes=*/false, {});
    expect_same_state(checkpoints("bad"), checkpoints("straight"));
  }
};

TEST_F(RankFailureTest, ARankThatThrows) {
  const Error error = fail([](Engine&, int64_t) { throw runtime_error("the roof is on fire", "put it out"); });
  EXPECT_EQ(std::string(error.what()), "the roof is on fire");
  EXPECT_EQ(row("bad").status, RunStatus::kFailed);
  EXPECT_EQ(row("bad").reason, "rank 1 failed: the roof is on fire");
  expect_resumes(4);
}

// It hangs between calls, while the others are in the step and wait for its tokens.
TEST_F(RankFailureTest, ARankThatHangsInAStep) {
  const Error error = fail([](Engine& engine, int64_t) {
    for (;;) {  // until it hears of the failure, which a rank that really hangs does not (RankFailureDeathTest)
      engine.rank().communicator.check();
      std::this_thread::sleep_for(5ms);
    }
  });
  EXPECT_TRUE(contains(error.what(), "rank 0 waited "));
  EXPECT_TRUE(contains(error.what(), " for rank 1 in the dispatch of layer 1 (exchange "));
  EXPECT_TRUE(contains(error.remedy(), "parallel.stall_s"));
  EXPECT_EQ(row("bad").status, RunStatus::kFailed);
  EXPECT_EQ(row("bad").reason, error.what());
  expect_resumes(4);
}

// Its copy of a weight that the other rank updates: what is saved and spread is the other's.
TEST_F(RankFailureTest, ARankWithAValueThatIsNotFinite) {
  const Error error = fail([](Engine& engine, int64_t) {
    for (const Weight& weight : engine.model().weights().all()) {
      if (!weight.spec.is_trained() || weight.spec.group == WeightGroup::kExperts || weight.shard.updated.extent > 0)
        continue;
      return engine.rank().device.ops().fill({weight.value, std::numeric_limits<double>::quiet_NaN()});
    }
    FAIL() << "rank 1 updates a part of every weight";
  });
  EXPECT_TRUE(contains(error.what(), "step 6: loss ") && contains(error.what(), "nan, gradient norm "));
  EXPECT_EQ(row("bad").status, RunStatus::kFailedNan);
  EXPECT_EQ(row("bad").reason, error.what());
  expect_resumes(5);
}

// A rank may take long over what no other waits for in a step.
TEST_F(RankFailureTest, SlowFirstStepsEndNothing) {
  train_at(dir_, "slow", two_ranks(4), /*resumes=*/false, [](Engine& engine, int64_t step) {
    if (step == engine.rank().index() + 1) std::this_thread::sleep_for(2500ms);
  });
  EXPECT_EQ(row("slow").status, RunStatus::kCompleted);
}

// No thread can be ended from outside: so the process is, and the run's row is written by who ends it.
class RankFailureDeathTest : public RankFailureTest, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Rank, RankFailureDeathTest, ::testing::Values(0, 1));

TEST_P(RankFailureDeathTest, ARankThatHangsForEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("NMOE_TEST_HANG", dir_.c_str(), /*replace=*/0);  // the test runs again to die, in this one's folder
  const fs::path dir = std::getenv("NMOE_TEST_HANG");
  const int64_t hanging = GetParam();
  EXPECT_EXIT(train_at(dir, "bad", two_ranks(10), /*resumes=*/false,
                       [&](Engine& engine, int64_t step) {
                         if (step != kBadStep || engine.rank().index() != hanging) return;
                         write_file_atomically(dir / "hangs", "");
                         std::this_thread::sleep_for(1h);
                       }),
              ::testing::ExitedWithCode(1),
              fmt::format("rank {0} waited [^ ]* s for rank {1} in the dispatch of layer 1 (.|\n)*rank {1} did not end",
                          1 - hanging, hanging));
  ::unsetenv("NMOE_TEST_HANG");
  EXPECT_LT(fs::file_time_type::clock::now() - fs::last_write_time(dir / "hangs"), 60s);
  EXPECT_EQ(row("bad").status, RunStatus::kFailed);
  EXPECT_TRUE(contains(row("bad").reason, fmt::format("for rank {} in the dispatch", hanging)));
  expect_resumes(4);
}

// Two processes of a rank each; the one hangs in a step, the other waits for it in a sum between them.
TEST(ProcessFailureTest, ARankThatHangsInAnotherProcess) {
  if (std::string_view(NMOE_TEST_DEVICE) != "cpu") GTEST_SKIP() << "a device for each process: tests/cli";
  const Config config =
      test::tiny_config("/nowhere", {"model.vocab_size=50", "train.microbatch_seqs=2", "parallel.ranks=2"});
  for (int64_t hanging = 0; hanging < 2; ++hanging) {
    std::chrono::steady_clock::time_point begin;
    const auto errors = test::run_processes(2, 2, 60s, [&](Communicator& ranks) {
      test::ReadyEngine ready(config, 1, ranks);
      for (int64_t step = 1;; ++step) {
        if (step == 2) ready.engine.set_patience(500ms);
        if (step == 3 && ranks.index() == hanging) {
          begin = std::chrono::steady_clock::now();
          for (;; std::this_thread::sleep_for(5ms)) ranks.check();
        }
        test::random_step(ready.engine, config, step);
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_TRUE(contains(error->what(), fmt::format(" waited 0.5 s for process {} (", hanging))) << error->what();
      EXPECT_TRUE(contains(error->what(), " in all_reduce_sum of counterparts ("));
    }
  }
}

}  // namespace
}  // namespace nmoe
