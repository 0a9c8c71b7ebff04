// Storage: what a counting run finds is what the same code then gets, and no more.
#include "ops/storage.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/checked/wrapped_device.h"
#include "support/errors.h"

namespace nmoe::test {
namespace {

// Two tensors side by side, a temporary, and an operation with scratch.
Tensor build(Storage& storage) {
  Arena& parameters = storage[ArenaKind::kParameters];
  parameters.allocate(DType::kF32, {3});
  const Tensor weights = parameters.allocate(DType::kF32, {1000});
  {
    const ArenaScope scope(storage[ArenaKind::kActivations]);
    storage[ArenaKind::kActivations].allocate(DType::kF32, {500});
  }
  const Tensor sum = storage[ArenaKind::kStepState].allocate(DType::kF64, {1});
  storage.device().ops().sum({weights, sum});
  return weights;
}

TEST(Storage, TheTableNamesEveryArenaOnce) {
  std::set<std::string_view> names;
  for (const ArenaDescription& arena : arena_table()) {
    EXPECT_TRUE(names.insert(arena.name).second) << arena.name;
    EXPECT_FALSE(arena.meaning.empty()) << arena.name;
  }
  EXPECT_EQ(names.size(), kNumArenas);
}

TEST(Storage, APlanIsWhatTheSameCodeUses) {
  const DeviceOptions options{.num_threads = 1};
  const StoragePlan plan = plan_storage(options, [](Storage& storage) { build(storage); });
  EXPECT_EQ(plan[ArenaKind::kParameters], 2 * Arena::kAlignment + 4000 / Arena::kAlignment * Arena::kAlignment);
  EXPECT_EQ(plan[ArenaKind::kActivations], 2048);
  EXPECT_GT(plan[ArenaKind::kScratch], 0);
  EXPECT_EQ(plan[ArenaKind::kOptimizer], 0);

  const auto device = make_device(options);
  Storage storage(*device, plan);
  EXPECT_NE(build(storage).raw(), nullptr);
  for (const ArenaDescription& arena : arena_table()) {
    EXPECT_EQ(storage.used()[arena.kind], plan[arena.kind]) << arena.name;
  }
  EXPECT_THROW(storage[ArenaKind::kParameters].allocate(DType::kF32, {1000}), CheckFailure);
}

TEST(Storage, WhatIsLeftOutHasNoData) {
  const DeviceOptions options{.num_threads = 1};
  StoragePlan plan = plan_storage(options, [](Storage& storage) { build(storage); });
  plan.set(ArenaKind::kGradients, 1 << 20);
  const int64_t with_gradients = plan.total();
  plan.leave_out(ArenaKind::kGradients);
  EXPECT_EQ(plan.total(), with_gradients - (1 << 20));
  const auto device = make_device(options);
  Storage storage(*device, plan);
  EXPECT_EQ(storage[ArenaKind::kGradients].allocate(DType::kF32, {1 << 20}).raw(), nullptr);
}

TEST(Storage, CheckpointsAreStagedInMemoryTakenAtFirstUse) {
  const DeviceOptions options{.num_threads = 1};
  const StoragePlan plan = plan_storage(options, [](Storage& storage) {
    storage.reserve(ArenaKind::kCheckpointStaging);
    storage[ArenaKind::kCheckpointStaging].allocate(DType::kF32, {64});
  });
  const auto device = make_device(options);
  Storage storage(*device, plan);
  EXPECT_TRUE(storage[ArenaKind::kCheckpointStaging].counting());
  storage.reserve(ArenaKind::kCheckpointStaging);
  EXPECT_NE(storage[ArenaKind::kCheckpointStaging].allocate(DType::kF32, {64}).raw(), nullptr);
  storage.reserve(ArenaKind::kCheckpointStaging);  // nothing a second time
  EXPECT_THROW(storage.reserve(ArenaKind::kParameters), CheckFailure);
}

// A device whose host has no memory left to pin: transfers do without, flags that kernels read do not.
class UnpinnableDevice final : public checked::WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  MemorySource& mapped_memory() override { return nothing_; }

 private:
  class Nothing final : public MemorySource {
   public:
    void* allocate(int64_t bytes) override {
      if (bytes == 0) return nullptr;
      throw runtime_error("cannot pin host memory", "free some");
    }
    void release(void*, int64_t) noexcept override {}
  };
  Ops& lane_ops(Lane lane, Arithmetic arithmetic) override { return wrapped().ops(lane, arithmetic); }

  Nothing nothing_;
};

TEST(Storage, FlagsBetweenRanksAreInMemoryThatKernelsReach) {
  StoragePlan alone, with_flags;
  for (StoragePlan* plan : {&alone, &with_flags}) {
    for (const ArenaDescription& arena : arena_table()) plan->set(arena.kind, 0);
    plan->set(ArenaKind::kExchange, 1 << 10);
    plan->set(ArenaKind::kCheckpointStaging, 1 << 10);
  }
  with_flags.set(ArenaKind::kPeerFlags, 1 << 10);
  const auto reserve = [](const StoragePlan& plan) {
    const auto device = make_device({.num_threads = 1});
    UnpinnableDevice unpinnable(*device);
    Storage storage(unpinnable, plan);
    storage.reserve(ArenaKind::kCheckpointStaging);
    EXPECT_NE(storage[ArenaKind::kExchange].block(), nullptr);
    EXPECT_NE(storage[ArenaKind::kCheckpointStaging].block(), nullptr);
  };
  reserve(alone);
  const Error error = error_of([&] { reserve(with_flags); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_EQ(std::string(error.what()), "cannot pin host memory");
  // Of state that was moved to the host, the error names what it is for, and the key.
  StoragePlan with_state = alone;
  with_state.set(ArenaKind::kHostState, 1 << 10);
  const Error of_state = error_of([&] { reserve(with_state); });
  EXPECT_EQ(of_state.exit_code(), 1);
  EXPECT_TRUE(std::string(of_state.what()).starts_with("host state: cannot pin host memory (")) << of_state.what();
  EXPECT_TRUE(std::string(of_state.remedy()).starts_with("set optim.offload = \"none\"")) << of_state.remedy();
}

}  // namespace
}  // namespace nmoe::test
