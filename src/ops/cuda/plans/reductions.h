// Reductions to one number: a partial sum for each block.
#pragma once

#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

constexpr int64_t kReduceElements = int64_t{1} << 14;
inline Tensor claim_partials(ArenaScope& scope, const Tensor& x, DType partial) {
  return scope.allocate(partial, {blocks_for(x.num_elements(), kReduceElements)});
}
// Blocks that read the tensor: none where the sums of its parts are there.
inline int64_t num_square_blocks(const SumOfSquares& args) {
  return args.parts.defined() ? 0 : blocks_for(args.x.num_elements(), kReduceElements);
}
struct SquaresScratch {
  Tensor partials;  // [blocks of all tensors] F64
  Tensor totals;    // [tensors] F64
};
inline SquaresScratch plan(Planner& to, const SumsOfSquares& args) {
  int64_t blocks = 0;
  for (const SumOfSquares& one : args.all) blocks += num_square_blocks(one);
  SquaresScratch scratch;
  scratch.partials = to.scope.allocate(DType::kF64, {blocks});
  scratch.totals = to.scope.allocate(DType::kF64, {static_cast<int64_t>(args.all.size())});
  return scratch;
}

inline Tensor plan(Planner& to, const Sum& args) { return claim_partials(to.scope, args.x, DType::kF64); }
inline Tensor plan(Planner& to, const CountNonFinite& args) { return claim_partials(to.scope, args.x, DType::kI32); }

}  // namespace nmoe::cuda
