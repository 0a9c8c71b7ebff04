#include "train/step/state_ring.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tensor/chunks.h"

namespace nmoe {
namespace {

// Of a ring that does not hold everything: while the rest of one is read, the others are full.
constexpr int64_t kSlots = 16;
constexpr int64_t kAnyElements = 64;  // of what is cut inside a chunk: parts begin where vectors may

bool has_elements(const StateTensor& tensor) { return tensor.num_bytes() > 0; }
bool is_written(const StateTensor& tensor) { return tensor.is_written; }

}  // namespace

void StateTensor::begin_download(Ops& ops, ElementRange elements, void* host) const {
  state != nullptr ? state->begin_download(ops, elements, host) : weight->begin_download(ops, elements, host);
}

void StateTensor::upload(Ops& ops, ElementRange elements, const void* host) const {
  state != nullptr ? state->upload(ops, elements, host) : weight->upload(ops, elements, host);
}

int64_t StateRing::Piece::end() const { return offset + Arena::aligned(num_bytes()); }

// Pieces are whole chunks where the room has a place for one: those are what is hashed.
std::vector<StateRing::Segment> StateRing::pack(std::span<const StateTensor> tensors, int64_t room,
                                                const IsChosen& is_chosen) {
  std::vector<Segment> segments;
  int64_t used = room;
  for (const StateTensor& tensor : tensors) {
    if (!is_chosen(tensor)) continue;
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(tensor.dtype));
    const int64_t chunk = TensorChunks(tensor.dtype, tensor.shape()).chunk_elements();
    const int64_t together = chunk <= room / element_bytes ? chunk : kAnyElements;
    const int64_t size = tensor.num_elements();
    for (int64_t begin = 0; begin < size;) {
      const int64_t fitting = (room - used) / element_bytes;
      const int64_t count = fitting >= size - begin ? size - begin : fitting / together * together;
      if (count == 0) {
        segments.emplace_back();
        used = 0;
        continue;
      }
      segments.back().push_back({&tensor, {begin, count}, used});
      used = segments.back().back().end();
      begin += count;
    }
  }
  return segments;
}

StateRing::StateRing(Ops& ops, Arena& arena, std::vector<StateTensor> tensors, size_t num_model, int64_t most_bytes)
    : ops_(ops), tensors_(std::move(tensors)), num_model_(num_model) {
  const auto bytes_of = [&](const IsChosen& is_chosen) {
    const auto whole = pack(tensors_, std::numeric_limits<int64_t>::max(), is_chosen);
    return whole.empty() ? 0 : whole.front().back().end();
  };
  const int64_t bytes = std::min(bytes_of(has_elements), most_bytes / Arena::kAlignment * Arena::kAlignment);
  const int64_t num_slots = bytes_of(is_written) <= bytes ? 1 : kSlots;
  slot_bytes_ = bytes / num_slots / Arena::kAlignment * Arena::kAlignment;
  NMOE_CHECK(bytes == 0 || slot_bytes_ >= kAnyElements * static_cast<int64_t>(sizeof(double)),
             "{} bytes for a ring of {} slots", most_bytes, num_slots);
  memory_ = arena.allocate(DType::kU8, {bytes});
  for (int64_t i = 0; i < num_slots; ++i) slots_.push_back(ops.device().make_event(Lane::kCompute));
  segments_ = pack(tensors_, slot_bytes_, is_written);
  pieces_.resize(tensors_.size());
  for (size_t segment = 0; segment < segments_.size(); ++segment) {
    for (size_t piece = 0; piece < segments_[segment].size(); ++piece) {
      const auto tensor = static_cast<size_t>(segments_[segment][piece].tensor - tensors_.data());
      pieces_[tensor].push_back({segment, piece});
    }
  }
  num_filled_ = num_freed_ = segments_.size();
}

Tensor StateRing::place(int64_t slot_begin, const Piece& piece) const {
  const int64_t begin = slot_begin + piece.offset;
  const Tensor bytes = memory_.rows(begin, begin + piece.num_bytes());
  return Tensor(bytes.raw(), piece.tensor->dtype, {piece.elements.extent});
}

