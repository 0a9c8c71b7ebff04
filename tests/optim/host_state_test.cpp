// The way of state through a ring of buffers: everything once, and no two lanes at the same memory at the same time.
#include "optim/host_state.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "ops/checked/wrapped_device.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// A device that keeps account of which work is behind which, as if lanes ran at the same time, and of the memory that
// each touches. Two accesses to the same memory, one of which writes, must be in order.
class LanesInOrder final : public checked::WrappedDevice {
 public:
  explicit LanesInOrder(Device& device) : WrappedDevice(device) {
    for (const Lane lane : kLanes) {
      ops_[at(lane)] = std::make_unique<LaneOps>(*this, lane);
      if (scratch(lane).counting()) scratch(lane).reserve(memory(), 0);
    }
  }
  void order(Lane awaited, Lane waiting) override {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      auto& seen = seen_[at(waiting)][lane];
      seen = std::max(seen, seen_[at(awaited)][lane]);
    }
  }
  // The next work of a lane reads or writes x.
  void touch(Lane lane, const Tensor& x, bool writes) {
    const auto* const begin = static_cast<const char*>(x.raw());
    const int64_t now = ++seen_[at(lane)][at(lane)];
    const Access mine{lane, now, begin, begin + x.num_bytes(), writes};
    for (const Access& other : accesses_) {
      const bool overlap = other.begin < mine.end && mine.begin < other.end && (other.writes || mine.writes);
      if (overlap && seen_[at(lane)][at(other.lane)] < other.time) ++unordered_;
    }
    accesses_.push_back(mine);
  }
  int64_t num_unordered() const { return unordered_; }
  // Whether the compute lane is behind all other work.
  bool all_joined() const {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      if (seen_[at(Lane::kCompute)][lane] < seen_[lane][lane]) return false;
    }
    return true;
  }
  // How many of the lane's works are behind, or beside, the given number of another's.
  int64_t seen(Lane lane, Lane of) const { return seen_[at(lane)][at(of)]; }

 private:
  struct Access {
    Lane lane;
    int64_t time;
    const char *begin, *end;
    bool writes;
  };
  class LaneOps final : public Ops {
   public:
    LaneOps(LanesInOrder& owner, Lane lane) : Ops(owner, lane, Arithmetic::kFastest), owner_(owner) {}
    DType compute_dtype() const override { return below().compute_dtype(); }
    WeightRounding weight_rounding(OperandFormat format) const override { return below().weight_rounding(format); }
#define NMOE_FORWARD(name, Arguments)         \
  void name(const Arguments& args) override { \
    account_for(args);                        \
    below().name(args);                       \
  }
    NMOE_OPERATIONS(NMOE_FORWARD)
#undef NMOE_FORWARD

   private:
    template <class Arguments>
    void account_for(const Arguments& args) {
      if constexpr (std::is_same_v<Arguments, Copy>) {
        owner_.touch(lane(), args.source, false);
        owner_.touch(lane(), args.destination, true);
      }
    }
    Ops& below() const { return owner_.wrapped().ops(lane()); }
    LanesInOrder& owner_;
  };
  static size_t at(Lane lane) { return static_cast<size_t>(lane); }
  Ops& lane_ops(Lane lane, Arithmetic) override { return *ops_[at(lane)]; }

  std::array<std::unique_ptr<LaneOps>, kNumLanes> ops_;
  std::array<std::array<int64_t, kNumLanes>, kNumLanes> seen_{};  // of each lane: how much of each it is behind
  std::vector<Access> accesses_;
  int64_t unordered_ = 0;
};

