// State on its way to a checkpoint and back, through host memory of any size.
#include "train/step/state_ring.h"

#include <sys/resource.h>

#include <csignal>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "support/errors.h"
#include "train/loop/checkpoint_saver.h"
#include "train/rank_engines.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::Bytes;
using test::contains;
using test::random_step;
using test::ReadyEngine;
using test::run_engines;
using test::snapshot;

constexpr bool kOnCpu = std::string_view(NMOE_TEST_DEVICE) == "cpu";
// A GPU has one rank, and there may be one GPU.
std::vector<int64_t> rank_counts(std::initializer_list<int64_t> on_cpu) {
  return kOnCpu ? std::vector<int64_t>(on_cpu) : std::vector<int64_t>{1};
}

// An embedding and a head of several chunks, and experts that move; some 10 MB of state.
Config wide(int64_t ranks, int64_t staging_bytes, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"model.vocab_size=6000",
                                        "model.moe.num_experts=16",
                                        "model.moe.bias_rate=0",
                                        "train.batch_seqs=16",
                                        "train.microbatch_seqs=1",
                                        fmt::format("parallel.ranks={}", ranks),
                                        fmt::format("checkpoint.staging_bytes={}", staging_bytes)};
  if (kOnCpu) overrides.emplace_back("model.dim=64");
  if (ranks > 1) overrides.emplace_back("parallel.rebalance_every=2");
  overrides.insert(overrides.end(), more.begin(), more.end());
  return test::config_on(NMOE_TEST_DEVICE, kOnCpu ? "fp32" : "bf16", overrides);
}

void prefer_some_experts(ReadyEngine& ready) {
  const Tensor bias = test::weight_of(ready.engine, "layers.1.moe.router_bias").value;
  ready.ops().fill({bias.rows(0, 5), 0.02});
}

constexpr int64_t kAll = int64_t{1} << 30;
// Slots that are smaller than chunks, and of experts several; and memory that has room for any chunk.
constexpr int64_t kRings[] = {1 << 16, 5 << 18};

const std::pair<int64_t, std::vector<std::string>> kRuns[] = {
    {1, {}},
    {1, {"optim.offload=state", "optim.experts.optimizer=adamw"}},
    {1, {"optim.experts.optimizer=adamw", "optim.adamw.state=bf16"}},
    {1, {"optim.offload=state"}},
    {2, {}},
    {4, {"optim.offload=state"}},
};

TEST(StateRing, TheBytesAreThoseOfMemoryForAll) {
  for (const auto& [ranks, more] : kRuns) {
    if (!kOnCpu && ranks > 1) continue;
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, more.empty() ? "" : more.front()));
    const Bytes expected = test::whole_state(wide(ranks, kAll, more), 2, prefer_some_experts);
    for (const int64_t bytes : kRings) {
      const Config config = wide(ranks, bytes, more);
      EXPECT_EQ(test::differences(test::whole_state(config, 2, prefer_some_experts), expected),
                std::vector<std::string>());
      run_engines(config, [&](ReadyEngine& ready) {
        EXPECT_EQ(ready.plan[ArenaKind::kCheckpointStaging], bytes);
        prefer_some_experts(ready);
        for (int64_t step = 1; step <= 2; ++step) random_step(ready.engine, config, step);
        if (ranks > 1) {
          EXPECT_GT(ready.engine.rebalance().moves(), 0);
        }
        const Bytes mine = snapshot(ready.engine);
        random_step(ready.engine, config, 3);
        test::restore_from(ready.engine, expected);
        EXPECT_EQ(test::differences(snapshot(ready.engine), mine), std::vector<std::string>());
        EXPECT_EQ(ready.memory->storage.used()[ArenaKind::kCheckpointStaging], bytes);
      });
    }
  }
}

