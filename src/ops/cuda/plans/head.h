// The head: rows whose logits, and their gradients, exist at one time, and by what their exponentials are summed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/linear.h"

namespace nmoe::cuda {

// Columns of a tile of logits, whose exponentials are summed by themselves (LogitSums in contracts/head.h).
constexpr int kLogitTileCols = 192;

// What is known of the tiles of `rows` rows of logits.
struct LogitTiles {
  Tensor sums;     // = [tiles, rows, 2] F32: the highest logit of the tile, and the sum of exp(logit - highest)
  Tensor best;     // = [tiles, rows] i32: the lowest id with that logit; undefined: not wanted
  Tensor targets;  // = [rows] F32: the logit of the row's target, where it has one; undefined: not wanted

  int64_t num_tiles() const { return sums.dim(0); }
  int64_t num_rows() const { return sums.dim(1); }
};
inline LogitTiles claim_logit_tiles(ArenaScope& scope, int64_t rows, int64_t vocab, bool best, bool targets) {
  const int64_t tiles = blocks_for(vocab, kLogitTileCols);
  return {.sums = scope.allocate(DType::kF32, {tiles, rows, 2}),
          .best = best ? scope.allocate(DType::kI32, {tiles, rows}) : Tensor(),
          .targets = targets ? scope.allocate(DType::kF32, {rows}) : Tensor()};
}

// A part of all rows, as large as others, so that they take `bytes` at most.
inline int64_t head_part_rows(int64_t num_rows, int64_t row_bytes, int64_t bytes) {
  constexpr int64_t kLeast = 128, kMost = 16384;
  const int64_t most = std::clamp(bytes / std::max<int64_t>(1, row_bytes) / kLeast * kLeast, kLeast, kMost);
  const int64_t num_parts = std::max<int64_t>(1, blocks_for(num_rows, most));
  return std::min(num_rows, blocks_for(blocks_for(num_rows, num_parts), kLeast) * kLeast);
}

// Whether logits stay on the chip, and only their tiles' sums and exponentials reach memory (sm90/head_product.h).
inline bool fuses_logit_sums(const KernelSet& kernels, const HeadLoss& args) {
  return kernels.has_sm90() && args.x.dtype() == DType::kBF16 && args.x.dim(1) % 8 == 0 && args.w.dim(0) % 8 == 0;
}

// Gradients of a chunk wait for its last logits, as a step reads and writes the gradient of the weight, [V, D] in F32,
// once a chunk. Logits, where they are in memory, take twice as much each and wait for nobody, but a product reads the
// weight once a part.
struct HeadLossPlan {
  Tensor gradients;  // of a chunk [rows, V] act; empty where none are wanted
  Tensor logits;     // of a part of that [rows, V] F32; undefined: they are not in memory
  LogitTiles tiles;  // of a part, which is a chunk where there are no logits
  LinearPlan product;
};
inline HeadLossPlan plan(Planner& to, const HeadLoss& args) {
  constexpr int64_t kGradientBytes = int64_t{5} << 28, kLogitBytes = int64_t{5} << 27;
  const int64_t vocab = args.w.dim(0), act_bytes = static_cast<int64_t>(dtype_bytes(args.x.dtype()));
  HeadLossPlan plan;
  int64_t rows = head_part_rows(args.x.dim(0), vocab * act_bytes, kGradientBytes);
  if (args.dx.defined()) plan.gradients = to.scope.allocate(args.x.dtype(), {rows, vocab});
  if (!fuses_logit_sums(to.kernels, args)) {
    rows = head_part_rows(rows, vocab * static_cast<int64_t>(sizeof(float)), kLogitBytes);
    plan.logits = to.scope.allocate(DType::kF32, {rows, vocab});
  }
  plan.tiles = claim_logit_tiles(to.scope, rows, vocab, args.predictions.defined(), /*targets=*/true);
  if (rows > 0) plan.product = {.workspace = claim_product_workspace(to.scope)};
  return plan;
}

struct LogitSumsPlan {
  LogitTiles tiles;
};
inline LogitSumsPlan plan(Planner& to, const LogitSums& args) {
  return {claim_logit_tiles(to.scope, args.logits.dim(0), args.logits.dim(1), /*best=*/false, /*targets=*/false)};
}

}  // namespace nmoe::cuda
