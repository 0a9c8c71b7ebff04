// The way of state through a ring of buffers: everything once, and no two lanes at the same memory at the same time.
#include "optim/host_state.h"

#include <gtest/gtest.h>

#include <map>

#include "support/lanes_in_order.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

struct Sizes {
  int64_t elements, together;
  bool has_low, has_v;
};
// Small ones that share a block, one that may be cut, one that may not, one that is cut at experts.
constexpr Sizes kSizes[] = {{3, 64, true, true},        {64, 64, true, true},        {5000, 64, true, true},
                            {4096, 4096, true, false},  {7, 7, false, false},        {6 * 300, 300, false, true},
                            {100'000, 64, false, true}, {70'000, 70'000, true, true}};

struct Schedule {
  int64_t ahead;  // buffers that are fetched into beside backward
  int64_t held;   // blocks that are to stay on the device until the next forward
  bool settles;   // between steps
};
class HostStateTest : public ::testing::TestWithParam<Schedule> {};

// Forward and backward touch all that they may on the compute lane.
TEST_P(HostStateTest, IsUpdatedOnceInBuffersThatLanesDoNotShare) {
  const ReadyDevice ready = cpu_device(DType::kF32);
  LanesInOrder device(ready.device());
  TensorPool pool(DType::kF32);
  std::vector<HostState::Weight> weights;
  for (const Sizes& sizes : kSizes) {
    const auto make = [&](DType dtype, bool exists) { return exists ? pool.zeros(dtype, {sizes.elements}) : Tensor(); };
    weights.push_back({.slot = 10 + weights.size(),
                       .state = {make(DType::kI16, sizes.has_low), pool.zeros(DType::kF32, {sizes.elements}),
                                 make(DType::kF32, sizes.has_v)},
                       .together = sizes.together});
  }
  const auto [ahead, held, settles] = GetParam();
  const int64_t block_bytes = HostState(device, weights, 0).buffer_bytes();
  HostState state(device, weights, held * block_bytes);
  EXPECT_GT(state.num_blocks(), 10U);
  const int64_t buffers = std::max<int64_t>(4, ahead), capacity = (buffers + 2) * state.buffer_bytes();
  for (const Lane lane : {Lane::kCopy, Lane::kCommunication}) device.scratch(lane).reserve(device.memory(), 0);
  Arena room("room");
  room.reserve(ready.device().memory(), capacity);
  std::map<size_t, int64_t> next;  // element of each slot
  // As many as have room beside those that go round.
  const int64_t num_held = std::min({held, buffers - 2, static_cast<int64_t>(state.num_blocks())});
  for (int update = 1; update <= 3; ++update) {
    state.hold(room);
    const int64_t before = device.seen(Lane::kCompute, Lane::kCopy), copied = device.seen(Lane::kCopy, Lane::kCopy);
    state.write_held(room);
    EXPECT_EQ(device.seen(Lane::kCopy, Lane::kCopy) > copied, num_held > 0);
    // The stack grows, and waits for what is written only where it comes to it.
    const int64_t piece = block_bytes / 512 * 256;
    while (room.used() + piece <= capacity) {
      device.touch(Lane::kCompute, room.allocate(DType::kU8, {piece}), LanesInOrder::Use::kWrites);
      EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCopy) > before, room.used() > capacity - num_held * block_bytes);
    }
    room.rewind(0);
    for (int64_t lent = 0; lent <= ahead; ++lent) {
      const int64_t not_lent = capacity - std::max<int64_t>(0, lent - 1) * state.buffer_bytes();
      device.touch(Lane::kCompute, room.allocate(DType::kU8, {not_lent}), LanesInOrder::Use::kWrites);
      room.rewind(0);
      state.prefetch(room, lent * state.buffer_bytes() + 1);
    }
    next.clear();
    state.update(
        room,
        [&](std::span<const StatePart> parts) {
          for (const StatePart& part : parts) {
            const HostState::Weight& weight = weights[part.slot - 10];
            EXPECT_EQ(part.elements.offset, next[part.slot]);
            EXPECT_EQ(part.elements.offset % weight.together, 0);
            next[part.slot] = part.elements.end();
            EXPECT_EQ(part.state.low.defined(), weight.state.low.defined());
            EXPECT_EQ(part.state.v.defined(), weight.state.v.defined());
            part.state.for_each([&](const Tensor& x) {
              ASSERT_EQ(x.num_elements(), part.elements.extent);
              device.touch(Lane::kCompute, x, LanesInOrder::Use::kWrites);
              if (x.dtype() == DType::kI16) {
                for (int64_t i = 0; i < x.num_elements(); ++i) ++static_cast<int16_t*>(x.raw())[i];
              } else {
                for (float& value : x.span<float>()) value += 1.0F;
              }
            });
          }
        },
        [](double) {});
    EXPECT_EQ(room.used(), 0);
    EXPECT_TRUE(device.all_joined());
    if (settles || update == 3) state.settle(room);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(next[10 + i], kSizes[i].elements) << i;
      if (!settles && update < 3) continue;
      weights[i].state.for_each([&](const Tensor& x) {
        for (int64_t j = 0; j < x.num_elements(); ++j) {
          const double value = x.dtype() == DType::kI16 ? static_cast<int16_t*>(x.raw())[j] : x.data<float>()[j];
          ASSERT_EQ(value, update) << i << " " << j;
        }
      });
    }
  }
  EXPECT_EQ(device.num_unordered(), 0);
  room.allocate(DType::kU8, {capacity});  // all of it is there again
}

