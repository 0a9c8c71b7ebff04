// Attention in tiles of [query block, key block] with a running softmax, as in FlashAttention-2
// (arXiv 2307.08691, algorithms 1 and 2); here a tile is as wide as pays on a CPU, so that most
// rows see one key block only.
#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/blas.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 256;

// Sizes and element strides shared by both directions. Letters as in ops/backend.h.
struct Geometry {
  int64_t B, S, H, G, Dk, Dv, window;

  int64_t query_blocks() const { return ceil_div(S, kQueryBlock); }
  int64_t q_stride() const { return H * Dk; }
  int64_t k_stride() const { return G * Dk; }
  int64_t v_stride() const { return G * Dv; }
  int64_t out_stride() const { return H * Dv; }
  int64_t kv_head(int64_t head) const { return head / (H / G); }
  // First key that the query at position i sees.
  int64_t first_key(int64_t i) const {
    return window == 0 ? 0 : std::max<int64_t>(0, i - window + 1);
  }
};

Geometry geometry_of(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                     const Tensor& v) {
  const Geometry g{shape.num_seqs, shape.seq_len, q.dim(1),    k.dim(1),
                   q.dim(2),       v.dim(2),      shape.window};
  NMOE_CHECK(q.dim(0) == g.B * g.S && g.H % g.G == 0 && k.dim(2) == g.Dk && v.dim(1) == g.G,
             "attention over {} sequences of {}: q {}, k {}, v {}", g.B, g.S, q.shape(), k.shape(),
             v.shape());
  return g;
}

// Queries [q_begin, q_end) against keys [k_begin, k_end), positions in one sequence.
struct TileRange {
  int64_t q_begin, q_end, k_begin, k_end;

  int64_t rows() const { return q_end - q_begin; }
  int64_t cols() const { return k_end - k_begin; }
};

// The columns of a tile that row `row` sees; empty (begin >= end) for a row that sees nothing of
// the tile.
struct Columns {
  int64_t begin, end;
};
Columns visible_columns(const Geometry& g, const TileRange& tile, int64_t row) {
  const int64_t i = tile.q_begin + row;
  return {std::max<int64_t>(0, g.first_key(i) - tile.k_begin),
          std::min(tile.cols(), i + 1 - tile.k_begin)};
}

// Calls fn(tile) for the tiles of a query block, in order of keys; tiles that no query sees are
// left out.
template <class Fn>
void for_each_tile(const Geometry& g, int64_t query_block, const Fn& fn) {
  const int64_t q_begin = query_block * kQueryBlock, q_end = std::min(q_begin + kQueryBlock, g.S);
  for (int64_t k_begin = g.first_key(q_begin); k_begin < q_end; k_begin += kKeyBlock) {
    fn(TileRange{q_begin, q_end, k_begin, std::min(k_begin + kKeyBlock, q_end)});
  }
}

template <class Real>
Real dot(const Real* a, const Real* b, int64_t size) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) sum += a[j] * b[j];
  return sum;
}

template <class Real>
void scale_row(Real* x, int64_t size, Real factor) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) x[j] *= factor;
}

// Row r of the running softmax: its highest score so far and the sum of exp(score - highest).
template <class Real>
struct RunningSoftmax {
  Real highest = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
};

// Masks a row of scores and returns the columns left to compute: a little more than is seen, so
// that loops run over whole vectors. Scores outside what is seen become -inf, whose exp is 0;
// outside what is returned they become 0.
template <class Real>
Columns mask_row(Real* scores, Columns seen, int64_t cols) {
  constexpr int64_t kVector = 16;
  if (seen.begin >= seen.end) {
    std::fill_n(scores, cols, Real{0});
    return {0, 0};
  }
  const Columns padded{seen.begin / kVector * kVector,
                       std::min(ceil_div(seen.end, kVector) * kVector, cols)};
  constexpr Real kMasked = -std::numeric_limits<Real>::infinity();
  std::fill(scores, scores + padded.begin, Real{0});
  std::fill(scores + padded.begin, scores + seen.begin, kMasked);
  std::fill(scores + seen.end, scores + padded.end, kMasked);
  std::fill(scores + padded.end, scores + cols, Real{0});
  return padded;
}

