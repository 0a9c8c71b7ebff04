// Sums over domains.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/across.h"
#include "ops/cuda/plans/planner.h"
#include "ops/peers.h"

namespace nmoe::cuda {

// Of a round's pieces, what the other domains send of this one's part.
constexpr int64_t kAcrossRoundBytes = int64_t{128} << 20;
inline Tensor plan(Planner& to, const SumAcross& args) {
  if (args.across.alone()) return {};
  const int64_t domains = args.across.count();
  NMOE_CHECK(domains <= kMaxPeers, "a sum over {} domains, at most {}", domains, kMaxPeers);
  int64_t most = 0;
  for (const AcrossRound& round : across_rounds(args.tensors, kAcrossRoundBytes)) {
    int64_t bytes = 0;
    for (const AcrossPiece& piece : round) bytes += (domains - 1) * piece.part_room(domains);
    most = std::max(most, bytes);
  }
  return to.scope.allocate(DType::kU8, {most});
}

}  // namespace nmoe::cuda
