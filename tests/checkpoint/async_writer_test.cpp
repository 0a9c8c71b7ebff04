#include "checkpoint/async_writer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "sample_state.h"

namespace nmoe {
namespace {

class AsyncWriterTest : public TemporaryFolderTest {};

// Writes a checkpoint to `dir`, and leaves the last two. The state outlives the work.
std::function<void()> writing(const fs::path& dir, const SampleState& sample) {
  return [dir, &state = sample.state] {
    write_checkpoint(dir, state);
    prune_checkpoints(dir, 2);
  };
}

TEST_F(AsyncWriterTest, WritesAndPrunes) {
  SampleState one(1), two(2), three(3);
  AsyncCheckpointWriter writer;
  writer.submit(writing(dir_, one));
  writer.wait();
  EXPECT_EQ(verify_checkpoint(dir_ / "step_00000001"), std::nullopt);
  writer.submit(writing(dir_, two));
  writer.submit(writing(dir_, three));
  writer.wait();
  EXPECT_EQ(names(), (Names{"step_00000002", "step_00000003"}));
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
}

TEST_F(AsyncWriterTest, TheDestructorWaits) {
  const SampleState sample(1, 20'000);
  { AsyncCheckpointWriter().submit(writing(dir_, sample)); }
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
}

TEST_F(AsyncWriterTest, AFailureSurfacesOnceAtTheNextCall) {
  const SampleState sample(1);
  write_file_atomically(dir_ / "taken", "");  // a file where the folder should be
  AsyncCheckpointWriter writer;
  writer.submit(writing(dir_ / "taken", sample));
  EXPECT_TRUE(contains(error_of([&] { writer.submit(writing(dir_ / "taken", sample)); }).what(), "taken"));
  writer.wait();
  writer.submit(writing(dir_ / "taken", sample));
  EXPECT_TRUE(contains(error_of([&] { writer.wait(); }).what(), "taken"));
  fs::remove(dir_ / "taken");
  writer.submit(writing(dir_ / "taken", sample));
  writer.wait();
  EXPECT_EQ(verify_checkpoint(dir_ / "taken"), std::nullopt);
}

TEST_F(AsyncWriterTest, AFailureNobodyAskedForIsReported) {
  write_file_atomically(dir_ / "taken", "");
  const SampleState sample(1);
  testing::internal::CaptureStderr();
  { AsyncCheckpointWriter().submit(writing(dir_ / "taken", sample)); }
  EXPECT_TRUE(contains(testing::internal::GetCapturedStderr(), "taken"));
}

// Children that write as fast as they can are killed at moments spread over a write and its
// pruning. What they leave must verify, and the next writer must clear their rubbish.
TEST_F(AsyncWriterTest, KillAtAnyMomentLeavesALoadableCheckpoint) {
  constexpr int kRounds = 12;
  constexpr int64_t kRows = 2'000;
  using Clock = std::chrono::steady_clock;
  const auto latest_step = [&] { return *checkpoint_step(*latest_checkpoint(dir_)); };

  const auto begin = Clock::now();
  write_checkpoint(dir_, SampleState(0, kRows).state);
  const auto one_write = Clock::now() - begin;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t before = latest_step();
    const pid_t child = ::fork();
    if (child == 0) {
      AsyncCheckpointWriter writer;
      for (int64_t step = before + 1;; ++step) {
        const SampleState sample(step, kRows);
        // Every third step is written twice: replacing must be as safe as adding.
        for (int i = 0; i < (step % 3 == 0 ? 2 : 1); ++i) writer.submit(writing(dir_, sample));
        writer.wait();
      }
    }
    while (latest_step() == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(2 * one_write * round / kRounds);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);

    EXPECT_EQ(verify_checkpoint(dir_), std::nullopt) << "after kill " << round;
    SampleState target(0, kRows);
    const CheckpointReader reader = CheckpointReader::open(dir_);
    reader.load_model(target.state.model);
    reader.load_optimizer(target.state.optimizer);
  }
  prune_checkpoints(dir_, 2);
  EXPECT_EQ(names().size(), 2u) << "temporary folders of the killed remain";
}

}  // namespace
}  // namespace nmoe
