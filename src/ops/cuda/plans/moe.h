// Plans of mixtures of experts (contracts/moe.h), and of their exchange.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"
#include "ops/peers.h"

namespace nmoe::cuda {

// Of which a block's shared memory holds the counts.
constexpr int64_t kMaxExperts = 4096;
inline void check_num_experts(int64_t num_experts) {
  NMOE_CHECK(num_experts <= kMaxExperts, "{} experts; on CUDA at most {}", num_experts, kMaxExperts);
}

// How many copies of each chunk go to each expert.
inline int64_t plan_chunk_copies(int64_t num_copies) {
  constexpr int64_t kMinCopies = 512, kMaxChunks = 128;  // a block each: about one a multiprocessor
  return std::max(kMinCopies, blocks_for(num_copies, kMaxChunks));
}
inline Tensor plan(Planner& to, const BuildMoePlan& args) {
  check_num_experts(args.plan.offsets.dim(0) - 1);
  const int64_t copies = args.top_idx.num_elements();
  return to.scope.allocate(DType::kI32, {blocks_for(copies, plan_chunk_copies(copies)), args.plan.offsets.dim(0) - 1});
}

// Tokens of each chunk that go to a rank.
constexpr int64_t kExchangeChunkTokens = 1024;
inline int64_t exchange_chunks(const BuildExchangePlan& args) {
  return std::max<int64_t>(1, blocks_for(args.top_idx.dim(0), kExchangeChunkTokens));
}
inline Tensor plan(Planner& to, const BuildExchangePlan& args) {
  check_num_experts(args.plan.placement.dim(0));
  NMOE_CHECK(args.plan.num_sent.dim(0) <= kMaxPeers, "an exchange of {} ranks; at most {}", args.plan.num_sent.dim(0),
             kMaxPeers);
  return to.scope.allocate(DType::kI32, {exchange_chunks(args), args.plan.num_sent.dim(0)});
}

}  // namespace nmoe::cuda
