// Routers.
#pragma once

#include <cstdint>

#include "ops/cuda/plans/moe.h"

namespace nmoe::cuda {

constexpr int64_t kMaxTopK = 32;  // a lane a choice
inline void check_choice(const RouterRule& rule, const Tensor& logits) {
  check_num_experts(logits.dim(1));
  NMOE_CHECK(rule.top_k <= kMaxTopK, "top_k {}; on CUDA at most {}", rule.top_k, kMaxTopK);
}
inline int64_t num_sequences(const RouterLoss& loss, int64_t num_tokens) {
  const int64_t num_seqs = num_tokens / loss.seq_len;
  NMOE_CHECK(num_seqs <= 65535, "{} sequences; on CUDA at most 65535 a microbatch", num_seqs);
  return num_seqs;
}
inline Tensor claim_sequence_loads(ArenaScope& scope, const RouterLoss& loss, const Tensor& logits) {
  const int64_t num_seqs = loss.balance != 0 ? num_sequences(loss, logits.dim(0)) : 0;
  return scope.allocate(DType::kI32, {num_seqs, logits.dim(1)});
}
struct RouterForwardPlan {
  Tensor z, entropy, balance;  // [T] F64 each, or empty: terms of the tokens
  Tensor loads;                // [B, E] I32, or empty
};
inline RouterForwardPlan plan(Planner& to, const RouterForward& args) {
  check_choice(args.rule, args.logits);
  const int64_t T = args.logits.dim(0);
  RouterForwardPlan scratch;
  scratch.z = to.scope.allocate(DType::kF64, {args.loss.z != 0 ? T : 0});
  scratch.entropy = to.scope.allocate(DType::kF64, {args.entropy.defined() ? T : 0});
  scratch.balance = to.scope.allocate(DType::kF64, {args.loss.balance != 0 ? T : 0});
  scratch.loads = claim_sequence_loads(to.scope, args.loss, args.logits);
  return scratch;
}

// [B, E] I32, or empty.
inline Tensor plan(Planner& to, const RouterBackward& args) {
  check_choice(args.rule, args.logits);
  return claim_sequence_loads(to.scope, args.loss, args.logits);
}

// Few tokens are routed by one block, which needs no scratch; for others it is one operation after another.
struct RouteTokensPlan {
  bool one_block = false;
  RouterForwardPlan router = {};
  Tensor moe_plan = {};
};
// Floats of shared memory that a warp's choice takes: ranks of experts and of groups, whole vectors.
inline int64_t choice_floats(const RouterRule& rule, int64_t num_experts) {
  return blocks_for(num_experts + rule.num_groups, 4) * 4;
}
constexpr int64_t kRouteSharedBytes = int64_t{48} << 10;  // of that block
// Of these, its choices and counts of experts.
inline int64_t route_plan_bytes(const RouteTokens& args) {
  const int64_t copies = args.logits.dim(0) * args.rule.top_k;
  return (2 * copies + args.logits.dim(1)) * static_cast<int64_t>(sizeof(float));
}
inline RouteTokensPlan plan(Planner& to, const RouteTokens& args) {
  constexpr int64_t kMostCopies = 256;  // choices that it takes
  check_choice(args.rule, args.logits);
  const int64_t copies = args.logits.dim(0) * args.rule.top_k;
  const int64_t warp_bytes = choice_floats(args.rule, args.logits.dim(1)) * static_cast<int64_t>(sizeof(float));
  RouteTokensPlan route;
  route.one_block = copies > 0 && copies <= kMostCopies && route_plan_bytes(args) + warp_bytes <= kRouteSharedBytes;
  if (route.one_block) return route;
  {
    Planner part = to.part();
    route.router = plan(part, args.router());
  }
  Planner part = to.part();
  route.moe_plan = plan(part, BuildMoePlan{.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
  return route;
}

}  // namespace nmoe::cuda