struct Sizes {
  int64_t elements, together;
  bool has_low, has_v;
};
// Small ones that share a block, one that may be cut, one that may not, one that is cut at experts.
constexpr Sizes kSizes[] = {{3, 64, true, true},        {64, 64, true, true},        {5000, 64, true, true},
                            {4096, 4096, true, false},  {7, 7, false, false},        {6 * 300, 300, false, true},
                            {100'000, 64, false, true}, {70'000, 70'000, true, true}};

TEST(HostState, IsUpdatedOnceInBuffersThatLanesDoNotShare) {
  const ReadyDevice ready = cpu_device(DType::kF32);
  LanesInOrder device(ready->device());
  TensorPool pool(DType::kF32);
  std::vector<HostState::Weight> weights;
  for (const Sizes& sizes : kSizes) {
    const auto make = [&](DType dtype, bool exists) { return exists ? pool.zeros(dtype, {sizes.elements}) : Tensor(); };
    weights.push_back({.slot = 10 + weights.size(),
                       .state = {make(DType::kI16, sizes.has_low), pool.zeros(DType::kF32, {sizes.elements}),
                                 make(DType::kF32, sizes.has_v)},
                       .together = sizes.together});
  }
  const HostState state(weights);
  EXPECT_GT(state.num_blocks(), 10U);
  Arena room("room");
  room.reserve(ready->device().memory(), 4 * state.buffer_bytes());
  std::map<size_t, int64_t> next;  // element of each slot
  for (int update = 1; update <= 2; ++update) {
    next.clear();
    state.update(device, room, [&](std::span<const StatePart> parts) {
      for (const StatePart& part : parts) {
        const HostState::Weight& weight = weights[part.slot - 10];
        EXPECT_EQ(part.elements.offset, next[part.slot]);
        EXPECT_EQ(part.elements.offset % weight.together, 0);
        next[part.slot] = part.elements.end();
        EXPECT_EQ(part.state.low.defined(), weight.state.low.defined());
        EXPECT_EQ(part.state.v.defined(), weight.state.v.defined());
        part.state.for_each([&](const Tensor& x) {
          ASSERT_EQ(x.num_elements(), part.elements.extent);
          device.touch(Lane::kCompute, x, true);
          if (x.dtype() == DType::kI16) {
            for (int64_t i = 0; i < x.num_elements(); ++i) ++static_cast<int16_t*>(x.raw())[i];
          } else {
            for (float& value : x.span<float>()) value += 1.0F;
          }
        });
      }
    });
    EXPECT_EQ(room.used(), 0);
    EXPECT_TRUE(device.all_joined());
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(next[10 + i], kSizes[i].elements) << i;
      weights[i].state.for_each([&](const Tensor& x) {
        for (int64_t j = 0; j < x.num_elements(); ++j) {
          const double value = x.dtype() == DType::kI16 ? static_cast<int16_t*>(x.raw())[j] : x.data<float>()[j];
          ASSERT_EQ(value, update) << i << " " << j;
        }
      });
    }
  }
  EXPECT_EQ(device.num_unordered(), 0);
  EXPECT_EQ(room.high_water(), 3 * state.buffer_bytes());
}

// What the schedule is for: when a block is updated, the next may be on its way, and the one before on its way back.
TEST(HostState, LanesRunBesideEachOther) {
  const ReadyDevice ready = cpu_device(DType::kF32);
  LanesInOrder device(ready->device());
  TensorPool pool(DType::kF32);
  const std::vector<HostState::Weight> weights = {{0, {{}, pool.zeros(DType::kF32, {64 * 32}), {}}, 64}};
  const HostState state(weights);
  ASSERT_EQ(state.num_blocks(), 16U);
  Arena room("room");
  room.reserve(ready->device().memory(), 3 * state.buffer_bytes());
  int64_t block = 0;
  state.update(device, room, [&](std::span<const StatePart>) {
    // Two accesses a copy. Of those fetched only this block and those before are awaited; of those written back only
    // those two before and earlier.
    EXPECT_EQ(device.seen(Lane::kCompute, Lane::kCopy), 2 * (block + 1));
    EXPECT_LE(device.seen(Lane::kCompute, Lane::kCommunication), 2 * std::max<int64_t>(0, block - 1));
    EXPECT_LE(device.seen(Lane::kCopy, Lane::kCompute), std::max<int64_t>(0, block - 1));
    device.touch(Lane::kCompute, weights[0].state.m.rows(0, 0), false);
    ++block;
  });
  EXPECT_EQ(block, 16);
}

TEST(HostState, OfNothingDoesNothing) {
  const ReadyDevice ready = cpu_device(DType::kF32);
  Arena room("room");
  HostState().update(ready->device(), room, [](std::span<const StatePart>) { FAIL(); });
  EXPECT_EQ(room.high_water(), 0);
}

}  // namespace
}  // namespace nmoe::test
