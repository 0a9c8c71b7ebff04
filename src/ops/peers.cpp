#include "ops/peers.h"

#include <atomic>

#include "ops/contracts/exchange.h"

namespace nmoe {
namespace {

std::string place_text(PeerWork work, int64_t layer) {
  switch (work) {
    case PeerWork::kDispatch:
      return fmt::format("the dispatch of layer {}", layer);
    case PeerWork::kCombine:
      return fmt::format("the combine of layer {}", layer);
    case PeerWork::kCombineBackward:
      return fmt::format("the combine's backward of layer {}", layer);
    case PeerWork::kDispatchBackward:
      return fmt::format("the dispatch's backward of layer {}", layer);
    case PeerWork::kSum:
      return "a sum over ranks";
    case PeerWork::kGather:
      return "the spreading of new weights";
    case PeerWork::kOther:
      break;
  }
  return "a barrier";
}

}  // namespace

Peers::Peers(int64_t index, int64_t count) : index_(index), count_(count) {
  NMOE_CHECK(count >= 1 && count <= kMaxPeers && index >= 0 && index < count, "rank {} of {} in a domain of at most {}",
             index, count, kMaxPeers);
}

void Peers::share(int64_t num_bytes, std::vector<std::byte*> bases) {
  NMOE_CHECK(static_cast<int64_t>(bases.size()) == count_, "memory of {} ranks in a domain of {}", bases.size(),
             count_);
  regions_.push_back({num_bytes, std::move(bases)});
}

void Peers::set_patience_ns(int64_t patience) const {
  std::atomic_ref(*barrier_.patience.data<int64_t>()).store(patience, std::memory_order_relaxed);
}

int64_t Peers::patience_ns_with(int64_t rank) const {
  return std::atomic_ref(*on(rank, barrier_.patience).data<int64_t>()).load(std::memory_order_relaxed);
}

Error Peers::waited_too_long(const Report& report) const {
  return runtime_error(
      fmt::format("rank {} waited {:.3g} s for rank {} in {} (exchange {})", report.rank,
                  1e-9 * static_cast<double>(patience_ns_with(report.missing)), report.missing,
                  place_text(static_cast<PeerWork>(report.work), report.layer), report.barrier),
      "see what keeps that rank; where its work takes that long, raise parallel.timeout_s or, in a step, "
      "parallel.stall_s");
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