void StateRing::begin() {
  {
    const std::scoped_lock lock(mutex_);
    num_filled_ = num_freed_ = 0;
    unread_.clear();
    for (const Segment& segment : segments_) {
      unread_.push_back(0);
      for (const Piece& piece : segment) unread_.back() += static_cast<size_t>(piece.num_bytes());
    }
    abandoned_ = false;
  }
  fill();
}

bool StateRing::fill() {
  std::unique_lock lock(mutex_);
  while (has_room()) {
    const size_t segment = num_filled_;
    lock.unlock();  // the slot is nobody else's, and only this thread fills
    for (const Piece& piece : segments_[segment]) {
      piece.tensor->begin_download(ops_, piece.elements, place(slot_begin(segment), piece).raw());
    }
    slots_[segment % slots_.size()]->record();
    lock.lock();
    ++num_filled_;
    changed_.notify_all();
  }
  return num_filled_ == segments_.size();
}

void StateRing::wait_for_room(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return has_room(); });
}

void StateRing::abandon() {
  {
    const std::scoped_lock lock(mutex_);
    abandoned_ = true;
  }
  changed_.notify_all();
}

StateRing::Where StateRing::find(const StateTensor& tensor, int64_t element) const {
  const std::vector<Where>& pieces = pieces_[static_cast<size_t>(&tensor - tensors_.data())];
  const auto after = std::ranges::upper_bound(pieces, element, {},
                                              [&](const Where& where) { return piece_at(where).elements.offset; });
  NMOE_CHECK(after != pieces.begin(), "'{}' is read, which another rank writes", tensor.name);
  return *std::prev(after);
}

void StateRing::wait_for(size_t segment) const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return abandoned_ || num_filled_ > segment; });
    if (abandoned_) throw Abandoned();
  }
  slots_[segment % slots_.size()]->wait();
}

void StateRing::has_read(size_t segment, size_t bytes) {
  const std::scoped_lock lock(mutex_);
  NMOE_CHECK(bytes <= unread_[segment], "{} bytes of a segment are read twice", bytes - unread_[segment]);
  unread_[segment] -= bytes;
  while (num_freed_ < segments_.size() && unread_[num_freed_] == 0) ++num_freed_;
  changed_.notify_all();
}

void StateRing::read(const StateTensor& tensor, size_t begin, std::span<std::byte> out) {
  const size_t element_bytes = dtype_bytes(tensor.dtype);
  while (!out.empty()) {
    const Where where = find(tensor, static_cast<int64_t>(begin / element_bytes));
    const Piece& piece = piece_at(where);
    const size_t from = begin - static_cast<size_t>(piece.elements.offset) * element_bytes;
    NMOE_CHECK(from < static_cast<size_t>(piece.num_bytes()), "byte {} of '{}' is read, which has {}", begin,
               tensor.name, tensor.num_bytes());
    const size_t count = std::min(out.size(), static_cast<size_t>(piece.num_bytes()) - from);
    wait_for(where.segment);
    const Tensor bytes = place(slot_begin(where.segment), piece);
    std::memcpy(out.data(), static_cast<const std::byte*>(bytes.raw()) + from, count);
    has_read(where.segment, count);
    out = out.subspan(count);
    begin += count;
  }
}

bool StateRing::is_read() const {
  const std::scoped_lock lock(mutex_);
  return num_freed_ == segments_.size();
}

void StateRing::restore(std::span<const StateTensor> tensors, const Load& load) {
  for (const Segment& segment : pack(tensors, memory_.num_bytes(), has_elements)) {
    std::vector<NamedPart> parts;
    for (const Piece& piece : segment) {
      const auto& [begin, extent] = piece.elements;
      const Tensor flat = place(0, piece);
      int64_t first = 0;  // of the slice, among the elements that this rank stores
      for (const ElementRange& slice : piece.tensor->slices()) {
        const int64_t from = std::max(first, begin), to = std::min(first + slice.extent, begin + extent);
        if (from < to) {
          parts.push_back({.name = piece.tensor->name,
                           .tensor = flat.rows(from - begin, to - begin),
                           .shape = piece.tensor->shape(),
                           .offset = slice.offset + from - first});
        }
        first += slice.extent;
      }
    }
    load(parts);
    for (const Piece& piece : segment) piece.tensor->upload(ops_, piece.elements, place(0, piece).raw());
  }
}

}  // namespace nmoe
