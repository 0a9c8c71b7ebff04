// The head: rows whose logits exist at one time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/linear.h"

namespace nmoe::cuda {

// A part of all rows, so that they take kBytes at most; for the gradient
// of the weight, [V, D] in F32, is read and written once a part.
inline int64_t head_chunk_rows(int64_t num_tokens, int64_t row_bytes) {
  constexpr int64_t kBytes = int64_t{5} << 28, kLeast = 128, kMost = 16384;
  const int64_t most = std::clamp(kBytes / std::max<int64_t>(1, row_bytes) / kLeast * kLeast, kLeast, kMost);
  const int64_t num_parts = std::max<int64_t>(1, blocks_for(num_tokens, most));
  return std::min(num_tokens, blocks_for(blocks_for(num_tokens, num_parts), kLeast) * kLeast);
}

constexpr int64_t kMaxHeadVocab = INT32_MAX - 64;  // counted in 32 bits, with what fills up the last vectors
struct HeadLossPlan {
  Tensor logits;  // of a chunk [rows, V], whose place gradients take: act then, F32 where none are wanted
  LinearPlan product;
};
inline HeadLossPlan plan(Planner& to, const HeadLoss& args) {
  NMOE_CHECK(args.w.dim(0) <= kMaxHeadVocab, "a head over {} words; on CUDA at most {}", args.w.dim(0), kMaxHeadVocab);
  const DType dtype = args.dx.defined() ? args.x.dtype() : DType::kF32;
  const int64_t vocab = args.w.dim(0), row_bytes = vocab * static_cast<int64_t>(dtype_bytes(dtype));
  HeadLossPlan plan;
  plan.logits = to.scope.allocate(dtype, {head_chunk_rows(args.x.dim(0), row_bytes), vocab});
  if (args.x.dim(0) > 0) plan.product = {.workspace = claim_product_workspace(to.scope)};
  return plan;
}

}  // namespace nmoe::cuda