INSTANTIATE_TEST_SUITE_P(Buffers, HostStateTest,
                         ::testing::Values(Schedule{0, 0, false}, Schedule{1, 0, true}, Schedule{2, 1, false},
                                           Schedule{3, 2, true}, Schedule{7, 0, false}, Schedule{7, 3, false},
                                           Schedule{7, 5, true}, Schedule{7, 9, false}, Schedule{100, 0, false},
                                           Schedule{100, 10, false}, Schedule{100, 100, true}));

// What the schedule is for: when a block is updated, the next ones may be on their way, and those before on their way
// back; what is fetched beside backward is not waited for by backward; and what is computed between blocks waits for no
// way back, nor any way back for it.
TEST(HostState, LanesRunBesideEachOther) {
  for (const int64_t ahead : {0, 2, 5}) {
    const ReadyDevice ready = cpu_device(DType::kF32);
    LanesInOrder device(ready.device());
    TensorPool pool(DType::kF32);
    const std::vector<HostState::Weight> weights = {{0, {{}, pool.zeros(DType::kF32, {64 * 32}), {}}, 64}};
    HostState state(device, weights, /*held_bytes=*/0);
    ASSERT_EQ(state.num_blocks(), 16U);
    for (const Lane lane : {Lane::kCopy, Lane::kCommunication}) device.scratch(lane).reserve(device.memory(), 0);
    Arena room("room");
    room.reserve(ready.device().memory(), 8 * state.buffer_bytes());
    const int64_t buffers = std::max<int64_t>(4, ahead);
    state.prefetch(room, ahead * state.buffer_bytes());
    EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCopy), 0);
    EXPECT_EQ(device.seen(Lane::kCopy, Lane::kCopy), 2 * ahead);  // two accesses a copy
    const Tensor other = pool.zeros(DType::kF32, {64});
    int64_t block = 0;
    state.update(
        room,
        [&](std::span<const StatePart>) {
          // This block was awaited, no later one. It was fetched behind the writing of the one whose buffer it has.
          EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCopy), 2 * (block + 1));
          EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCommunication), 2 * std::max<int64_t>(0, block + 1 - buffers));
          EXPECT_EQ(device.seen(Lane::kCopy, Lane::kCopy), 2 * std::min<int64_t>(16, block + buffers));
          ++block;
        },
        [&](double share_left) {
          EXPECT_EQ(share_left, static_cast<double>(16 - block) / 16);
          EXPECT_EQ(device.seen(Lane::kCommunication, Lane::kCommunication), 2 * block);
          EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCommunication), 2 * std::max<int64_t>(0, block - buffers));
          device.touch(Lane::kCompute, other, LanesInOrder::Use::kWrites);
        });
    EXPECT_EQ(block, 16);
  }
}

TEST(HostState, OfNothingDoesNothing) {
  const ReadyDevice ready = cpu_device(DType::kF32);
  Arena room("room");
  HostState nothing(ready.device(), {}, /*held_bytes=*/1 << 20);
  nothing.hold(room);
  nothing.write_held(room);
  nothing.prefetch(room, 1 << 20);
  nothing.update(
      room, [](std::span<const StatePart>) { FAIL(); }, [](double) { FAIL(); });
  nothing.settle(room);
  EXPECT_EQ(room.high_water(), 0);
}

}  // namespace
}  // namespace nmoe::test
