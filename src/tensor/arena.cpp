#include "tensor/arena.h"

#include <algorithm>

namespace nmoe {

Arena::~Arena() {
  if (source_ != nullptr) source_->release(block_, capacity_);
}

void Arena::reserve(MemorySource& source, int64_t capacity) {
  NMOE_CHECK(counting() && used_ == 0, "arena '{}' is reserved once, while empty", name_);
  block_ = static_cast<char*>(source.allocate(capacity));
  source_ = &source;
  capacity_ = capacity;
  high_water_ = 0;
}

Tensor Arena::allocate(DType dtype, Shape shape) {
  const Tensor unplaced(nullptr, dtype, shape);
  const int64_t begin = used_;
  const int64_t lacking = begin + aligned(unplaced.num_bytes()) + lent_ - capacity_;
  if (!counting() && lacking > 0 && make_room_) make_room_(lacking);
  used_ += take(unplaced.num_bytes(), shape);
  return counting() ? unplaced : Tensor(block_ + begin, dtype, shape);
}

Tensor Arena::lend(int64_t bytes) {
  const Shape shape({bytes});
  lent_ += take(bytes, shape);
  return {counting() ? nullptr : block_ + capacity_ - lent_, DType::kU8, shape};
}

void Arena::end_loans(int64_t kept) {
  NMOE_CHECK(kept <= lent_, "{} bytes of arena '{}' stay lent, of {}", kept, name_, lent_);
  lent_ = kept;
}

// Whole alignments of the memory between both ends.
int64_t Arena::take(int64_t wanted, const Shape& shape) {
  const int64_t bytes = aligned(wanted);
  NMOE_CHECK(counting() || used_ + lent_ + bytes <= capacity_,
             "arena '{}' of {} bytes: {} in use, {} lent, {} more wanted for {}", name_, capacity_, used_, lent_, bytes,
             shape);
  high_water_ = std::max(high_water_, used_ + lent_ + bytes);
  return bytes;
}

void Arena::rewind(int64_t mark) {
  NMOE_CHECK(mark <= used_, "arena '{}' rewound to {} while {} bytes are in use", name_, mark, used_);
  used_ = mark;
}

}  // namespace nmoe
