// A row at a time: where what it sees lies, then for each head scores, softmax, sum of values. All orders depend on the
// row's position and window alone, so its bits do too.
#include <algorithm>
#include <cmath>
#include <span>

#include "ops/cpu/attention_rows.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

struct Pieces {
  std::span<const int32_t> bounds, parents, positions;

  int64_t piece_of(int64_t row) const { return std::ranges::upper_bound(bounds, row) - bounds.begin() - 1; }

  // The rows of positions [begin, positions[row]] of the document of `row`.
  void rows_before(int64_t row, int64_t begin, int32_t* rows) const {
    int64_t position = positions[static_cast<size_t>(row)];
    for (int64_t piece = piece_of(row); position >= begin; piece = parents[static_cast<size_t>(piece)]) {
      NMOE_CHECK(piece >= 0, "row {} is position {}, and nothing leads to it", row,
                 positions[static_cast<size_t>(row)]);
      const int64_t first_row = bounds[static_cast<size_t>(piece)];
      const int64_t first = positions[static_cast<size_t>(first_row)];
      for (; position >= std::max(begin, first); --position) {
        rows[position - begin] = static_cast<int32_t>(first_row + position - first);
      }
    }
  }
};

}  // namespace

template <class Real>
void tree_attention(Context& ctx, const TreeAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.v.dim(2);
  const int64_t group = H / args.k.dim(1);
  ArenaScope scope(ctx.scratch);
  const Tensor weights = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), T});
  const Tensor seen = scope.allocate(DType::kI32, {ctx.num_threads(), T});
  if (ctx.counting()) return;
  const Pieces pieces = {args.bounds.span<int32_t>(), args.parents.span<int32_t>(), args.positions.span<int32_t>()};
  const Real scale = static_cast<Real>(args.scale);

  ctx.pool.parallel_for(T, [&](int64_t row, int thread) {
    Real* const p = weights[thread].data<Real>();
    int32_t* const rows = seen[thread].data<int32_t>();
    const int64_t position = pieces.positions[static_cast<size_t>(row)];
    const int64_t begin = args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
    const int64_t count = position + 1 - begin;
    NMOE_CHECK(count <= T, "row {} of {} sees {} rows", row, T, count);
    pieces.rows_before(row, begin, rows);
    for (int64_t head = 0; head < H; ++head) {
      const Real* const q = args.q.rows_data<Real>() + row * args.q.stride() + head * Dk;
      const Real* const k = args.k.rows_data<Real>() + head / group * Dk;
      const Real* const v = args.v.rows_data<Real>() + head / group * Dv;
      for (int64_t j = 0; j < count; ++j) p[j] = scale * dot(q, k + rows[j] * args.k.stride(), Dk);
      const Real* const sink = sink_of<Real>(args.sinks, head);
      Real highest = highest_of(p, count);
      if (sink != nullptr) highest = std::max(highest, *sink);
      Real total = 0;
      for (int64_t j = 0; j < count; ++j) {
        p[j] = exp_approx(p[j] - highest);
        total += p[j];
      }
      if (sink != nullptr) total += std::exp(*sink - highest);
      Real* const out = args.out.data<Real>() + (row * H + head) * Dv;
      std::fill_n(out, Dv, Real{0});
      for (int64_t j = 0; j < count; ++j) {
        const Real weight = p[j] / total;
        const Real* const value = v + rows[j] * args.v.stride();
#pragma omp simd
        for (int64_t d = 0; d < Dv; ++d) out[d] += weight * value[d];
      }
    }
  });
}

NMOE_CPU_INSTANTIATE(tree_attention, TreeAttention)

}  // namespace nmoe::cpu