// Scores of a row become exp(score - highest), 0 where masked. Returns the factor that what was
// summed before this tile has to be multiplied by.
template <class Real>
Real softmax_row(Real* scores, Columns seen, int64_t cols, RunningSoftmax<Real>& state) {
  const auto [begin, end] = mask_row(scores, seen, cols);
  if (begin == end) return 1;
  const Real highest = std::max(state.highest, highest_of(scores + begin, end - begin));
  const Real correction = exp_approx(state.highest - highest);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = begin; j < end; ++j) {
    scores[j] = exp_approx(scores[j] - highest);
    sum += scores[j];
  }
  state.highest = highest;
  state.sum = state.sum * correction + sum;
  return correction;
}

// The probabilities p = exp(score - lse) of a row take the place of its scores, p (dp - delta) that
// of dp: the scores' gradient, up to the scale that the products with it apply.
template <class Real>
void backward_row(Real* scores, Real* dp, Columns seen, int64_t cols, Real lse, Real delta) {
  const auto [begin, end] = mask_row(scores, seen, cols);
  std::fill(dp, dp + begin, Real{0});
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    const Real p = exp_approx(scores[j] - lse);
    scores[j] = p;
    dp[j] = p * (dp[j] - delta);
  }
  std::fill(dp + end, dp + cols, Real{0});
}

}  // namespace

template <class Real>
void attention_forward(Context& ctx, const AttentionForward& args) {
  const Geometry g = geometry_of(args.shape, args.q, args.k, args.v);
  ArenaScope scope(ctx.scratch);
  const Tensor scratch =
      scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kQueryBlock, kKeyBlock});
  if (ctx.counting()) return;

  const int64_t blocks = g.query_blocks();
  ctx.pool.parallel_for(g.B * g.H * blocks, [&](int64_t task, int thread) {
    const int64_t head = task / blocks % g.H, seq = task / blocks / g.H;
    const int64_t kv_head = g.kv_head(head);
    // Late queries see most keys: longest tasks first.
    const int64_t query_block = blocks - 1 - task % blocks;
    const Real* q = args.q.data<Real>() + (seq * g.S * g.H + head) * g.Dk;
    const Real* k = args.k.data<Real>() + (seq * g.S * g.G + kv_head) * g.Dk;
    const Real* v = args.v.data<Real>() + (seq * g.S * g.G + kv_head) * g.Dv;
    Real* out = args.out.data<Real>() + (seq * g.S * g.H + head) * g.Dv;
    Real* lse = args.lse.data<Real>() + (seq * g.H + head) * g.S;
    Real* scores = scratch[thread].data<Real>();

    RunningSoftmax<Real> states[kQueryBlock];
    for_each_tile(g, query_block, [&](const TileRange& tile) {
      const int64_t rows = tile.rows(), cols = tile.cols();
      const bool first = tile.k_begin == g.first_key(tile.q_begin);
      Real* out_tile = out + tile.q_begin * g.out_stride();
      gemm<Real>(rows, cols, g.Dk, static_cast<Real>(args.shape.scale),
                 {q + tile.q_begin * g.q_stride(), g.q_stride()},
                 {k + tile.k_begin * g.k_stride(), g.k_stride(), Transpose::kYes}, 0, scores, cols);
      for (int64_t row = 0; row < rows; ++row) {
        const Real correction =
            softmax_row(scores + row * cols, visible_columns(g, tile, row), cols, states[row]);
        if (!first && correction != 1) scale_row(out_tile + row * g.out_stride(), g.Dv, correction);
      }
      gemm<Real>(rows, g.Dv, cols, 1, {scores, cols},
                 {v + tile.k_begin * g.v_stride(), g.v_stride()}, first ? 0 : 1, out_tile,
                 g.out_stride());
    });
    const int64_t q_begin = query_block * kQueryBlock, q_end = std::min(q_begin + kQueryBlock, g.S);
    for (int64_t i = q_begin; i < q_end; ++i) {
      const RunningSoftmax<Real>& state = states[i - q_begin];
      scale_row(out + i * g.out_stride(), g.Dv, 1 / state.sum);
      lse[i] = state.highest + std::log(state.sum);
    }
  });
}

