#include "ops/peers.h"

#include "base/error.h"

namespace nmoe {

Peers::Peers(int64_t index, int64_t count, std::chrono::milliseconds timeout)
    : index_(index), count_(count), timeout_(timeout) {
  NMOE_CHECK(count >= 1 && count <= kMaxPeers && index >= 0 && index < count, "rank {} of {} in a domain of at most {}",
             index, count, kMaxPeers);
}

void Peers::share(int64_t num_bytes, std::vector<std::byte*> bases) {
  NMOE_CHECK(static_cast<int64_t>(bases.size()) == count_, "memory of {} ranks in a domain of {}", bases.size(),
             count_);
  regions_.push_back({num_bytes, std::move(bases)});
}

Tensor Peers::on(int64_t rank, const Tensor& mine) const {
  if (rank == index_ || mine.num_elements() == 0) return mine;
  const auto* begin = static_cast<const std::byte*>(mine.raw());
  for (const Region& region : regions_) {
    const std::byte* base = region.bases[static_cast<size_t>(index_)];
    if (begin < base || begin + mine.num_bytes() > base + region.num_bytes) continue;
    return {region.bases[static_cast<size_t>(rank)] + (begin - base), mine.dtype(), mine.shape()};
  }
  NMOE_CHECK(false, "a tensor {} of {} is in no shared arena", mine.shape(), dtype_name(mine.dtype()));
}

}  // namespace nmoe
