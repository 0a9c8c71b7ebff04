// Products over ragged groups of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/contracts/pieces.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/plans/expert_product.h"
#include "ops/cuda/plans/rounding.h"

namespace nmoe::cuda {

// Which kernels multiply: all that a run has to know (the table in kernels/products/grouped_linear.cu).
enum class GroupedEngine {
  kTiles,   // any operands on any device, a tile at a time (primitives/gemm_tile.cuh), or of F32 forwards a row's
            // sums one by one (kernels/products/invariant_products.h)
  kSm90,    // BF16 on Hopper (sm90/grouped_linear.h)
  kSm100,   // BF16 on Blackwell (sm100/grouped_product.h)
  kCodes,   // FP8 codes on Hopper (sm90/grouped_fp8.h)
  kBlocks,  // blocks with scales on Blackwell (sm100/rounded_products.h)
};
constexpr size_t kNumGroupedEngines = 5;
// Whether rows of these widths are whole 16 bytes of BF16, as wgmma's and tcgen05's products want them.
inline bool whole_rows(DType dtype, int64_t width, int64_t other_width) {
  return dtype == DType::kBF16 && width % 8 == 0 && other_width % 8 == 0;
}
// Kernels count tiles and rows in 32 bits, and experts in a dimension of grids.
inline void check_grouped_limits(int64_t num_rows, int64_t width, int64_t other_width, int64_t num_experts) {
  NMOE_CHECK(num_rows <= INT32_MAX && width <= INT32_MAX / 2 && other_width <= INT32_MAX / 2 && num_experts <= 65535,
             "grouped product over {} rows of {} and {} values, {} experts", num_rows, width, other_width, num_experts);
}
// Rows in order of `width` times weights, to rows of `other_width`.
inline GroupedEngine grouped_engine(const KernelSet& kernels, const OperandRounding& rounding, DType dtype,
                                    int64_t width, int64_t other_width) {
  if (rounding.weight.defined()) return GroupedEngine::kCodes;
  if (multiplies_blocks(kernels, rounding)) return GroupedEngine::kBlocks;
  if (!whole_rows(dtype, width, other_width)) return GroupedEngine::kTiles;
  if (kernels.has_sm100()) return GroupedEngine::kSm100;
  return kernels.has_sm90() ? GroupedEngine::kSm90 : GroupedEngine::kTiles;
}

struct GroupedLinearPlan {
  GroupedEngine engine = GroupedEngine::kTiles;
  RowCodes codes = {};              // kCodes: of rows that came without
  BlockProductScratch blocks = {};  // kBlocks
};
template <class Arguments>
GroupedLinearPlan plan_grouped(Planner& to, const Arguments& args, const Tensor& rows, const Tensor& other_rows) {
  GroupedLinearPlan plan;
  check_grouped_limits(rows.dim(0), rows.dim(1), other_rows.dim(1), args.w.dim(0));
  plan.engine = grouped_engine(to.kernels, args.rounding, rows.dtype(), rows.dim(1), other_rows.dim(1));
  if (plan.engine == GroupedEngine::kCodes) plan.codes = claim_row_codes(to.scope, args.rounding, rows);
  if (plan.engine == GroupedEngine::kBlocks) plan.blocks = claim_blocks(to.scope, args);
  return plan;
}
inline GroupedLinearPlan plan(Planner& to, const GroupedLinearForward& args) {
  return plan_grouped(to, args, args.x, args.y);
}
inline GroupedLinearPlan plan(Planner& to, const GroupedLinearBackwardInput& args) {
  return plan_grouped(to, args, dy_of(args), args.dx);
}

// Rows of grouped products that are picked: Hopper's kernels read them where they lie, others want them in order.
inline Tensor claim_ordered(ArenaScope& scope, const OperandRows& rows) {
  if (!rows.index.defined()) return {};
  return scope.allocate(rows.source.dtype(), {rows.num_rows(), rows.width()});
}
// --- experts' first layer, with the activation behind it. On Hopper that is one kernel's work with the product, where
// rows have weights: of BF16, and of FP8 where a block of hidden units is in one tile, as wide as a block.
struct GroupedActivationForwardPlan {
  GroupedLinearPlan product = {};
  bool fused = false;  // the product leaves h
  Tensor x = {};       // [R, in] act: rows that were picked, or undefined
  Tensor pre = {};     // [R, W] act: what activations are made of, where they have no other memory, or undefined
  Tensor h = {};       // [R, F] act: what columns' codes are made of, or undefined
};
// Of kinds that Hopper's kernels of products have (primitives/activation.cuh, dispatch_fused_activation).
constexpr bool fuses(Activation kind) { return kind != Activation::kClampedSwiGlu; }
inline bool fuses_activation(GroupedEngine engine, const GroupedActivationForward& args) {
  if (!fuses(args.kind) || !args.row_weight.defined() || args.bias.defined()) return false;
  const int64_t hidden = args.w.dim(1) / activation_parts(args.kind);
  if (engine == GroupedEngine::kCodes) return hidden % block_size(OperandFormat::kFp8) == 0;
  return engine == GroupedEngine::kSm90 && args.rounding.format == OperandFormat::kAct && hidden % 8 == 0;
}
inline GroupedActivationForwardPlan plan(Planner& to, const GroupedActivationForward& args) {
  const OperandRounding& rounding = args.rounding;
  GroupedActivationForwardPlan plan;
  GroupedLinearPlan& product = plan.product;
  const int64_t rows = args.x.num_rows(), width = args.w.dim(1);
  const DType act = args.x.source.dtype();
  check_grouped_limits(rows, args.x.width(), width, args.w.dim(0));
  product.engine = grouped_engine(to.kernels, rounding, act, args.x.width(), width);
  plan.fused = fuses_activation(product.engine, args);
  product.codes = claim_row_codes(to.scope, rounding, args.x);
  if (!plan.fused && rounding.format == OperandFormat::kAct) plan.x = claim_ordered(to.scope, args.x);
  if (!(plan.fused && product.engine == GroupedEngine::kCodes)) {
    if (!args.pre.defined()) plan.pre = to.scope.allocate(act, {rows, width});
    if (args.h_columns.defined()) plan.h = to.scope.allocate(act, {rows, args.h_columns.values.dim(1)});
  }
  if (product.engine == GroupedEngine::kBlocks) product.blocks = claim_blocks(to.scope, args);
  return plan;
}

// --- gradients of experts' weights. On Hopper: the tiles of an expert's dw [rows, cols].
struct GradientTile {
  int64_t rows, cols;