namespace {

// How backward is cut into tasks. A task owns the gradients of one key/value head of one sequence
// and walks over (query head, query block) pairs. Where there are too few of those, the pairs are
// dealt to several tasks, each with its own sum, added up in order at the end. The cut depends on
// shapes alone.
struct BackwardCut {
  int64_t pairs, deals;
};
BackwardCut backward_cut(const Geometry& g) {
  constexpr int64_t kWantedTasks = 16;
  const int64_t pairs = g.H / g.G * g.query_blocks();
  return {pairs, std::min(pairs, ceil_div(kWantedTasks, g.B * g.G))};
}

}  // namespace

template <class Real>
void attention_backward(Context& ctx, const AttentionBackward& args) {
  const Geometry g = geometry_of(args.shape, args.q, args.k, args.v);
  const auto [pairs, deals] = backward_cut(g);
  ArenaScope scope(ctx.scratch);
  const DType dtype = DTypeOf<Real>::value;
  const Tensor scratch = scope.allocate(dtype, {ctx.num_threads(), 2, kQueryBlock, kKeyBlock});
  // With one deal a task, sums are made in place.
  const int64_t num_tokens = g.B * g.S;
  const int64_t partial_rows = deals == 1 ? 0 : deals * num_tokens * g.G;
  const Tensor dk_partials = scope.allocate(dtype, {partial_rows, g.Dk});
  const Tensor dv_partials = scope.allocate(dtype, {partial_rows, g.Dv});
  if (ctx.counting()) return;
  Real* dk_sums = deals == 1 ? args.dk.data<Real>() : dk_partials.data<Real>();
  Real* dv_sums = deals == 1 ? args.dv.data<Real>() : dv_partials.data<Real>();
  const Real scale = static_cast<Real>(args.shape.scale);

  ctx.pool.parallel_for(
      g.B * g.G * deals, [&, pairs = pairs, deals = deals](int64_t task, int thread) {
        const int64_t deal = task % deals, kv_head = task / deals % g.G, seq = task / deals / g.G;
        const int64_t kv_row = seq * g.S * g.G + kv_head;
        const Real* k = args.k.data<Real>() + kv_row * g.Dk;
        const Real* v = args.v.data<Real>() + kv_row * g.Dv;
        Real* dk = dk_sums + (deal * num_tokens * g.G + kv_row) * g.Dk;
        Real* dv = dv_sums + (deal * num_tokens * g.G + kv_row) * g.Dv;
        for (int64_t j = 0; j < g.S; ++j) {
          std::fill_n(dk + j * g.k_stride(), g.Dk, Real{0});
          std::fill_n(dv + j * g.v_stride(), g.Dv, Real{0});
        }
        Real* scores = scratch[thread][0].data<Real>();
        Real* dp = scratch[thread][1].data<Real>();
        for (int64_t pair = deal; pair < pairs; pair += deals) {
          const int64_t head = kv_head * (g.H / g.G) + pair / g.query_blocks();
          const int64_t query_block = pair % g.query_blocks();
          const int64_t q_row = seq * g.S * g.H + head;
          const Real* q = args.q.data<Real>() + q_row * g.Dk;
          const Real* out = args.out.data<Real>() + q_row * g.Dv;
          const Real* dout = args.dout.data<Real>() + q_row * g.Dv;
          const Real* lse = args.lse.data<Real>() + (seq * g.H + head) * g.S;
          Real* dq = args.dq.data<Real>() + q_row * g.Dk;

          // delta = sum over v of dout * out, the softmax backward's row constant.
          Real delta[kQueryBlock];
          const int64_t q_begin = query_block * kQueryBlock,
                        q_end = std::min(q_begin + kQueryBlock, g.S);
          for (int64_t i = q_begin; i < q_end; ++i) {
            delta[i - q_begin] = dot(dout + i * g.out_stride(), out + i * g.out_stride(), g.Dv);
          }
          for_each_tile(g, query_block, [&](const TileRange& tile) {
            const int64_t rows = tile.rows(), cols = tile.cols();
            const bool first = tile.k_begin == g.first_key(tile.q_begin);
            const Operand<Real> q_tile{q + q_begin * g.q_stride(), g.q_stride()};
            const Operand<Real> dout_tile{dout + q_begin * g.out_stride(), g.out_stride()};
            const Real* k_tile = k + tile.k_begin * g.k_stride();
            const Real* v_tile = v + tile.k_begin * g.v_stride();
            gemm<Real>(rows, cols, g.Dk, scale, q_tile, {k_tile, g.k_stride(), Transpose::kYes}, 0,
                       scores, cols);
            gemm<Real>(rows, cols, g.Dv, 1, dout_tile, {v_tile, g.v_stride(), Transpose::kYes}, 0,
                       dp, cols);
            for (int64_t row = 0; row < rows; ++row) {
              backward_row(scores + row * cols, dp + row * cols, visible_columns(g, tile, row),
                           cols, lse[q_begin + row], delta[row]);
            }
            gemm<Real>(cols, g.Dv, rows, 1, {scores, cols, Transpose::kYes}, dout_tile, 1,
                       dv + tile.k_begin * g.v_stride(), g.v_stride());
            gemm<Real>(cols, g.Dk, rows, scale, {dp, cols, Transpose::kYes}, q_tile, 1,
                       dk + tile.k_begin * g.k_stride(), g.k_stride());
            gemm<Real>(rows, g.Dk, cols, scale, {dp, cols}, {k_tile, g.k_stride()}, first ? 0 : 1,
                       dq + q_begin * g.q_stride(), g.q_stride());
          });
        }
      });
  if (deals == 1) return;
  const auto add_up = [&, deals = deals](const Real* partials, Tensor total) {
    const int64_t size = total.num_elements();
    parallel_blocks(ctx, size, 16 * 1024, [&](int64_t begin, int64_t end, int) {
      Real* sum = total.data<Real>();
      std::copy(partials + begin, partials + end, sum + begin);
      for (int64_t deal = 1; deal < deals; ++deal) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) sum[i] += partials[deal * size + i];
      }
    });
  };
  add_up(dk_partials.data<Real>(), args.dk);
  add_up(dv_partials.data<Real>(), args.dv);
}

