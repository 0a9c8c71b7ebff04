// Whole steps with state in host memory, as if lanes ran at the same time.
#include <gtest/gtest.h>

#include "support/lanes_in_order.h"
#include "support/tiny_corpus.h"
#include "train/rank_engines.h"

namespace nmoe {
namespace {

// Nothing that is fetched beside backward, or written back beside the update, is touched by other work meanwhile; what
// has no room anywhere else is fetched beside backward already; and buffers take no memory that a step without them
// does not. Nor where half of the state lives on the device, and is updated in between.
void expect_steps_without_races(const char* recompute, const char* experts, bool half) {
  SCOPED_TRACE(fmt::format("{} {}, half of the state on the device: {}", recompute, experts, half));
  const auto with = [&](const std::string& offload) {
    return test::tiny_config(
        "/nowhere", {"model.vocab_size=50", "model.num_layers=6", "train.microbatch_seqs=4",
                     fmt::format("train.recompute={}", recompute), fmt::format("optim.experts.optimizer={}", experts),
                     "optim.offload=" + offload});
  };
  const StoragePlan none = plan_engine_storage(with("none"));
  Config config = with(half ? "fit" : "state");
  if (half) config.optim.state_on_device = none[ArenaKind::kOptimizer] / 2;
  const StoragePlan plan = plan_engine_storage(config);
  EXPECT_GT(plan[ArenaKind::kHostState], none[ArenaKind::kOptimizer] / 4);
  EXPECT_EQ(plan[ArenaKind::kActivations], none[ArenaKind::kActivations]);
  const auto below = make_device(device_options(config.run));
  test::LanesInOrder device(*below);
  Storage storage(device, plan);
  Engine engine(config, {device, single_rank()}, storage);
  engine.initialise();
  device.watch(storage[ArenaKind::kActivations].block(), storage[ArenaKind::kActivations].capacity());
  for (int64_t step = 1; step <= 3; ++step) {
    const int64_t before = device.copied();
    ASSERT_TRUE(test::random_step(engine, config, step).finite);
    EXPECT_TRUE(device.all_joined());
    EXPECT_GT(device.copied_at_norm(), before) << "step " << step;
  }
  EXPECT_EQ(device.num_unordered(), 0);
}

TEST(StateLanes, AStepHasNoRacesAndFetchesBesideBackward) {
  for (const char* recompute : {"none", "blocks", "host"}) {
    for (const char* experts : {"muon", "adamw"}) {
      for (const bool half : {false, true}) expect_steps_without_races(recompute, experts, half);
    }
  }
}

// Inputs of blocks on their way to the host and back, in several microbatches, with lists that begin and end elsewhere
// than the model: transfers are in order with all that reads and writes their slots.
TEST(StateLanes, InputsTravelWithoutRaces) {
  for (const char* recompute :
       {"host", "norms, 6 x host", "3 x host, norms, 2 x host, blocks", "none, blocks, 5 x host"}) {
    const Config config =
        test::tiny_config("/nowhere", {"model.vocab_size=50", "model.num_layers=7", "train.microbatch_seqs=2",
                                       fmt::format("train.recompute={}", recompute)});
    const auto below = make_device(device_options(config.run));
    test::LanesInOrder device(*below);
    Storage storage(device, plan_engine_storage(config));
    Engine engine(config, {device, single_rank()}, storage);
    engine.initialise();
    device.watch(storage[ArenaKind::kActivations].block(), storage[ArenaKind::kActivations].capacity());
    for (int64_t step = 1; step <= 2; ++step) {
      const int64_t before = device.copied();
      ASSERT_TRUE(test::random_step(engine, config, step).finite);
      EXPECT_TRUE(device.all_joined());
      EXPECT_GT(device.copied_at_norm(), before) << recompute;
    }
    EXPECT_EQ(device.num_unordered(), 0) << recompute;
  }
}

}  // namespace
}  // namespace nmoe
