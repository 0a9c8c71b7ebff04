// Norms: a partial gradient of the gain for each chunk of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

// Rows that are wide are worked on by whole blocks, of which more find room at once.
inline int64_t gain_chunk_rows(int64_t num_rows, int64_t width) {
  constexpr int64_t kMinRows = 32;
  const int64_t max_chunks = width > 1024 ? 512 : 256;
  return std::max(kMinRows, blocks_for(num_rows, max_chunks));
}
constexpr int64_t kMaxNormWidth = 16384;  // what a block's threads hold of a row
inline Tensor plan(Planner& to, const RmsNormBackward& args) {
  const int64_t rows = norm_vectors(args.x), width = args.x.dim(-1);
  NMOE_CHECK(width <= kMaxNormWidth, "the gradient of a norm over {} values: {} are possible", width, kMaxNormWidth);
  return to.scope.allocate(DType::kF32, {blocks_for(rows, gain_chunk_rows(rows, width)), width});
}

constexpr int64_t kMaxGatedGroup = 8192;  // what a block's threads hold of a group
// [chunks, D] F32
inline Tensor plan(Planner& to, const GatedNormBackward& args) {
  const int64_t rows = args.x.dim(0), width = args.x.dim(1), size = width / args.rstd.dim(1);
  NMOE_CHECK(size <= kMaxGatedGroup, "the gradient of a gated norm over {} values: {} are possible", size,
             kMaxGatedGroup);
  return to.scope.allocate(DType::kF32, {blocks_for(rows, gain_chunk_rows(rows, width)), width});
}

}  // namespace nmoe::cuda
