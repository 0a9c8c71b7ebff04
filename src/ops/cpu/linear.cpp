#include <algorithm>
#include <type_traits>

#include "ops/contracts/pieces.h"
#include "ops/cpu/expert_bias.h"
#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/rounded_operands.h"
#include "ops/cpu/row_products.h"

namespace nmoe::cpu {
namespace {

// How a [rows, cols] output is cut into tiles, one gemm each. The cut depends on shapes alone.
struct Tiling {
  int64_t rows, cols;            // of the output
  int64_t tile_rows, tile_cols;  // of a tile, less at the lower and right edges

  int64_t tiles_across() const { return ceil_div(cols, tile_cols); }
  int64_t num_tiles() const { return ceil_div(rows, tile_rows) * tiles_across(); }
};

struct Tile {
  int64_t row, col, rows, cols;
};

Tile tile_at(const Tiling& tiling, int64_t index) {
  const int64_t row = index / tiling.tiles_across() * tiling.tile_rows;
  const int64_t col = index % tiling.tiles_across() * tiling.tile_cols;
  return {row, col, std::min(tiling.tile_rows, tiling.rows - row), std::min(tiling.tile_cols, tiling.cols - col)};
}

// Tiles large enough for gemm to be efficient, and enough of them for many threads to balance.
Tiling choose_tiling(int64_t rows, int64_t cols) {
  constexpr int64_t kWantedTiles = 8;
  constexpr int64_t kSmallest = 64;
  Tiling tiling{rows, cols, 512, 512};
  while (tiling.num_tiles() < kWantedTiles) {
    const bool can_halve_rows = tiling.tile_rows > kSmallest && rows > kSmallest;
    const bool can_halve_cols = tiling.tile_cols > kSmallest && cols > kSmallest;
    if (!can_halve_rows && !can_halve_cols) break;
    const bool halve_cols = can_halve_cols && (!can_halve_rows || tiling.tile_cols > tiling.tile_rows);
    (halve_cols ? tiling.tile_cols : tiling.tile_rows) /= 2;
  }
  return tiling;
}

// Calls fn(tile, scratch) in parallel for the tiles of a [rows, cols] output, with gemm's scratch.
template <class Real, class Fn>
void parallel_tiles(Context& ctx, int64_t rows, int64_t cols, const Fn& fn) {
  ArenaScope scope(ctx.scratch);
  const Tensor scratch = claim_gemm_scratch<Real>(scope, ctx);
  if (ctx.counting()) return;
  const Tiling tiling = choose_tiling(rows, cols);
  ctx.pool.parallel_for(tiling.num_tiles(),
                        [&](int64_t task, int thread) { fn(tile_at(tiling, task), scratch[thread].data<Real>()); });
}

}  // namespace

namespace {

// What it costs to fetch a weight, in multiplications: for few rows that is the work.
constexpr int64_t kFetchProducts = 8;

// Up to how many rows of a weight matrix their products are made by dot_rows, not gemm, which is another speed and no
// other result: in double, only for proofs, results would differ.
constexpr int64_t kFewRows = 8;
template <class Real>
constexpr bool are_few(int64_t rows) {
  return std::is_same_v<Real, float> && rows <= kFewRows;
}

// How the products of `rows` rows (of one weight matrix) are cut into tasks, where they are few.
Tiling choose_row_tiling(int64_t rows, int64_t in, int64_t out) {
  constexpr int64_t kTaskRows = 64, kLeastColumns = 16;
  const int64_t tile_rows = std::max<int64_t>(1, std::min(rows, kTaskRows));
  const int64_t column_products = std::max<int64_t>(1, (tile_rows + kFetchProducts) * in);
  return {rows, out, tile_rows,
          std::max(kLeastColumns, kTaskProducts / column_products / kLeastColumns * kLeastColumns)};
}

// Rows of y = x w^T, each for itself.
template <class Real>
void multiply_rows(const Tile& t, int64_t in, int64_t out, const Real* x, const Real* w, Real* y, bool accumulate) {
  dot_rows<Real>(t.rows, t.cols, in, 1, {x + t.row * in, in}, {w + t.col * in, in}, {y + t.row * out + t.col, out},
                 accumulate);
}

}  // namespace

template <class Real>
void linear_forward(Context& ctx, const LinearForward& args) {
  ArenaScope scope(ctx.scratch);
  const RoundedOperand rounded_x = round_rows(ctx, scope, args.rounding, args.x),
                       rounded_w = round_weights(ctx, scope, args.rounding, args.w, SumOver::kIn);
  const Tensor x = rounded_x.values, w = rounded_w.values, y = args.y;
  const bool accumulate = args.addend.defined();
  const int64_t num_tokens = x.dim(0), in = x.dim(1), out = w.dim(0);
  const auto begin_with_addend = [&](const Tile& t) {
    if (!accumulate || args.addend.raw() == y.raw()) return;
    for (int64_t row = t.row; row < t.row + t.rows; ++row) {
      std::copy_n(args.addend.data<Real>() + row * out + t.col, t.cols, y.data<Real>() + row * out + t.col);
    }
  };
  if (are_few<Real>(num_tokens) && args.rounding.format == OperandFormat::kAct) {
    if (ctx.counting()) return;
    const Tiling tiling = choose_row_tiling(num_tokens, in, out);
    ctx.pool.parallel_for(tiling.num_tiles(), [&](int64_t task, int) {
      const Tile tile = tile_at(tiling, task);
      begin_with_addend(tile);
      multiply_rows(tile, in, out, x.data<Real>(), w.data<Real>(), y.data<Real>(), accumulate);
    });
    return;
  }
  parallel_tiles<Real>(ctx, num_tokens, out, [&](const Tile& t, Real* scratch) {
    begin_with_addend(t);
    gemm<Real>(scratch, t.rows, t.cols, in, product_factor(rounded_x, rounded_w), {x.data<Real>() + t.row * in, in},
               {w.data<Real>() + t.col * in, in, Transpose::kYes}, accumulate ? 1 : 0,
               y.data<Real>() + t.row * out + t.col, out);
  });
}

template <class Real>
void linear_backward_input(Context& ctx, const LinearBackwardInput& args) {
  ArenaScope scope(ctx.scratch);
  const RoundedOperand rounded_dy = round_rows(ctx, scope, args.rounding, args.dy),
                       rounded_w = round_weights(ctx, scope, args.rounding, args.w, SumOver::kOut);
  const Tensor dy = rounded_dy.values, w = rounded_w.values, dx = args.dx;
  const bool accumulate = args.accumulate;
  const int64_t num_tokens = dy.dim(0), out = w.dim(0), in = w.dim(1);
  parallel_tiles<Real>(ctx, num_tokens, in, [&](const Tile& t, Real* scratch) {
    gemm<Real>(scratch, t.rows, t.cols, out, product_factor(rounded_dy, rounded_w),
               {dy.data<Real>() + t.row * out, out}, {w.data<Real>() + t.col, in}, accumulate ? 1 : 0,
               dx.data<Real>() + t.row * in + t.col, in);
  });
}

template <class Real>
void linear_backward_weight(Context& ctx, const LinearBackwardWeight& args) {
  ArenaScope scope(ctx.scratch);
  const RoundedOperand rounded_x = round_columns(ctx, scope, to_nearest(args.rounding), args.x),
                       rounded_dy = round_columns(ctx, scope, args.rounding, args.dy);
  const Tensor x = rounded_x.values, dy = rounded_dy.values, dw = args.dw;
  const bool accumulate = args.accumulate;
  const int64_t num_tokens = x.dim(0), in = x.dim(1), out = dy.dim(1);
  parallel_tiles<Real>(ctx, out, in, [&](const Tile& t, Real* scratch) {
    gemm<Real>(scratch, t.rows, t.cols, num_tokens, product_factor(rounded_x, rounded_dy),
               {dy.data<Real>() + t.row, out, Transpose::kYes}, {x.data<Real>() + t.col, in}, accumulate ? 1 : 0,
               dw.data<Real>() + t.row * in + t.col, in);
  });
}

namespace {

// `capacity` rows have room for those that the offsets name.
void check_offsets(const int32_t* offset, int64_t num_experts, int64_t capacity) {
  NMOE_CHECK(offset[0] == 0 && offset[num_experts] <= capacity, "offsets cover [{}, {}) of {} rows", offset[0],
             offset[num_experts], capacity);
}

// target [end - begin, width] = rows [begin, end) of those that are picked.
template <class Real>
void copy_picked(const OperandRows& rows, int64_t begin, int64_t end, Real* target) {
  const int64_t width = rows.width();
  const Real* source = rows.source.data<Real>();
  const int32_t* index = rows.index.data<int32_t>();
  for (int64_t row = begin; row < end; ++row)
    std::copy_n(source + index[row] * width, width, target + (row - begin) * width);
}

// All the rows of experts in order: in scratch, where they are picked.
template <class Real>
Tensor in_order(Context& ctx, ArenaScope& scratch, const OperandRows& rows, Tensor offsets) {
  if (!rows.index.defined()) return rows.source;
  const Tensor ordered = scratch.allocate(DTypeOf<Real>::value, {rows.num_rows(), rows.width()});
  if (ctx.counting()) return ordered;
  const int64_t num_experts = offsets.dim(0) - 1;
  check_offsets(offsets.data<int32_t>(), num_experts, rows.num_rows());
  parallel_blocks(ctx, offsets.data<int32_t>()[num_experts], task_rows(rows.width()),
                  [&](int64_t begin, int64_t end, int) {
                    copy_picked(rows, begin, end, ordered.data<Real>() + begin * rows.width());
                  });
  return ordered;
}

// Calls fn(expert, begin, end, block, scratch) in parallel for blocks of the rows of every expert: `block` points to
// row `begin` of `rows`, behind which the others lie; scratch is gemm's.
template <class Real, class Fn>
void parallel_expert_rows(Context& ctx, const OperandRows& rows, Tensor offsets, const Fn& fn) {
  constexpr int64_t kRowBlock = 512;
  const int64_t num_experts = offsets.dim(0) - 1, width = rows.width();
  const bool picked = rows.index.defined();
  ArenaScope scope(ctx.scratch);
  const Tensor scratch = claim_gemm_scratch<Real>(scope, ctx);
  Tensor first_block_of = scope.allocate(DType::kI32, {num_experts + 1});
  const Tensor picked_rows =
      scope.allocate(DTypeOf<Real>::value, {picked ? ctx.num_threads() : 0, kRowBlock, width});  // while in the cache
  if (ctx.counting()) return;
  const int32_t* offset = offsets.data<int32_t>();
  int32_t* first = first_block_of.data<int32_t>();
  check_offsets(offset, num_experts, rows.num_rows());
  first[0] = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    first[e + 1] = first[e] + static_cast<int32_t>(ceil_div(offset[e + 1] - offset[e], kRowBlock));
  }
  ctx.pool.parallel_for(first[num_experts], [&](int64_t task, int thread) {
    const int64_t e = std::upper_bound(first, first + num_experts + 1, task) - first - 1;
    const int64_t begin = offset[e] + (task - first[e]) * kRowBlock;
    const int64_t end = std::min<int64_t>(begin + kRowBlock, offset[e + 1]);
    if (!picked) return fn(e, begin, end, rows.source.data<Real>() + begin * width, scratch[thread].data<Real>());
    Real* const block = picked_rows.data<Real>() + thread * kRowBlock * width;
    copy_picked(rows, begin, end, block);
    fn(e, begin, end, static_cast<const Real*>(block), scratch[thread].data<Real>());
  });
}

// Tasks are columns of an expert, or several experts where these have little to do.
template <class Real>
void grouped_rows_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y) {
  const int64_t num_experts = w.dim(0), out = w.dim(1), in = w.dim(2);
  if (ctx.counting()) return;
  const int32_t* offset = offsets.data<int32_t>();
  check_offsets(offset, num_experts, x.dim(0));
  const int64_t num_rows = offset[num_experts];
  const Tiling columns = choose_row_tiling(ceil_div(num_rows, num_experts), in, out);
  const int64_t tiles = columns.tiles_across();
  const int64_t all_products = (num_rows + kFetchProducts * std::min(num_rows, num_experts)) * in * out;
  const int64_t expert_products = std::max<int64_t>(1, all_products / num_experts);
  const int64_t experts_per_task = tiles > 1 ? 1 : std::max<int64_t>(1, kTaskProducts / expert_products);
  parallel_blocks(ctx, num_experts * tiles, experts_per_task, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t expert = i / tiles, first = offset[expert];
      const Tile across = tile_at(columns, i % tiles);
      multiply_rows<Real>({0, across.col, offset[expert + 1] - first, across.cols}, in, out,
                          x.data<Real>() + first * in, w.data<Real>() + expert * out * in, y.data<Real>() + first * out,
                          /*accumulate=*/false);
    }
  });
}

