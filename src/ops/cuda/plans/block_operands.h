// Operands of products in MXFP8 and NVFP4 on Blackwell, as tensor cores and cuBLASLt take them, and the scratch in
// which a product has them. By arguments alone (planner.h). No CUDA here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/operations.h"
#include "tensor/arena.h"

namespace nmoe::cuda {

// A matrix of `rows` with k along them. Values are whole 16 bytes a row, with zeros behind the last of k. Scales lie in
// blocks of 128 rows by 4 of k (sm100/descriptors.h: scale_offset); the rows of each group begin with a block of their
// own.
struct BlockOperand {
  OperandFormat format = OperandFormat::kAct;
  Tensor values;     // [rows, bytes of k] u8
  Tensor scales;     // [blocks of rows, blocks of k, 512] u8
  Tensor amax = {};  // NVFP4: [groups] F32, the largest magnitudes
};

constexpr int64_t kBlockTile = 128;  // rows of a tile of C, of a block of scales, and what tokens of a group fill up to

inline int64_t block_tiles(int64_t size) { return (size + kBlockTile - 1) / kBlockTile; }
// Of ragged groups: each has at most one tile that is not full.
inline int64_t most_block_tiles(int64_t rows, int64_t groups) { return rows / kBlockTile + std::min(groups, rows); }

inline BlockOperand claim_block_operand(ArenaScope& scope, OperandFormat format, int64_t rows, int64_t row_blocks,
                                        int64_t depth, int64_t groups) {
  constexpr int64_t kScalesAcross = 4;
  const int64_t n = block_size(format), values = (depth + 31) / 32 * 32;
  const bool is_nvfp4 = format == OperandFormat::kNvFp4;
  BlockOperand operand{.format = format, .values = {}, .scales = {}};
  operand.values = scope.allocate(DType::kU8, {rows, is_nvfp4 ? values / 2 : values});
  operand.scales =
      scope.allocate(DType::kU8, {row_blocks, (values + n * kScalesAcross - 1) / (n * kScalesAcross), int64_t{512}});
  if (is_nvfp4) operand.amax = scope.allocate(DType::kF32, {groups});
  return operand;
}

// The order in which experts are taken whose tiles take longer than others'.
struct TileOrder {
  Tensor order;     // [E] I32
  Tensor counters;  // [1] I32: tiles taken; of sums in pieces [num_piece_counters()]
};
// Counters of sums in pieces (contracts/pieces.h): tiles taken of first pieces and, only where there can be later ones,
// tiles taken of those, then a turn for each of their tiles (sm90/turns.cuh).
constexpr int64_t num_piece_counters(int64_t later_pieces, int64_t tiles) {
  return later_pieces > 0 ? 2 + later_pieces * tiles : 1;
}
inline int32_t* first_pieces_taken(const TileOrder& order) { return order.counters.data<int32_t>(); }
inline int32_t* later_pieces_taken(const TileOrder& order) { return order.counters.data<int32_t>() + 1; }
inline int32_t* later_pieces_turns(const TileOrder& order) { return order.counters.data<int32_t>() + 2; }

inline TileOrder claim_tile_order(ArenaScope& scope, int64_t num_experts, int64_t num_counters = 1) {
  TileOrder order;
  order.order = scope.allocate(DType::kI32, {num_experts});
  order.counters = scope.allocate(DType::kI32, {num_counters});
  return order;
}

struct BlockProductScratch {
  BlockOperand a, b;
  Tensor tile_offsets = {};   // [E + 1] I32, of groups
  TileOrder order = {};       // of groups, for gradients of weights
  Tensor workspace = {};      // of cuBLASLt, and
  Tensor product_scale = {};  // [2] F32, its factors of the product and of what is added: for dense products
};

// Rows [R, K] times weights [out, in], or those of E experts by groups of rows; which sum over `out` where over_out.
inline BlockProductScratch claim_block_rows(ArenaScope& scope, OperandFormat format, const OperandRows& rows,
                                            const Tensor& w, bool over_out, const Tensor& offsets) {
  const int64_t R = rows.num_rows(), E = w.shape().rank() == 3 ? w.dim(0) : 1, out = w.dim(-2), in = w.dim(-1);
  const bool grouped = offsets.defined();
  BlockProductScratch scratch;
  scratch.a =
      claim_block_operand(scope, format, R, grouped ? most_block_tiles(R, E) : block_tiles(R), over_out ? out : in, E);
  scratch.b = over_out ? claim_block_operand(scope, format, in, block_tiles(in), E * block_tiles(out) * kBlockTile, E)
                       : claim_block_operand(scope, format, E * out, E * block_tiles(out), in, E);
  if (grouped) scratch.tile_offsets = scope.allocate(DType::kI32, {E + 1});
  return scratch;
}
// dw [out, in] or [E, out, in] of rows x and dy.
inline BlockProductScratch claim_block_weights(ArenaScope& scope, OperandFormat format, const OperandRows& x,
                                               const OperandRows& dy, const Tensor& offsets) {
  const int64_t R = x.num_rows(), groups = offsets.defined() ? offsets.dim(0) - 1 : 1;
  const int64_t depth = (offsets.defined() ? most_block_tiles(R, groups) : block_tiles(R)) * kBlockTile;
  BlockProductScratch scratch;
  scratch.a = claim_block_operand(scope, format, dy.width(), block_tiles(dy.width()), depth, groups);
  scratch.b = claim_block_operand(scope, format, x.width(), block_tiles(x.width()), depth, groups);
  if (!offsets.defined()) return scratch;
  scratch.tile_offsets = scope.allocate(DType::kI32, {groups + 1});
  scratch.order = claim_tile_order(scope, groups);
  return scratch;
}

// Of an operation's product.
inline BlockProductScratch claim_blocks(ArenaScope& scope, const LinearForward& args) {
  return claim_block_rows(scope, args.rounding.format, args.x, args.w, /*over_out=*/false, {});
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const LinearActivationForward& args) {
  return claim_block_rows(scope, args.rounding.format, args.x, args.w, /*over_out=*/false, {});
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const LinearBackwardInput& args) {
  return claim_block_rows(scope, args.rounding.format, args.dy, args.w, /*over_out=*/true, {});
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const LinearBackwardWeight& args) {
  return claim_block_weights(scope, args.rounding.format, args.x, args.dy, {});
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const GroupedLinearForward& args) {
  return claim_block_rows(scope, args.rounding.format, args.x, args.w, /*over_out=*/false, args.offsets);
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const GroupedActivationForward& args) {
  return claim_block_rows(scope, args.rounding.format, args.x, args.w, /*over_out=*/false, args.offsets);
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const GroupedLinearBackwardInput& args) {
  return claim_block_rows(scope, args.rounding.format, args.dy, args.w, /*over_out=*/true, args.offsets);
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const GroupedActivationBackward& args) {
  return claim_block_rows(scope, args.rounding.format, args.dy, args.w, /*over_out=*/true, args.offsets);
}
inline BlockProductScratch claim_blocks(ArenaScope& scope, const GroupedLinearBackwardWeight& args) {
  return claim_block_weights(scope, args.rounding.format, args.x, args.dy, args.offsets);
}

}  // namespace nmoe::cuda