// A model that training begins with has no state of an optimizer: it is zero, whatever it was.
TEST(StateRing, WithoutTheOptimizersStateThatIsZero) {
  const Config config = wide(1, kRings[0], {"optim.offload=state"});
  ReadyEngine ready(config);
  random_step(ready.engine, config, 1);
  const Bytes before = snapshot(ready.engine);
  random_step(ready.engine, config, 2);
  ready.engine.restore(
      [&](std::span<const NamedPart> parts) {
        for (const NamedPart& part : parts) {
          std::memcpy(part.tensor.raw(), before.at(part.name).data() + 4 * part.offset,
                      static_cast<size_t>(part.tensor.num_bytes()));
        }
      },
      Engine::Restored::kModel);
  const Bytes after = snapshot(ready.engine);
  for (const StateTensor& tensor : ready.engine.state_ring().model()) {
    EXPECT_EQ(after.at(tensor.name), before.at(tensor.name));
  }
  for (const StateTensor& tensor : ready.engine.state_ring().optimizer()) {
    EXPECT_EQ(after.at(tensor.name), std::string(after.at(tensor.name).size(), '\0')) << tensor.name;
  }
}

// Who reads ahead waits for what is copied; and no longer when nothing will be.
TEST(StateRing, ReadingWaitsAndIsAbandoned) {
  const Config config = wide(1, kRings[0]);
  ReadyEngine ready(config);
  const Bytes expected = snapshot(ready.engine);
  StateRing& ring = ready.engine.state_ring();
  const StateTensor& first = ring.tensors().front();
  std::string bytes(static_cast<size_t>(first.num_bytes()), 'x');
  const auto read_first = [&] { ring.read(first, 0, std::as_writable_bytes(std::span(bytes))); };

  ring.begin();
  EXPECT_FALSE(ring.fill());
  auto reading = std::async(std::launch::async, read_first);
  while (reading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ring.fill();
    ring.wait_for_room(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(bytes, expected.at(first.name));
  EXPECT_FALSE(ring.is_read());

  ring.begin();
  auto waiting = std::async(std::launch::async, read_first);
  ring.abandon();
  EXPECT_THROW(waiting.get(), StateRing::Abandoned);
  EXPECT_EQ(test::differences(snapshot(ready.engine), expected), std::vector<std::string>());
}

using StateRingFiles = test::TempDirTest;

// The files with tensors, by name.
Bytes tensor_files(const fs::path& checkpoint) {
  Bytes files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

// Training goes on as soon as the rest of the state is in host memory, and changes nothing of what is written.
TEST_F(StateRingFiles, AreTheSameThroughEveryRing) {
  for (const int64_t ranks : rank_counts({1, 2, 4})) {
    Bytes expected;
    for (const int64_t bytes : {kAll, kRings[0], kRings[1]}) {
      const Config config = wide(ranks, bytes);
      const fs::path dir = dir_ / fmt::format("{}_{}", ranks, bytes);
      run_engines(config, [&](ReadyEngine& ready) {
        prefer_some_experts(ready);
        for (int64_t step = 1; step <= 2; ++step) random_step(ready.engine, config, step);
        ready.engine.rebalance();
        CheckpointSaver saver(dir, /*keep_last=*/0, ready.engine.rank());
        saver.begin(ready.engine, {.info = {.step = 2, .experts = ready.engine.experts()}, .config_toml = "#"});
        random_step(ready.engine, config, 3);
        const auto error = saver.finish();
        EXPECT_FALSE(error.has_value()) << error->what();
      });
      EXPECT_EQ(verify_checkpoint(dir), std::nullopt);
      const Bytes files = tensor_files(dir / "step_00000002");
      EXPECT_EQ(files.size(), static_cast<size_t>(2 * ranks));
      if (expected.empty()) expected = files;
      EXPECT_EQ(test::differences(files, expected), std::vector<std::string>());
    }
  }
}

// Where one rank cannot write its part, as on a full disk, none waits for it: the checkpoint is given up, the one
// before it stays, and the next can be written.
TEST_F(StateRingFiles, AreGivenUpWhereOneRankFails) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto on_signal = std::signal(SIGXFSZ, SIG_IGN);
  for (const int64_t ranks : rank_counts({1, 3})) {
    const Config config = wide(ranks, kRings[0], {"model.moe.num_experts=6", "train.batch_seqs=3"});
    const fs::path dir = dir_ / fmt::format("{}", ranks);
    run_engines(config, [&](ReadyEngine& ready) {
      CheckpointSaver saver(dir, /*keep_last=*/0, ready.engine.rank());
      Communicator& all = ready.engine.rank().mesh().all();
      const auto save = [&](int64_t step) {
        saver.begin(ready.engine, {.info = {.step = step}, .config_toml = "#"});
        return saver.finish();
      };
      const auto limit_files = [&](rlim_t limit) {
        all.barrier();
        if (ready.engine.rank().is_first()) {
          const rlimit limits{limit, before.rlim_max};
          EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limits), 0);
        }
        all.barrier();
      };
      EXPECT_FALSE(save(1).has_value());
      uintmax_t largest = 0;
      for (const auto& entry : fs::directory_iterator(dir / "step_00000001")) {
        largest = std::max(largest, entry.file_size());
      }
      limit_files(largest - 1);
      const auto error = save(2);
      limit_files(before.rlim_cur);
      ASSERT_TRUE(error.has_value());
      EXPECT_TRUE(contains(error->what(), "File too large")) << error->what();
      EXPECT_EQ(list_checkpoints(dir), std::vector<fs::path>{dir / "step_00000001"});
      EXPECT_EQ(random_step(ready.engine, config, 1).finite, true);
      EXPECT_FALSE(save(3).has_value());
    });
    EXPECT_EQ(verify_checkpoint(dir), std::nullopt);
    EXPECT_EQ(list_checkpoints(dir).size(), 2U);
  }
  std::signal(SIGXFSZ, on_signal);
}