// The number of rows, as a tensor.
Tensor num_rows_of(const Tensor& offsets) { return offsets.rows(offsets.dim(0) - 1, offsets.dim(0)); }

// The rows of experts as a product takes them: rounded, and then in order; else as they are.
struct RoundedRows {
  OperandRows rows;
  RoundedOperand rounded = {};
};
template <class Real>
RoundedRows round_expert_rows(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, const OperandRows& rows,
                              Tensor offsets) {
  if (rounding.format == OperandFormat::kAct) return {.rows = rows};
  if (rounding.rows.defined()) return {.rows = {widened_rows(ctx, scope, rounding.rows), rows.index}};
  const RoundedOperand rounded = round_rows(ctx, scope, rounding, in_order<Real>(ctx, scope, rows, offsets), offsets);
  return {.rows = rounded.values, .rounded = rounded};
}

// By groups: x w^T where sums are over `in`, dy w where they are over `out`.
template <class Real>
void grouped_product(Context& ctx, const OperandRows& rows, Tensor weights, Tensor offsets, Tensor result,
                     const OperandRounding& rounding, SumOver over) {
  ArenaScope scope(ctx.scratch);
  const RoundedRows x = round_expert_rows<Real>(ctx, scope, rounding, rows, offsets);
  const RoundedOperand w = round_weights(ctx, scope, rounding, weights, over);
  const int64_t out = w.values.dim(1), in = w.values.dim(2);
  const bool over_in = over == SumOver::kIn;
  const int64_t depth = over_in ? in : out, width = over_in ? out : in;
  if (over_in && ctx.batch_invariant && ctx.counting() && x.rows.index.defined()) {
    // What is planned for the most rows is to do for fewer, which are put in order where those are not.
    ArenaScope fewer(ctx.scratch);
    fewer.allocate(DTypeOf<Real>::value, {std::min(rows.num_rows(), kFewRows * weights.dim(0)), rows.width()});
  }
  if (over_in && are_few<Real>(ceil_div(rows.num_rows(), weights.dim(0))) && rounding.format == OperandFormat::kAct) {
    return grouped_rows_forward<Real>(ctx, in_order<Real>(ctx, scope, x.rows, offsets), w.values, offsets, result);
  }
  parallel_expert_rows<Real>(
      ctx, x.rows, offsets, [&](int64_t expert, int64_t begin, int64_t end, const Real* block, Real* scratch) {
        gemm<Real>(scratch, end - begin, width, depth, product_factor(x.rounded, w, expert), {block, depth},
                   {w.values.data<Real>() + expert * out * in, in, over_in ? Transpose::kYes : Transpose::kNo}, 0,
                   result.data<Real>() + begin * width, width);
      });
}

}  // namespace