  constexpr int64_t count(int64_t dw_rows, int64_t dw_cols) const {
    return blocks_for(dw_rows, rows) * blocks_for(dw_cols, cols);
  }
  constexpr bool operator==(const GradientTile&) const = default;
};
constexpr GradientTile kFp8GradientTile{.rows = 256, .cols = 128};
constexpr GradientTile kWideGradientTile{.rows = 128, .cols = 256}, kTallGradientTile{.rows = 256, .cols = 128};
// From BF16: that of the two with which the tiles of a dw load less in all. They multiply the same, with the same bits.
constexpr GradientTile gradient_tile(int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = 64;  // rows of dw, or columns, whose operands are loaded or left out together
  const auto num_panels = [=](const GradientTile& tile) {
    return blocks_for(rows, kPanel) * blocks_for(cols, tile.cols) +
           blocks_for(cols, kPanel) * blocks_for(rows, tile.rows);
  };
  return num_panels(kTallGradientTile) < num_panels(kWideGradientTile) ? kTallGradientTile : kWideGradientTile;
}
inline TileOrder claim_gradient_order(ArenaScope& scope, const GroupedLinearBackwardWeight& args) {
  const int64_t rows = args.dw.dim(1), cols = args.dw.dim(2);
  const bool fp8 = args.rounding.format == OperandFormat::kFp8;
  const int64_t tiles = (fp8 ? kFp8GradientTile : gradient_tile(rows, cols)).count(rows, cols);
  return claim_tile_order(scope, args.dw.dim(0), num_piece_counters(max_later_pieces(args.num_rows()), tiles));
}

inline ColumnCodes claim_column_codes(ArenaScope& scope, const OperandRows& rows, int64_t num_groups) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  const int64_t blocks = rows.num_rows() / n + num_groups;
  ColumnCodes codes;
  codes.values = scope.allocate(DType::kU8, {blocks, rows.width(), n});
  codes.scales = scope.allocate(DType::kU8, {blocks, rows.width()});
  return codes;
}
struct GroupedWeightPlan {
  GroupedEngine engine = GroupedEngine::kTiles;
  ColumnCodes x_columns = {}, dy_columns = {};  // kCodes: those that did not come along
  TileOrder order = {};                         // in which experts are taken: on Hopper, and of BF16 on Blackwell
  Tensor x = {}, dy = {};                       // kTiles, kSm100: rows that were picked, in order
  BlockProductScratch blocks = {};              // kBlocks
};
inline GroupedEngine grouped_engine(const KernelSet& kernels, const GroupedLinearBackwardWeight& args) {
  if (multiplies_blocks(kernels, args.rounding)) return GroupedEngine::kBlocks;
  if (args.rounding.format != OperandFormat::kAct) return GroupedEngine::kCodes;
  if (args.x.num_rows() == 0) return GroupedEngine::kTiles;
  return grouped_engine(kernels, args.rounding, args.x.source.dtype(), args.x.width(), args.dy.width());
}
inline GroupedWeightPlan plan(Planner& to, const GroupedLinearBackwardWeight& args) {
  GroupedWeightPlan plan;
  if (args.dw.num_elements() == 0) return plan;
  check_grouped_limits(args.num_rows(), args.dw.dim(1), args.dw.dim(2), args.dw.dim(0));
  plan.engine = grouped_engine(to.kernels, args);
  const int64_t num_groups = args.dw.dim(0);
  switch (plan.engine) {
    case GroupedEngine::kBlocks:
      plan.blocks = claim_blocks(to.scope, args);
      return plan;
    case GroupedEngine::kCodes:
      if (!args.x_columns.defined()) plan.x_columns = claim_column_codes(to.scope, args.x, num_groups);
      if (!args.dy_columns.defined()) plan.dy_columns = claim_column_codes(to.scope, args.dy, num_groups);
      plan.order = claim_gradient_order(to.scope, args);
      return plan;
    case GroupedEngine::kSm90:
      plan.order = claim_gradient_order(to.scope, args);
      return plan;
    case GroupedEngine::kSm100:
      plan.order = claim_tile_order(to.scope, num_groups);
      break;
    case GroupedEngine::kTiles:
      break;
  }
  plan.x = claim_ordered(to.scope, args.x);
  plan.dy = claim_ordered(to.scope, args.dy);
  return plan;
}

