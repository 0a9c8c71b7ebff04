// The gated delta rule's tables of chunks, scalars and states. A state is [K, V].
#pragma once

#include "base/error.h"
#include "ops/contracts/delta_rule.h"
#include "ops/cuda/plans/planner.h"
#include "ops/cuda/plans/slot_rows.h"

namespace nmoe::cuda {

constexpr int64_t kDeltaChunk = 64;  // tokens
inline void check_delta_rule(const Tensor& q, const Tensor& a) {
  if (a.shape().rank() == 3) {
    throw usage_error("a delta rule with a decay of each channel is not available on GPUs yet",
                      "set run.device = \"cpu\"");
  }
  NMOE_CHECK(q.dim(2) <= kMostDeltaKeyDim, "a delta rule with keys of {} values: {} are possible", q.dim(2),
             kMostDeltaKeyDim);
}

// A sequence's states at chunks' beginnings have the places begin / kDeltaChunk.
inline int64_t delta_places(const DeltaRuleInputs& in) { return blocks_for(in.seq_len, kDeltaChunk); }
// Where there are no documents, the number of chunks, and else at least as many as there can be.
inline int64_t most_delta_chunks(const DeltaRuleInputs& in) {
  const int64_t whole = in.num_seqs * delta_places(in);
  return in.cu_seqlens.defined() ? std::min(in.v.dim(0), whole + in.cu_seqlens.dim(0)) : whole;
}

// With gradients and outputs of C tokens before and behind, as kernels/recurrent/delta_chunks.cuh has them.
struct DeltaTables {
  Tensor chunks;            // [most chunks, 4] I32: Chunk (kernels/recurrent/chunk_table.cuh)
  Tensor firsts;            // [B + 1] I32: each sequence's first chunk, and the number of chunks
  Tensor sums, betas;       // [H, T] F32
  Tensor q_norms, k_norms;  // [G, T] F32
  Tensor inverses, mixes;   // [T, H, chunk] act
};
inline DeltaTables claim_delta_tables(ArenaScope& scope, const DeltaRuleInputs& in) {
  const DeltaRuleSizes sizes = delta_rule_sizes(in);
  const Shape of_heads{sizes.heads, sizes.tokens}, of_groups{sizes.groups, sizes.tokens};
  const Shape squares{sizes.tokens, sizes.heads, kDeltaChunk};
  return {.chunks = scope.allocate(DType::kI32, {most_delta_chunks(in), 4}),
          .firsts = scope.allocate(DType::kI32, {in.num_seqs + 1}),
          .sums = scope.allocate(DType::kF32, of_heads),
          .betas = scope.allocate(DType::kF32, of_heads),
          .q_norms = scope.allocate(DType::kF32, of_groups),
          .k_norms = scope.allocate(DType::kF32, of_groups),
          .inverses = scope.allocate(in.v.dtype(), squares),
          .mixes = scope.allocate(in.v.dtype(), squares)};
}
// [B * places + B, H, K, V] act: at the beginnings of chunks, and behind those, of sequences' ends.
inline Tensor claim_delta_states(ArenaScope& scope, const DeltaRuleInputs& in) {
  return scope.allocate(in.v.dtype(), {in.num_seqs * (delta_places(in) + 1), in.v.dim(1), in.q.dim(2), in.v.dim(2)});
}

// BF16 goes through chunks, F32 from token to token.
struct DeltaForwardPlan {
  bool in_chunks;
  DeltaTables tables;  // undefined where it goes from token to token
};
inline DeltaForwardPlan plan(Planner& to, const DeltaRuleForward& args) {
  check_delta_rule(args.in.q, args.in.a);
  DeltaForwardPlan plan{.in_chunks = args.in.v.dtype() == DType::kBF16, .tables = {}};
  if (plan.in_chunks) plan.tables = claim_delta_tables(to.scope, args.in);
  return plan;
}

struct DeltaBackwardPlan {
  DeltaTables tables;
  Tensor states, dstates;
  Tensor values, dresiduals;  // [T, H, V] act
  Tensor dq, dk;              // [T, G, K] F32: of normed rows
  Tensor parts;               // [2, H, most chunks] F32: of a chunk, gradients of dt_bias and a_log
};
inline DeltaBackwardPlan plan(Planner& to, const DeltaRuleBackward& args) {
  const DeltaRuleInputs& in = args.in;
  check_delta_rule(in.q, in.a);
  return {.tables = claim_delta_tables(to.scope, in),
          .states = claim_delta_states(to.scope, in),
          .dstates = claim_delta_states(to.scope, in),
          .values = to.scope.allocate(in.v.dtype(), in.v.shape()),
          .dresiduals = to.scope.allocate(in.v.dtype(), in.v.shape()),
          .dq = to.scope.allocate(DType::kF32, in.q.shape()),
          .dk = to.scope.allocate(DType::kF32, in.q.shape()),
          .parts = to.scope.allocate(DType::kF32, {2, in.v.dim(1), most_delta_chunks(in)})};
}

struct CachedDeltaPlan {
  SlotRows rows;
};
inline CachedDeltaPlan plan(Planner& to, const CachedDeltaRule& args) {
  check_delta_rule(args.q, args.a);
  return {.rows = claim_slot_rows(to.scope, args.states.dim(0), args.q.dim(0))};
}

}  // namespace nmoe::cuda