template <class Real>
void grouped_linear_forward(Context& ctx, const GroupedLinearForward& args) {
  grouped_product<Real>(ctx, args.x, args.w, args.offsets, args.y, args.rounding, SumOver::kIn);
  add_expert_bias<Real>(ctx, args.bias, args.offsets, args.y);
}

template <class Real>
void grouped_activation_forward(Context& ctx, const GroupedActivationForward& args) {
  ArenaScope scratch(ctx.scratch);
  const Tensor pre = args.pre.defined() ? args.pre : scratch.allocate(DTypeOf<Real>::value, pre_of(args).shape());
  grouped_product<Real>(ctx, args.x, args.w, args.offsets, pre, args.rounding, SumOver::kIn);
  add_expert_bias<Real>(ctx, args.bias, args.offsets, pre);
  activation_forward<Real>(ctx, {.kind = args.kind,
                                 .pre = pre,
                                 .row_weight = args.row_weight,
                                 .h = args.h,
                                 .num_rows = num_rows_of(args.offsets),
                                 .h_codes = args.h_codes,
                                 .h_columns = args.h_columns,
                                 .offsets = args.offsets,
                                 .keeps_h = args.keeps_h,
                                 .pre_codes = args.pre_codes});
}

template <class Real>
void grouped_linear_backward_input(Context& ctx, const GroupedLinearBackwardInput& args) {
  grouped_product<Real>(ctx, args.dy, args.w, args.offsets, args.dx, args.rounding, SumOver::kOut);
}

