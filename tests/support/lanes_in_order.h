// A device that keeps account of which work is behind which, as if lanes ran at the same time, and of the memory that
// each touches: a detector of races between lanes, on a device whose lanes take turns.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/checked/tensor_members.h"
#include "ops/checked/wrapped_device.h"
#include "ops/ops.h"

namespace nmoe::test {

class LanesInOrder final : public checked::WrappedDevice {
 public:
  explicit LanesInOrder(Device& device) : WrappedDevice(device) {
    for (const Lane lane : kLanes) ops_[at(lane)] = std::make_unique<LaneOps>(*this, lane);
  }

  void order(Lane awaited, Lane waiting) override { add(waiting, seen_[at(awaited)]); }
  std::unique_ptr<Event> make_event(Lane lane) override { return std::make_unique<Point>(*this, lane); }

  enum class Use { kReads, kWrites, kEither };
  // The next work of a lane uses x.
  void touch(Lane lane, const Tensor& x, Use use) {
    const auto* const begin = static_cast<const char*>(x.rows_raw());
    const int64_t now = ++seen_[at(lane)][at(lane)];
    const Access mine{lane, now, begin, begin + x.num_bytes(), use};
    for (const Access& other : accesses_) {
      const bool overlap = other.begin < mine.end && mine.begin < other.end;
      if (!overlap || seen_[at(lane)][at(other.lane)] >= other.time) continue;
      if (use == Use::kEither && other.use == Use::kReads) {
        const char* const first = std::max(mine.begin, other.begin);
        read_elsewhere_.emplace_back(first, std::string(first, std::min(mine.end, other.end)));
      } else if (use != Use::kReads || other.use != Use::kReads) {
        ++unordered_;
      }
    }
    accesses_.push_back(mine);
  }
  // When that work is done: what another lane may be reading meanwhile is as it was.
  void check_read_elsewhere() {
    for (const auto& [begin, bytes] : read_elsewhere_) {
      if (std::string_view(begin, bytes.size()) != bytes) ++unordered_;
    }
    read_elsewhere_.clear();
  }
  // Of two accesses to the same memory on two lanes, one of which writes, that are in no order.
  int64_t num_unordered() const { return unordered_; }
  // How many accesses of `of` are done when what is enqueued on `lane` next begins; with lane == of, how many there
  // are.
  int64_t seen(Lane lane, Lane of) const { return seen_[at(lane)][at(of)]; }
  // How many accesses of all lanes there were when x was last used; 0: it was not.
  int64_t last_use(const Tensor& x) const {
    const auto* const begin = static_cast<const char*>(x.rows_raw());
    const auto use = std::ranges::find_if(accesses_.rbegin(), accesses_.rend(), [&](const Access& access) {
      return access.begin < begin + x.num_bytes() && begin < access.end;
    });
    return accesses_.rend() - use;
  }
  // Whether the compute lane is behind all other work.
  bool all_joined() const {
    return std::ranges::all_of(kLanes, [&](Lane lane) { return seen(Lane::kCompute, lane) == seen(lane, lane); });
  }
  // How often the copy lane copied into memory of `bytes` from `begin`, and had when the norm of a step's gradients was
  // last computed.
  void watch(const void* begin, int64_t bytes) {
    watched_ = {static_cast<const char*>(begin), static_cast<size_t>(bytes)};
  }
  int64_t copied() const { return copied_; }
  int64_t copied_at_norm() const { return copied_at_norm_; }

 private:
  using Seen = std::array<int64_t, kNumLanes>;
  struct Access {
    Lane lane;
    int64_t time;
    const char *begin, *end;
    Use use;
  };
  class Point final : public Event {
   public:
    Point(LanesInOrder& owner, Lane lane) : owner_(owner), lane_(lane) {}
    void record() override { seen_ = owner_.seen_[at(lane_)]; }
    bool reached() const override { return true; }
    void wait() const override {}
    void before(Lane waiting) override { owner_.add(waiting, seen_); }

   private:
    LanesInOrder& owner_;
    Lane lane_;
    Seen seen_{};
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
    owner_.check_read_elsewhere();            \
  }
    NMOE_OPERATIONS(NMOE_FORWARD)
#undef NMOE_FORWARD

   private:
    // Of operations other than copies, all tensors count as written, but for memory that another lane reads: that is
    // written if its contents change.
    template <class Arguments>
    void account_for(const Arguments& args) {
      if constexpr (std::is_same_v<Arguments, Copy>) {
        owner_.touch(lane(), args.source, Use::kReads);
        owner_.touch(lane(), args.destination, Use::kWrites);
        const auto* const to = static_cast<const char*>(args.destination.rows_raw());
        if (lane() == Lane::kCopy && to >= owner_.watched_.data() &&
            to < owner_.watched_.data() + owner_.watched_.size()) {
          ++owner_.copied_;
        }
      } else {
        Arguments copy = args;
        checked::for_each_tensor(copy, [&](const Tensor& x) {
          if (x.defined()) owner_.touch(lane(), x, Use::kEither);
        });
      }
      if constexpr (std::is_same_v<Arguments, ClipScale>) {
        owner_.copied_at_norm_ = owner_.copied_;
      }
    }
    Ops& below() const { return owner_.wrapped().ops(lane()); }

    LanesInOrder& owner_;
  };

  static size_t at(Lane lane) { return static_cast<size_t>(lane); }
  void add(Lane waiting, const Seen& seen) {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      seen_[at(waiting)][lane] = std::max(seen_[at(waiting)][lane], seen[lane]);
    }
  }
  Ops& lane_ops(Lane lane, Arithmetic) override { return *ops_[at(lane)]; }

  std::array<std::unique_ptr<LaneOps>, kNumLanes> ops_;
  std::array<Seen, kNumLanes> seen_{};  // of each lane: how much of each it is behind
  std::vector<Access> accesses_;
  std::vector<std::pair<const char*, std::string>> read_elsewhere_;  // by other lanes, and what it holds
  int64_t unordered_ = 0;
  std::string_view watched_;
  int64_t copied_ = 0, copied_at_norm_ = 0;
};

}  // namespace nmoe::test
