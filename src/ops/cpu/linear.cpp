#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/operations.h"
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

// How the batch invariant products of `rows` rows (of one weight matrix) are cut into tasks.
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
  const Tensor x = args.x, w = args.w, y = args.y;
  const bool accumulate = args.addend.defined();
  const int64_t num_tokens = x.dim(0), in = x.dim(1), out = w.dim(0);
  const auto begin_with_addend = [&](const Tile& t) {
    if (!accumulate || args.addend.raw() == y.raw()) return;
    for (int64_t row = t.row; row < t.row + t.rows; ++row) {
      std::copy_n(args.addend.data<Real>() + row * out + t.col, t.cols, y.data<Real>() + row * out + t.col);
    }
  };
  if (ctx.batch_invariant) {
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
    gemm<Real>(scratch, t.rows, t.cols, in, 1, {x.data<Real>() + t.row * in, in},
               {w.data<Real>() + t.col * in, in, Transpose::kYes}, accumulate ? 1 : 0,
               y.data<Real>() + t.row * out + t.col, out);
  });
}

template <class Real>
void linear_backward_input(Context& ctx, const LinearBackwardInput& args) {
  const Tensor dy = args.dy, w = args.w, dx = args.dx;
  const bool accumulate = args.accumulate;
  const int64_t num_tokens = dy.dim(0), out = w.dim(0), in = w.dim(1);
  parallel_tiles<Real>(ctx, num_tokens, in, [&](const Tile& t, Real* scratch) {
    gemm<Real>(scratch, t.rows, t.cols, out, 1, {dy.data<Real>() + t.row * out, out}, {w.data<Real>() + t.col, in},
               accumulate ? 1 : 0, dx.data<Real>() + t.row * in + t.col, in);
  });
}

template <class Real>
void linear_backward_weight(Context& ctx, const LinearBackwardWeight& args) {
  const Tensor x = args.x, dy = args.dy, dw = args.dw;
  const bool accumulate = args.accumulate;
  const int64_t num_tokens = x.dim(0), in = x.dim(1), out = dy.dim(1);
  parallel_tiles<Real>(ctx, out, in, [&](const Tile& t, Real* scratch) {
    gemm<Real>(scratch, t.rows, t.cols, num_tokens, 1, {dy.data<Real>() + t.row, out, Transpose::kYes},
               {x.data<Real>() + t.col, in}, accumulate ? 1 : 0, dw.data<Real>() + t.row * in + t.col, in);
  });
}

namespace {

// `capacity` rows have room for those that the offsets name.
void check_offsets(const int32_t* offset, int64_t num_experts, int64_t capacity) {
  NMOE_CHECK(offset[0] == 0 && offset[num_experts] <= capacity, "offsets cover [{}, {}) of {} rows", offset[0],
             offset[num_experts], capacity);
}

// Calls fn(expert, begin, end, scratch) in parallel for blocks of the rows of every expert, with gemm's scratch.
template <class Real, class Fn>
void parallel_expert_rows(Context& ctx, Tensor offsets, int64_t capacity, const Fn& fn) {
  constexpr int64_t kRowBlock = 512;
  const int64_t num_experts = offsets.dim(0) - 1;
  ArenaScope scope(ctx.scratch);
  const Tensor scratch = claim_gemm_scratch<Real>(scope, ctx);
  Tensor first_block_of = scope.allocate(DType::kI32, {num_experts + 1});
  if (ctx.counting()) return;
  const int32_t* offset = offsets.data<int32_t>();
  int32_t* first = first_block_of.data<int32_t>();
  check_offsets(offset, num_experts, capacity);
  first[0] = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    first[e + 1] = first[e] + static_cast<int32_t>(ceil_div(offset[e + 1] - offset[e], kRowBlock));
  }
  ctx.pool.parallel_for(first[num_experts], [&](int64_t task, int thread) {
    const int64_t e = std::upper_bound(first, first + num_experts + 1, task) - first - 1;
    const int64_t begin = offset[e] + (task - first[e]) * kRowBlock;
    fn(e, begin, std::min<int64_t>(begin + kRowBlock, offset[e + 1]), scratch[thread].data<Real>());
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

}  // namespace

template <class Real>
void grouped_linear_forward(Context& ctx, const GroupedLinearForward& args) {
  const Tensor x = args.x, w = args.w, offsets = args.offsets, y = args.y;
  const int64_t out = w.dim(1), in = w.dim(2);
  if (ctx.batch_invariant) return grouped_rows_forward<Real>(ctx, x, w, offsets, y);
  parallel_expert_rows<Real>(ctx, offsets, x.dim(0), [&](int64_t expert, int64_t begin, int64_t end, Real* scratch) {
    gemm<Real>(scratch, end - begin, out, in, 1, {x.data<Real>() + begin * in, in},
               {w.data<Real>() + expert * out * in, in, Transpose::kYes}, 0, y.data<Real>() + begin * out, out);
  });
}

template <class Real>
void grouped_activation_forward(Context& ctx, const GroupedActivationForward& args) {
  grouped_linear_forward<Real>(ctx, {args.x, args.w, args.offsets, args.pre});
  const int64_t num_experts = args.w.dim(0);
  activation_forward<Real>(ctx, {.kind = args.kind,
                                 .pre = args.pre,
                                 .row_weight = args.row_weight,
                                 .h = args.h,
                                 .num_rows = args.offsets.rows(num_experts, num_experts + 1)});
}

template <class Real>
void grouped_linear_backward_input(Context& ctx, const GroupedLinearBackwardInput& args) {
  const Tensor dy = args.dy, w = args.w, offsets = args.offsets, dx = args.dx;
  const int64_t out = w.dim(1), in = w.dim(2);
  parallel_expert_rows<Real>(ctx, offsets, dy.dim(0), [&](int64_t expert, int64_t begin, int64_t end, Real* scratch) {
    gemm<Real>(scratch, end - begin, in, out, 1, {dy.data<Real>() + begin * out, out},
               {w.data<Real>() + expert * out * in, in}, 0, dx.data<Real>() + begin * in, in);
  });
}

template <class Real>
void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& args) {
  const int64_t num_experts = args.w.dim(0);
  ArenaScope scratch(ctx.scratch);
  const Tensor dh = scratch.allocate(args.dy.dtype(), {args.dy.dim(0), args.w.dim(2)});
  grouped_linear_backward_input<Real>(ctx, {args.dy, args.w, args.offsets, dh});
  activation_backward<Real>(ctx, {.kind = args.kind,
                                  .pre = args.pre,
                                  .row_weight = args.row_weight,
                                  .dh = dh,
                                  .dpre = args.dpre,
                                  .drow_weight = args.drow_weight,
                                  .num_rows = args.offsets.rows(num_experts, num_experts + 1)});
}

template <class Real>
void grouped_linear_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args) {
  const Tensor x = args.x, dy = args.dy, offsets = args.offsets, dw = args.dw;
  const bool accumulate = args.accumulate;
  const int64_t num_experts = dw.dim(0), out = dw.dim(1), in = dw.dim(2);
  ArenaScope scope(ctx.scratch);
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
    gemm<Real>(scratch[thread].data<Real>(), t.rows, t.cols, num_rows, 1,
               {dy.data<Real>() + begin * out + t.row, out, Transpose::kYes}, {x.data<Real>() + begin * in + t.col, in},
               accumulate ? 1 : 0, target, in);
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