template <class Real>
void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& args) {
  ArenaScope scratch(ctx.scratch);
  const Shape hidden({args.dy.num_rows(), args.w.dim(2)});
  const Tensor dh = scratch.allocate(DTypeOf<Real>::value, hidden);
  const Tensor h =
      args.h.defined() || !args.h_columns.defined() ? args.h : scratch.allocate(DTypeOf<Real>::value, hidden);
  const bool has_room = args.pre.defined() || args.dpre.defined();
  const Tensor pre = has_room ? pre_of(args) : scratch.allocate(DTypeOf<Real>::value, pre_of(args).shape());
  const Tensor dpre = args.dpre.defined() ? args.dpre : pre;
  grouped_product<Real>(ctx, args.dy, args.w, args.offsets, dh, args.rounding, SumOver::kOut);
  activation_backward<Real>(ctx, {.kind = args.kind,
                                  .pre = pre,
                                  .row_weight = args.row_weight,
                                  .dh = dh,
                                  .dpre = dpre,
                                  .drow_weight = args.drow_weight,
                                  .num_rows = num_rows_of(args.offsets),
                                  .dpre_codes = args.dpre_codes,
                                  .h = h,
                                  .pre_codes = args.pre_codes});
  write_columns<Real>(ctx, h, args.offsets, args.h_columns);
  write_columns<Real>(ctx, dpre, args.offsets, args.dpre_columns);
}