// A checkpoint whose state is not copied to its end is no checkpoint, also of a single rank, and takes no other's
// place.
TEST_F(StateRingFiles, AreNotPublishedWhereCopyingEnds) {
  const Config config = wide(1, kRings[0]);
  run_engines(config, [&](ReadyEngine& ready) {
    CheckpointSaver saver(dir_, /*keep_last=*/1, ready.engine.rank());
    saver.begin(ready.engine, {.info = {.step = 1}, .config_toml = "#"});
    ASSERT_FALSE(saver.finish().has_value());
    {
      std::jthread ends([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) ready.engine.state_ring().abandon();
      });
      saver.begin(ready.engine, {.info = {.step = 2}, .config_toml = "#"});
    }
    const auto error = saver.finish();
    ASSERT_TRUE(error.has_value());
    EXPECT_TRUE(contains(error->what(), "was given up")) << error->what();
    EXPECT_EQ(list_checkpoints(dir_), std::vector<fs::path>{dir_ / "step_00000001"});
    saver.begin(ready.engine, {.info = {.step = 3}, .config_toml = "#"});
    EXPECT_FALSE(saver.finish().has_value());
  });
  EXPECT_EQ(verify_checkpoint(dir_), std::nullopt);
  EXPECT_EQ(list_checkpoints(dir_), std::vector<fs::path>{dir_ / "step_00000003"});
}

using StateRingRuns = TrainerTest;

// A run that is saved and resumed through little memory is, bit for bit, the one that has room for all.
TEST_F(StateRingRuns, ResumeToTheSameBits) {
  if (!kOnCpu) GTEST_SKIP() << "of the CPU";
  const std::vector<std::string> few = {"train.steps=4", "checkpoint.every=2", "checkpoint.staging_bytes=65536"};
  run("whole", {"train.steps=6"});
  run("through", few);
  std::vector<std::string> more = few;
  more[0] = "train.steps=6";
  resume("through", more);
  EXPECT_EQ(tensor_files(checkpoints("through") / "step_00000006"),
            tensor_files(checkpoints("whole") / "step_00000006"));
  // And with all of the memory it goes on from there.
  resume("through", {"train.steps=8"});
  run("longer", {"train.steps=8"});
  EXPECT_EQ(tensor_files(checkpoints("through") / "step_00000008"),
            tensor_files(checkpoints("longer") / "step_00000008"));
}

}  // namespace
}  // namespace nmoe
