#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "checkpoint/reader.h"
#include "sample_state.h"

namespace nmoe {
namespace {

class CheckpointTest : public TemporaryFolderTest {};

TEST_F(CheckpointTest, StepsInFolderNames) {
  EXPECT_EQ(checkpoint_step("runs/step_00000040"), 40);
  EXPECT_EQ(checkpoint_step("step_1234567890"), 1234567890);
  for (const char* other : {"step_40", "step_0000004x", "step_-0000040", "step_+0000040", "step_", "step_0123456789",
                            ".step_00000040.unfinished-0123456789ab", "manifest.json"}) {
    EXPECT_EQ(checkpoint_step(other), std::nullopt) << other;
  }
}

TEST_F(CheckpointTest, WritesTheDescribedFolder) {
  const fs::path path = write_checkpoint(dir_ / "new" / "folder", SampleState(40).state);
  EXPECT_EQ(path, dir_ / "new" / "folder" / "step_00000040");
  EXPECT_EQ(names_in(path),
            (Names{"config.toml", "manifest.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"}));
}

TEST_F(CheckpointTest, ListsByStepNotByName) {
  for (const int64_t step : {99'999'999L, 20L, 100'000'000L, 3L}) {
    write_checkpoint(dir_, SampleState(step).state);
  }
  make_directories(dir_ / "step_4");
  make_directories(dir_ / ".step_00000099.unfinished-0123456789ab");
  const auto found = list_checkpoints(dir_);
  EXPECT_EQ(found, (std::vector<fs::path>{dir_ / "step_00000003", dir_ / "step_00000020", dir_ / "step_99999999",
                                          dir_ / "step_100000000"}));
  EXPECT_EQ(latest_checkpoint(dir_), found.back());
  EXPECT_TRUE(list_checkpoints(dir_ / "nowhere").empty());
  EXPECT_EQ(latest_checkpoint(dir_ / "nowhere"), std::nullopt);
}

TEST_F(CheckpointTest, PrunesTheOldest) {
  for (int64_t step = 1; step <= 5; ++step) write_checkpoint(dir_, SampleState(step).state);
  prune_checkpoints(dir_, 0);
  EXPECT_EQ(list_checkpoints(dir_).size(), 5u);
  prune_checkpoints(dir_, 2);
  EXPECT_EQ(names(), (Names{"step_00000004", "step_00000005"}));
  prune_checkpoints(dir_ / "nowhere", 2);
}

TEST_F(CheckpointTest, PruneRemovesWhatTheDeadLeft) {
  write_checkpoint(dir_, SampleState(1).state);
  make_directories(dir_ / ".step_00000002.unfinished-0123456789ab");
  write_file_atomically(dir_ / ".step_00000002.unfinished-0123456789ab/model.safetensors", "half");
  make_directories(dir_ / ".mine.unfinished-x");
  const CheckpointDraft of_the_living(dir_, 3);
  prune_checkpoints(dir_, 0);
  EXPECT_EQ(names(), (Names{".mine.unfinished-x", of_the_living.folder().filename(), "step_00000001"}));
}

TEST_F(CheckpointTest, AFolderIsOneProcessesAtATime) {
  const fs::path folder = dir_ / "new" / "folder";
  make_directories(folder / ".step_00000002.unfinished-0123456789ab");
  const CheckpointFolder mine(folder);
  EXPECT_EQ(names_in(folder), (Names{".lock"}));
  const Error error = error_of([&] { CheckpointFolder second(folder); });
  EXPECT_TRUE(contains(error.what(), folder.string()));
  EXPECT_TRUE(contains(error.what(), fmt::format("process {} on ", ::getpid())));
}

TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  SampleState first(7);
  SampleState second(7);
  second.state.config_toml = "# second\n";
  write_checkpoint(dir_, first.state);
  write_checkpoint(dir_, second.state);
  EXPECT_EQ(names(), (Names{"step_00000007"}));
  EXPECT_EQ(CheckpointReader::open(dir_).config_toml(), "# second\n");
}

// A full disk, played by a limit on the size of files: at whichever file it strikes, the old
// checkpoint stays and nothing is left of the new.
TEST_F(CheckpointTest, AFullDiskLeavesNothingHalfWritten) {
  write_checkpoint(dir_, SampleState(1).state);
  for (const rlim_t limit : {rlim_t{10}, rlim_t{1'000}, rlim_t{200'000}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limits{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &limits);
      try {
        write_checkpoint(dir_, SampleState(2, 4096).state);
        ::_exit(1);
      } catch (const Error& error) {
        ::_exit(std::string(error.what()).find("File too large") == std::string::npos ? 2 : 0);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "limit " << limit << " status " << status;
    EXPECT_EQ(names(), (Names{"step_00000001"}));
  }
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
}

TEST_F(CheckpointTest, AFileWhereTheFolderShouldBe) {
  write_file_atomically(dir_ / "taken", "");
  const Error error = error_of([&] { write_checkpoint(dir_ / "taken", SampleState(1).state); });
  EXPECT_TRUE(contains(error.what(), "taken"));
  EXPECT_FALSE(error.remedy().empty());
}

}  // namespace
}  // namespace nmoe