template <class Real>
void grouped_linear_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args) {
  ArenaScope scope(ctx.scratch);
  const int64_t R = args.num_rows();
  const auto rounded = [&](const ColumnCodes& columns, const OperandRounding& rounding,
                           const OperandRows& rows) -> RoundedOperand {
    if (columns.defined()) {
      return {.values = widened_columns(ctx, scope, columns, args.offsets, R), .offsets = args.offsets};
    }
    return round_columns(ctx, scope, rounding, in_order<Real>(ctx, scope, rows, args.offsets), args.offsets);
  };
  const RoundedOperand rounded_x = rounded(args.x_columns, to_nearest(args.rounding), args.x),
                       rounded_dy = rounded(args.dy_columns, args.rounding, args.dy);
  const Tensor x = rounded_x.values, dy = rounded_dy.values, offsets = rounded_x.offsets, dw = args.dw;
  const bool accumulate = args.accumulate;
  const int64_t num_experts = dw.dim(0), out = dw.dim(1), in = dw.dim(2);
  const Tensor scratch = claim_gemm_scratch<Real>(scope, ctx);
  if (ctx.counting()) return;
  const int32_t* offset = offsets.data<int32_t>();
  const Tiling tiling{out, in, 128, 512};  // small enough for all threads to work when one expert has all rows
  ctx.pool.parallel_for(num_experts * tiling.num_tiles(), [&](int64_t task, int thread) {
    const int64_t expert = task / tiling.num_tiles();
    const Tile t = tile_at(tiling, task % tiling.num_tiles());
    const int64_t begin = offset[expert], num_rows = offset[expert + 1] - begin;
    Real* const target = dw.data<Real>() + (expert * out + t.row) * in + t.col;
    if (num_rows == 0) {
      for (int64_t row = 0; row < t.rows && !accumulate; ++row) std::fill_n(target + row * in, t.cols, Real{0});
      return;
    }
    for (int64_t piece = 0; piece < num_rows; piece += piece_rows(num_rows)) {
      const int64_t first = begin + piece;
      gemm<Real>(scratch[thread].data<Real>(), t.rows, t.cols, std::min(piece_rows(num_rows), num_rows - piece),
                 product_factor(rounded_x, rounded_dy, expert),
                 {dy.data<Real>() + first * out + t.row, out, Transpose::kYes},
                 {x.data<Real>() + first * in + t.col, in}, accumulate || piece > 0 ? 1 : 0, target, in);
    }
  });
  if (!args.squares.defined()) return;
  ctx.pool.parallel_for(num_experts, [&](int64_t expert, int) {
    const Real* value = dw[expert].template data<Real>();
    const Tensor parts = args.squares[expert];
    std::ranges::fill(parts.span<double>(), 0.0);
    for (int64_t row = 0; row < out; ++row) {
      double* const sums = parts[row / kSquareRows].data<double>();
      for (int64_t col = 0; col < in; ++col, ++value) sums[col / kSquareCols] += static_cast<double>(*value) * *value;
    }
  });
}

NMOE_CPU_INSTANTIATE(linear_forward, LinearForward)
NMOE_CPU_INSTANTIATE(linear_backward_input, LinearBackwardInput)
NMOE_CPU_INSTANTIATE(linear_backward_weight, LinearBackwardWeight)
NMOE_CPU_INSTANTIATE(grouped_linear_forward, GroupedLinearForward)
NMOE_CPU_INSTANTIATE(grouped_activation_forward, GroupedActivationForward)
NMOE_CPU_INSTANTIATE(grouped_linear_backward_input, GroupedLinearBackwardInput)
NMOE_CPU_INSTANTIATE(grouped_activation_backward, GroupedActivationBackward)
NMOE_CPU_INSTANTIATE(grouped_linear_backward_weight, GroupedLinearBackwardWeight)

}  // namespace nmoe::cpu
