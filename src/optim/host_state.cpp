#include "optim/host_state.h"

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace nmoe {
namespace {

// Large enough for the link's full rate, small enough that filling and draining the ring takes no time to speak of.
constexpr int64_t kBlockBytes = int64_t{256} << 20;
constexpr int64_t kLeastBlocks = 16;  // of state that is less than so many of these
constexpr int64_t kBuffers = 3;       // one that is fetched into, one that is updated, one that is written back

constexpr Lane kFetching = Lane::kCopy, kWriting = Lane::kCommunication;

int64_t aligned(int64_t bytes) { return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment; }

int64_t staged_bytes(const WeightState& state) {
  int64_t bytes = 0;
  state.for_each([&](const Tensor& tensor) { bytes += aligned(tensor.num_bytes()); });
  return bytes;
}

// Where a block's state is in a buffer [bytes] u8.
std::vector<StatePart> staged(std::span<const StatePart> block, const Tensor& buffer) {
  int64_t used = 0;
  const auto place = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    tensor = Tensor(buffer.rows(used, used + tensor.num_bytes()).raw(), tensor.dtype(), tensor.shape());
    used += aligned(tensor.num_bytes());
  };
  std::vector<StatePart> parts(block.begin(), block.end());
  for (StatePart& part : parts) {
    place(part.state.low);
    place(part.state.m);
    place(part.state.v);
  }
  return parts;
}

void copy(Ops& ops, const WeightState& from, const WeightState& to) {
  const auto one = [&](const Tensor& source, const Tensor& destination) {
    if (source.defined()) ops.copy({.source = source, .destination = destination});
  };
  one(from.low, to.low);
  one(from.m, to.m);
  one(from.v, to.v);
}

}  // namespace

WeightState WeightState::of(ElementRange elements) const {
  const auto part = [&](const Tensor& x) {
    return x.defined() ? x.reshape({x.num_elements()}).rows(elements.offset, elements.end()) : x;
  };
  return {part(low), part(m), part(v)};
}

HostState::HostState(std::span<const Weight> weights) {
  int64_t total = 0;
  for (const Weight& weight : weights) total += weight.state.bytes();
  const int64_t most = std::clamp<int64_t>(total / kLeastBlocks, 1, kBlockBytes);
  int64_t in_last = 0;  // bytes
  for (const Weight& weight : weights) {
    const int64_t size = weight.state.m.num_elements();
    const int64_t at_once = std::max<int64_t>(1, most / (weight.state.bytes() / size) / weight.together);
    for (int64_t begin = 0; begin < size; begin += at_once * weight.together) {
      const ElementRange elements{begin, std::min(at_once * weight.together, size - begin)};
      const StatePart part{weight.slot, elements, weight.state.of(elements)};
      const int64_t bytes = staged_bytes(part.state);
      if (blocks_.empty() || in_last + bytes > most) {
        blocks_.emplace_back();
        in_last = 0;
      }
      blocks_.back().push_back(part);
      in_last += bytes;
      buffer_bytes_ = std::max(buffer_bytes_, in_last);
    }
  }
}

void HostState::update(Device& device, Arena& room,
                       const std::function<void(std::span<const StatePart>)>& enqueue) const {
  if (blocks_.empty()) return;
  const ArenaScope scope(room);
  const Tensor ring = room.allocate(DType::kU8, {kBuffers, buffer_bytes_});
  const auto count = std::ssize(blocks_);
  const auto is_block = [&](int64_t index) { return index >= 0 && index < count; };
  const auto block = [&](int64_t index) -> const Block& { return blocks_[static_cast<size_t>(index)]; };
  const auto on_device = [&](int64_t index) { return staged(block(index), ring[index % kBuffers]); };
  device.order(Lane::kCompute, kFetching);
  device.order(Lane::kCompute, kWriting);
  for (int64_t turn = 0; turn < count + 2; ++turn) {
    if (is_block(turn)) {
      const std::vector<StatePart> parts = on_device(turn);
      for (size_t i = 0; i < parts.size(); ++i) {
        copy(device.ops(kFetching), block(turn)[i].state, parts[i].state);
      }
    }
    if (is_block(turn - 1)) enqueue(on_device(turn - 1));
    if (is_block(turn - 2)) {
      const std::vector<StatePart> parts = on_device(turn - 2);
      for (size_t i = 0; i < parts.size(); ++i) {
        copy(device.ops(kWriting), parts[i].state, block(turn - 2)[i].state);
      }
    }
    // In this order no fetch waits for an update but that of three blocks before, whose buffer it takes.
    device.order(kWriting, kFetching);
    device.order(kFetching, Lane::kCompute);
    device.order(Lane::kCompute, kWriting);
  }
  device.order(kWriting, Lane::kCompute);
}

}  // namespace nmoe
