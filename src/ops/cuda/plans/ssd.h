// The SSD scan: where its chunks are, steps and their sums, and states at chunks' beginnings.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"
#include "ops/cuda/plans/slot_rows.h"

namespace nmoe::cuda {

// A sequence's states at chunks' beginnings have the places of contracts/ssd.h's CPU reference: begin / Q.
inline int64_t ssd_places(const SsdInputs& in) { return blocks_for(in.seq_len, in.chunk); }
// Where there are no documents, the number of chunks, and else at least as many as there can be.
inline int64_t most_ssd_chunks(const SsdInputs& in) {
  const int64_t whole = in.num_seqs * ssd_places(in);
  return in.cu_seqlens.defined() ? std::min(in.x.dim(0), whole + in.cu_seqlens.dim(0)) : whole;
}

struct SsdTables {
  Tensor chunks;       // [most chunks, 4] I32: SsdChunk (kernels/recurrent/ssd_chunks.cuh)
  Tensor firsts;       // [B + 1] I32: each sequence's first chunk, and the number of chunks
  Tensor steps, sums;  // [H, T] F32
};
inline SsdTables claim_ssd_tables(ArenaScope& scope, const SsdInputs& in) {
  return {.chunks = scope.allocate(DType::kI32, {most_ssd_chunks(in), 4}),
          .firsts = scope.allocate(DType::kI32, {in.num_seqs + 1}),
          .steps = scope.allocate(DType::kF32, {in.x.dim(1), in.x.dim(0)}),
          .sums = scope.allocate(DType::kF32, {in.x.dim(1), in.x.dim(0)})};
}
// [B * places + B, H, P, N] act: at the beginnings of chunks, and behind those, of sequences' ends.
inline Tensor claim_ssd_states(ArenaScope& scope, const SsdInputs& in) {
  return scope.allocate(in.x.dtype(), {in.num_seqs * (ssd_places(in) + 1), in.x.dim(1), in.x.dim(2), in.b.dim(2)});
}

// Sizes that Hopper has kernels of its own for (sm90/ssd.h), in BF16.
constexpr int64_t kSm90SsdHead = 64, kSm90SsdState = 128, kSm90SsdChunk = 128;
inline bool sm90_ssd_takes(const KernelSet& kernels, const SsdInputs& in) {
  const SsdSizes sizes = ssd_sizes(in);
  return kernels.has_sm90() && in.x.dtype() == DType::kBF16 && sizes.head_dim == kSm90SsdHead &&
         sizes.state == kSm90SsdState && sizes.chunk == kSm90SsdChunk && in.x.stride() % 8 == 0 &&
         in.b.stride() % 8 == 0 && in.c.stride() % 8 == 0;
}

struct SsdForwardPlan {
  SsdTables tables;
  Tensor states;  // undefined where Hopper's kernel runs
};
inline SsdForwardPlan plan(Planner& to, const SsdForward& args) {
  SsdForwardPlan plan{.tables = claim_ssd_tables(to.scope, args.in), .states = {}};
  if (!sm90_ssd_takes(to.kernels, args.in)) plan.states = claim_ssd_states(to.scope, args.in);
  return plan;
}

struct SsdBackwardPlan {
  SsdTables tables;
  Tensor states, dstates;
  Tensor parts;  // [3, H, most chunks] F32: of a chunk, gradients of dt_bias, a_log and d
  bool is_sm90;  // whether Hopper's kernels run
};
inline bool sm90_ssd_takes(const KernelSet& kernels, const SsdBackward& args) {
  return sm90_ssd_takes(kernels, args.in) && args.dx.stride() % 8 == 0 && args.db.stride() % 8 == 0 &&
         args.dc.stride() % 8 == 0;
}
inline SsdBackwardPlan plan(Planner& to, const SsdBackward& args) {
  return {.tables = claim_ssd_tables(to.scope, args.in),
          .states = claim_ssd_states(to.scope, args.in),
          .dstates = claim_ssd_states(to.scope, args.in),
          .parts = to.scope.allocate(DType::kF32, {3, args.in.x.dim(1), most_ssd_chunks(args.in)}),
          .is_sm90 = sm90_ssd_takes(to.kernels, args)};
}

struct CachedSsdPlan {
  SlotRows rows;
};
constexpr int64_t kMostCachedStates = 4096;  // of a value, so that some rows of C are in shared memory
inline CachedSsdPlan plan(Planner& to, const CachedSsd& args) {
  NMOE_CHECK(args.b.dim(2) <= kMostCachedStates, "a cached scan of {} states: {} are possible", args.b.dim(2),
             kMostCachedStates);
  return {.rows = claim_slot_rows(to.scope, args.states.dim(0), args.x.dim(0))};
}

}  // namespace nmoe::cuda
