#include "model/weight_shard.h"

#include "base/error.h"
#include "rdep/placement.h"

namespace nmoe {

Tensor WeightShard::updated_of(const Tensor& x) const {
  if (updated.extent == shape.num_elements()) return x;
  return x.reshape({shape.num_elements()}).rows(updated.offset, updated.end());
}

std::vector<ElementRange> WeightShard::updated_elements() const {
  return experts_.empty() ? std::vector{updated} : experts_;
}

void WeightShard::place_experts(std::span<const int32_t> places, int64_t rank) {
  NMOE_CHECK(whole_.rank() == 3 && static_cast<int64_t>(places.size()) == whole_[0], "{} places of experts in {}",
             places.size(), whole_);
  const int64_t size = shape[1] * shape[2];
  experts_.clear();
  for (const int64_t expert : experts_at(places, rank, shape[0])) {
    const ElementRange elements{expert * size, size};
    if (!experts_.empty() && experts_.back().end() == elements.offset) {
      experts_.back().extent += size;
    } else {
      experts_.push_back(elements);
    }
  }
}

std::vector<int32_t> WeightShard::experts_here() const {
  const int64_t size = shape[1] * shape[2];
  std::vector<int32_t> experts;
  for (const auto& [offset, extent] : experts_) {
    for (int64_t at = offset; at < offset + extent; at += size) experts.push_back(static_cast<int32_t>(at / size));
  }
  return experts;
}

}  // namespace nmoe