// --- experts' second layer backwards, with the activation in front of it. On Hopper that is one kernel's work with the
// product, which adds up the gradients of row weights by tiles of columns; elsewhere dh lies in memory.
constexpr int64_t kLeastActivationTileCols = 192;  // of the narrowest tiles
struct GroupedActivationBackwardPlan {
  GroupedLinearPlan product = {};
  bool fused = false;    // the product leaves dpre
  Tensor dy = {};        // [R, out] act: rows that were picked, or undefined
  Tensor dh = {};        // [R, F] act, unless fused
  Tensor pre = {};       // [R, W] act: where codes are widened and dpre is made, if that has no other memory
  Tensor row_sums = {};  // [at least tiles of F, R] F32: parts of drow_weight, where fused
};
// Whether a fused product reads pre-activations, and leaves their gradients, as codes alone.
inline bool stays_in_codes(const GroupedActivationBackwardPlan& plan, const GroupedActivationBackward& args) {
  return plan.fused && plan.product.engine == GroupedEngine::kCodes && args.pre_codes.defined() &&
         args.dpre_columns.defined() && !args.keeps_dpre && !args.h.defined();
}
// Of BF16, and of FP8 where a block of a part's gradients is in one tile, as wide as a block.
inline bool fuses_activation_backward(GroupedEngine engine, const GroupedActivationBackward& args) {
  if (!fuses(args.kind) || !args.row_weight.defined()) return false;
  if (engine == GroupedEngine::kCodes) return args.w.dim(2) % block_size(OperandFormat::kFp8) == 0;
  return engine == GroupedEngine::kSm90 && args.rounding.format == OperandFormat::kAct;
}
inline GroupedActivationBackwardPlan plan(Planner& to, const GroupedActivationBackward& args) {
  const OperandRounding& rounding = args.rounding;
  const int64_t rows = args.dy.num_rows(), width = args.w.dim(2);
  const DType act = args.dy.source.dtype();
  GroupedActivationBackwardPlan plan;
  GroupedLinearPlan& product = plan.product;
  const Tensor pre = pre_of(args);
  check_grouped_limits(rows, args.dy.width(), pre.dim(1), args.w.dim(0));
  product.engine = grouped_engine(to.kernels, rounding, act, args.dy.width(), width);
  plan.fused = fuses_activation_backward(product.engine, args);
  product.codes = claim_row_codes(to.scope, rounding, args.dy);
  if (plan.fused) {
    const bool codes = product.engine == GroupedEngine::kCodes;
    const int64_t tile = codes ? block_size(OperandFormat::kFp8) : kLeastActivationTileCols;
    plan.row_sums = to.scope.allocate(DType::kF32, {blocks_for(width, tile), rows});
  } else {
    if (rounding.format == OperandFormat::kAct) plan.dy = claim_ordered(to.scope, args.dy);
    plan.dh = to.scope.allocate(act, {rows, width});
  }
  if (!args.pre.defined() && !args.dpre.defined() && !stays_in_codes(plan, args)) {
    plan.pre = to.scope.allocate(act, pre.shape());
  }
  if (product.engine == GroupedEngine::kBlocks) product.blocks = claim_blocks(to.scope, args);
  return plan;
}

}  // namespace nmoe::cuda
