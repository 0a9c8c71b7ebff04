#include "optim/host_state.h"

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace nmoe {
namespace {

// Measured on an H100, in GB/s each way at once: 42 with three buffers of 64 MiB, 47 with four, and no more with more
// or larger ones, where each way alone has 52 to 54. As much as that takes no time to speak of to fill and to drain.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
constexpr int64_t kLeastBlocks = 16;  // of state that is less than so many of these
constexpr size_t kLeastBuffers = 4;

constexpr Lane kFetching = Lane::kCopy, kWriting = Lane::kCommunication;

int64_t staged_bytes(const WeightState& state) {
  int64_t bytes = 0;
  state.for_each([&](const Tensor& tensor) { bytes += Arena::aligned(tensor.num_bytes()); });
  return bytes;
}

// Where a block's state is in a buffer [bytes] u8.
std::vector<StatePart> staged(std::span<const StatePart> block, const Tensor& buffer) {
  int64_t used = 0;
  const auto place = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    tensor = Tensor(buffer.rows(used, used + tensor.num_bytes()).raw(), tensor.dtype(), tensor.shape());
    used += Arena::aligned(tensor.num_bytes());
  };
  std::vector<StatePart> parts(block.begin(), block.end());
  for (StatePart& part : parts) {
    place(part.state.low);
    place(part.state.m);
    place(part.state.v);
  }
  return parts;
}

void copy(Ops& ops, std::span<const StatePart> from, std::span<const StatePart> to) {
  const auto one = [&](const Tensor& source, const Tensor& destination) {
    if (source.defined()) ops.copy({.source = source, .destination = destination});
  };
  for (size_t i = 0; i < from.size(); ++i) {
    one(from[i].state.low, to[i].state.low);
    one(from[i].state.m, to[i].state.m);
    one(from[i].state.v, to[i].state.v);
  }
}

}  // namespace

WeightState WeightState::of(ElementRange elements) const {
  const auto part = [&](const Tensor& x) {
    return x.defined() ? x.reshape({x.num_elements()}).rows(elements.offset, elements.end()) : x;
  };
  return {part(low), part(m), part(v)};
}

int64_t WeightState::bytes() const {
  int64_t bytes = 0;
  for_each([&](const Tensor& tensor) { bytes += tensor.num_bytes(); });
  return bytes;
}

HostState::HostState(Device& device, std::span<const Weight> weights, int64_t held_bytes)
    : device_(device), held_bytes_(held_bytes) {
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

// While counting there is no end of the memory that could be lent.
size_t HostState::num_held_in(const Arena& room) const {
  if (room.counting() || held_bytes_ == 0) return 0;
  const size_t wanted = static_cast<size_t>((held_bytes_ + buffer_bytes_ - 1) / buffer_bytes_);
  const size_t fitting = static_cast<size_t>((room.capacity() - room.mark()) / buffer_bytes_);
  if (fitting >= blocks_.size()) return std::min(wanted, blocks_.size());
  return fitting > kLeastBuffers ? std::min(wanted, fitting - kLeastBuffers) : 0;
}

void HostState::hold(Arena& room) {
  if (blocks_.empty() || holds_) return;
  num_held_ = num_held_in(room);
  while (num_lent_ < num_held_) {
    lend(room);
    const size_t block = num_lent_ - 1;
    copy(device_.ops(), blocks_[block], staged(blocks_[block], buffers_[block].memory));
  }
  num_lent_ = 0;
  holds_ = num_held_ > 0;
}

void HostState::settle(Arena& room) {
  if (!holds_) return;
  for (size_t block = 0; block < num_held_; ++block) {
    copy(device_.ops(), staged(blocks_[block], buffers_[block].memory), blocks_[block]);
  }
  room.end_loans();
  holds_ = false;
}

void HostState::write_held(Arena& room) {
  if (num_held_ == 0) return;
  NMOE_CHECK(holds_, "a step without what it is to write back");
  device_.order(Lane::kCompute, kFetching);
  // What the stack needs first is written first.
  for (size_t block = num_held_; block-- > 0;) {
    copy(device_.ops(kFetching), staged(blocks_[block], buffers_[block].memory), blocks_[block]);
    buffers_[block].copied->record();
  }
  num_lent_ = num_held_;
  is_writing_ = true;
  room.when_full([this, &room](int64_t lacking) { give_back(room, lacking); });
}

// At least so many bytes, if so many are lent, to what the compute lane does from here on.
void HostState::give_back(Arena& room, int64_t bytes) {
  for (; bytes > 0 && num_lent_ > 0; bytes -= buffer_bytes_) buffers_[--num_lent_].copied->before(Lane::kCompute);
  room.end_loans(static_cast<int64_t>(num_lent_) * buffer_bytes_);
}

void HostState::lend(Arena& room) {
  if (buffers_.size() == num_lent_) buffers_.push_back({{}, device_.make_event(kFetching)});
  buffers_[num_lent_++].memory = room.lend(buffer_bytes_);
}

void HostState::prefetch(Arena& room, int64_t bytes) {
  if (!blocks_.empty()) fetch_first(room, std::min(blocks_.size(), static_cast<size_t>(bytes / buffer_bytes_)));
}

// As many blocks as `count`, each into a buffer of its own.
void HostState::fetch_first(Arena& room, size_t count) {
  if (is_writing_ && count > 0) {
    give_back(room, static_cast<int64_t>(num_lent_) * buffer_bytes_);
    room.when_full({});
    is_writing_ = false;
  }
  if (count <= num_lent_) return;
  device_.order(Lane::kCompute, kFetching);  // whose work is done with this memory then
  while (num_lent_ < count) {
    lend(room);
    fetch(num_lent_ - 1);
  }
}

void HostState::fetch(size_t block) {
  const Buffer& buffer = buffer_of(block);
  copy(device_.ops(kFetching), blocks_[block], staged(blocks_[block], buffer.memory));
  buffer.copied->record();
}

void HostState::update(Arena& room, const std::function<void(std::span<const StatePart>)>& enqueue,
                       const std::function<void(double share_left)>& beside) {
  if (blocks_.empty()) return;
  fetch_first(room, std::min(blocks_.size(), num_held_ + kLeastBuffers));
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const Buffer& buffer = buffer_of(block);
    const std::vector<StatePart> parts = staged(blocks_[block], buffer.memory);
    buffer.copied->before(Lane::kCompute);
    enqueue(parts);
    if (block < num_held_) continue;
    device_.order(Lane::kCompute, kWriting);
    copy(device_.ops(kWriting), parts, blocks_[block]);
    if (const size_t next = block + num_lent_ - num_held_; next < blocks_.size()) {
      device_.order(kWriting, kFetching);
      fetch(next);
    }
    beside(static_cast<double>(blocks_.size() - block - 1) / static_cast<double>(blocks_.size() - num_held_));
  }
  device_.order(kFetching, Lane::kCompute);
  device_.order(kWriting, Lane::kCompute);
  room.end_loans(static_cast<int64_t>(num_held_) * buffer_bytes_);
  num_lent_ = 0;
}

}  // namespace nmoe
