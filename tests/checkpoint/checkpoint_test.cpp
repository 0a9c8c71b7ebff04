#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <thread>

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

TEST_F(CheckpointTest, DropsOptimizerStatesOfAllButTheNewest) {
  EXPECT_EQ(drop_optimizer_states(dir_), 0);
  for (int64_t step = 1; step <= 3; ++step) {
    SampleState sample(step);
    write_file_atomically(dir_ / "carried.txt", "of an imported model");
    sample.state.carried = {{.name = "carried.txt", .source = dir_ / "carried.txt", .sha256 = ""}};
    write_checkpoint(dir_, sample.state);
  }
  const std::vector<fs::path> all = list_checkpoints(dir_);
  const auto weights = [](const fs::path& path) { return CheckpointReader::open(path).weights_sha256(); };
  const std::string before = weights(all[0]);
  const int64_t bytes = static_cast<int64_t>(fs::file_size(all[0] / "optimizer.safetensors"));
  EXPECT_EQ(drop_optimizer_states(dir_), 2 * bytes);
  EXPECT_EQ(list_checkpoints(dir_), all);
  EXPECT_EQ(names_in(all[0]),
            (Names{"config.toml", "huggingface", "manifest.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_TRUE(fs::exists(all[2] / "optimizer.safetensors"));
  for (const fs::path& path : all) EXPECT_EQ(verify_checkpoint(path), std::nullopt) << path;
  EXPECT_EQ(weights(all[0]), before);
  EXPECT_TRUE(CheckpointReader::open(all[0]).optimizer().empty());
  EXPECT_EQ(read_file(all[0] / "huggingface/carried.txt"), "of an imported model");
  EXPECT_EQ(drop_optimizer_states(dir_), 0) << "again";
  fs::remove(dir_ / "carried.txt");
  EXPECT_EQ(names().size(), 3u);
}

// Nothing is lost and nothing half removed, whenever it is killed.
TEST_F(CheckpointTest, ADropThatIsKilled) {
  using Clock = std::chrono::steady_clock;
  std::chrono::microseconds whole{};
  for (int round = 0; round < 12; ++round) {
    for (int64_t step = 1; step <= 4; ++step) write_checkpoint(dir_, SampleState(step).state);
    const auto begin = Clock::now();
    const pid_t child = ::fork();
    if (child == 0) {
      drop_optimizer_states(dir_);
      ::_exit(0);
    }
    if (round > 0) {
      std::this_thread::sleep_for(whole * round / 12);
      ::kill(child, SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    if (round == 0) whole = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
    const std::vector<fs::path> all = list_checkpoints(dir_);
    ASSERT_EQ(all.size(), 4u) << "after kill " << round;
    for (const fs::path& path : all)
      EXPECT_EQ(verify_checkpoint(path), std::nullopt) << path << " after kill " << round;
    const CheckpointFolder next(dir_);
    EXPECT_EQ(std::ranges::count_if(
                  names(), [](const std::string& name) { return name.find("unfinished") != std::string::npos; }),
              0);
  }
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