template <class Real>
void mla_expand_forward(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  const int64_t num_tokens = kv.dim(0), num_heads = kv.dim(1), rope = k_rope.dim(1),
                value = v.dim(2);
  const int64_t nope = k.dim(2) - rope;
  NMOE_CHECK(kv.dim(2) == nope + value, "kv {}, k {} and v {} disagree", kv.shape(), k.shape(),
             v.shape());
  if (ctx.counting()) return;
  constexpr int64_t kTokensPerTask = 32;
  parallel_blocks(ctx, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const Real* shared = k_rope.data<Real>() + token * rope;
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t row = token * num_heads + head;
        const Real* source = kv.data<Real>() + row * (nope + value);
        std::copy_n(shared, rope, std::copy_n(source, nope, k.data<Real>() + row * (nope + rope)));
        std::copy_n(source + nope, value, v.data<Real>() + row * value);
      }
    }
  });
}

template <class Real>
void mla_expand_backward(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) {
  const int64_t num_tokens = dkv.dim(0), num_heads = dkv.dim(1), rope = dk_rope.dim(1),
                value = dv.dim(2);
  const int64_t nope = dk.dim(2) - rope;
  NMOE_CHECK(dkv.dim(2) == nope + value, "dkv {}, dk {} and dv {} disagree", dkv.shape(),
             dk.shape(), dv.shape());
  if (ctx.counting()) return;
  constexpr int64_t kTokensPerTask = 32;
  parallel_blocks(ctx, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      Real* shared = dk_rope.data<Real>() + token * rope;
      std::fill_n(shared, rope, Real{0});
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t row = token * num_heads + head;
        const Real* dk_row = dk.data<Real>() + row * (nope + rope);
        Real* target = dkv.data<Real>() + row * (nope + value);
        std::copy_n(dv.data<Real>() + row * value, value, std::copy_n(dk_row, nope, target));
#pragma omp simd
        for (int64_t r = 0; r < rope; ++r) shared[r] += dk_row[nope + r];
      }
    }
  });
}

#define NMOE_INSTANTIATE(Real)                                                      \
  template void attention_forward<Real>(Context&, const AttentionForward&);         \
  template void attention_backward<Real>(Context&, const AttentionBackward&);       \
  template void mla_expand_forward<Real>(Context&, Tensor, Tensor, Tensor, Tensor); \
  template void mla_expand_backward<Real>(Context&, Tensor, Tensor, Tensor, Tensor);
NMOE_INSTANTIATE(float)
NMOE_INSTANTIATE(double)
#undef NMOE_INSTANTIATE

}  // namespace nmoe::cpu
