// Embedding's gradient: tokens sorted by their ids.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

struct EmbeddingBackwardPlan {
  Tensor tokens, sorted_ids, sorted_tokens;  // [T] I32
  Tensor sort;                               // bytes for the radix sort
  Tensor partials;                           // [2 pieces, D] F32: sums of runs that leave their piece
};
constexpr int64_t kEmbeddingPieceTokens = 64;
// A second copy of keys and values, and what its blocks tell each other.
inline int64_t sort_bytes(int64_t num_tokens) { return 16 * num_tokens + (int64_t{1} << 20); }
inline EmbeddingBackwardPlan plan(Planner& to, const EmbeddingBackward& args) {
  const int64_t T = args.ids.dim(0);
  EmbeddingBackwardPlan scratch;
  if (T == 0 || args.dtable.dim(1) == 0) return scratch;
  const int64_t asked = to.vendor == nullptr ? 0 : to.vendor->sort(T);
  scratch.tokens = to.scope.allocate(DType::kI32, {T});
  scratch.sorted_ids = to.scope.allocate(DType::kI32, {T});
  scratch.sorted_tokens = to.scope.allocate(DType::kI32, {T});
  scratch.sort = to.scope.allocate(DType::kU8, {std::max(sort_bytes(T), asked)});
  scratch.partials = to.scope.allocate(DType::kF32, {2 * blocks_for(T, kEmbeddingPieceTokens), args.dtable.dim(1)});
  return scratch;
}

}  // namespace nmoe::cuda
