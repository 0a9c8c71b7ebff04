// The head: rows whose logits, and their gradients, exist at one time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/linear.h"

namespace nmoe::cuda {

// A part of all rows, as large as others, so that they take `bytes` at most.
inline int64_t head_part_rows(int64_t num_rows, int64_t row_bytes, int64_t bytes) {
  constexpr int64_t kLeast = 128, kMost = 16384;
  const int64_t most = std::clamp(bytes / std::max<int64_t>(1, row_bytes) / kLeast * kLeast, kLeast, kMost);
  const int64_t num_parts = std::max<int64_t>(1, blocks_for(num_rows, most));
  return std::min(num_rows, blocks_for(blocks_for(num_rows, num_parts), kLeast) * kLeast);
}

// Of a row of logits, of which a cluster of blocks has a slice each in shared memory.
constexpr int kMaxHeadBlocks = 8;                        // that every device takes
constexpr int64_t kHeadSliceBytes = int64_t{216} << 10;  // of a multiprocessor, less what the kernel has of its own
constexpr int64_t kMaxHeadVocab = kMaxHeadBlocks * kHeadSliceBytes / static_cast<int64_t>(sizeof(float));
inline void check_head_vocab(int64_t vocab) {
  NMOE_CHECK(vocab <= kMaxHeadVocab, "logits of {} words; on CUDA at most {}", vocab, kMaxHeadVocab);
}

// Gradients of a chunk wait for its last logits, as a step reads and writes the gradient of the weight, [V, D] in F32,
// once a chunk; logits, which take twice as much each, wait for nobody, but a product reads the weight once a part.
struct HeadLossPlan {
  Tensor gradients;  // of a chunk [rows, V] act; empty where none are wanted
  Tensor logits;     // of a part of that [rows, V] F32
  LinearPlan product;
};
inline HeadLossPlan plan(Planner& to, const HeadLoss& args) {
  constexpr int64_t kGradientBytes = int64_t{5} << 28, kLogitBytes = int64_t{5} << 27;
  const int64_t vocab = args.w.dim(0), act_bytes = static_cast<int64_t>(dtype_bytes(args.x.dtype()));
  check_head_vocab(vocab);
  HeadLossPlan plan;
  int64_t rows = args.x.dim(0);
  if (args.dx.defined()) {
    rows = head_part_rows(rows, vocab * act_bytes, kGradientBytes);
    plan.gradients = to.scope.allocate(args.x.dtype(), {rows, vocab});
  }
  rows = head_part_rows(rows, vocab * static_cast<int64_t>(sizeof(float)), kLogitBytes);
  plan.logits = to.scope.allocate(DType::kF32, {rows, vocab});
  if (rows > 0) plan.product = {.workspace = claim_product_workspace(to.scope)};
  return plan;
}

}  // namespace nmoe::cuda
