#include "ops/cpu/head_loss.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/blas.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kChunkRows = 256;  // tokens whose logits exist at one time
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileCols = 512;

// A row of logits becomes its gradient, grad_scale * (softmax - onehot(target)); returns the loss.
template <class Real>
Real cross_entropy_row(Real* logits, int64_t vocab, int32_t target, bool want_gradient, Real grad_scale) {
  const Real highest = highest_of(logits, vocab);
  const Real target_logit = logits[target] - highest;
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < vocab; ++v) {
    logits[v] = exp_approx(logits[v] - highest);
    sum += logits[v];
  }
  if (want_gradient) {
    const Real factor = grad_scale / sum;
#pragma omp simd
    for (int64_t v = 0; v < vocab; ++v) logits[v] *= factor;
    logits[target] -= grad_scale;
  }
  return std::log(sum) - target_logit;
}

// Calls fn(row, col, rows, cols) in parallel for the tiles of a [rows, cols] output.
template <class Fn>
void parallel_tiles(Context& ctx, int64_t rows, int64_t cols, const Fn& fn) {
  const int64_t across = ceil_div(cols, kTileCols);
  ctx.pool.parallel_for(ceil_div(rows, kTileRows) * across, [&](int64_t task, int) {
    const int64_t row = task / across * kTileRows, col = task % across * kTileCols;
    fn(row, col, std::min(kTileRows, rows - row), std::min(kTileCols, cols - col));
  });
}

}  // namespace

template <class Real>
void head_loss(Context& ctx, const HeadLoss& args) {
  const int64_t num_tokens = args.x.dim(0), dim = args.x.dim(1), vocab = args.w.dim(0);
  const bool want_gradient = args.dx.defined();
  ArenaScope scope(ctx.scratch);
  const Tensor logits_chunk = scope.allocate(DTypeOf<Real>::value, {std::min(kChunkRows, num_tokens), vocab});
  if (ctx.counting()) return;

  const Real* w = args.w.data<Real>();
  Real* logits = logits_chunk.data<Real>();
  const int32_t* targets = args.targets.data<int32_t>();
  for (int64_t begin = 0; begin < num_tokens; begin += kChunkRows) {
    const int64_t chunk = std::min(kChunkRows, num_tokens - begin);
    const Real* x = args.x.data<Real>() + begin * dim;
    parallel_tiles(ctx, chunk, vocab, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      gemm<Real>(rows, cols, dim, 1, {x + row * dim, dim}, {w + col * dim, dim, Transpose::kYes}, 0,
                 logits + row * vocab + col, vocab);
    });
    constexpr int64_t kRowsPerTask = 8;
    parallel_blocks(ctx, chunk, kRowsPerTask, [&](int64_t first, int64_t last, int) {
      for (int64_t row = first; row < last; ++row) {
        Real* row_logits = logits + row * vocab;
        const int32_t target = targets[begin + row];
        NMOE_CHECK(target < vocab, "target {} of token {} is beyond the vocabulary of {}", target, begin + row, vocab);
        if (target < 0) std::fill(row_logits, row_logits + vocab, Real{0});
        args.losses.data<Real>()[begin + row] = target < 0 ? Real{0}
                                                           : cross_entropy_row(row_logits, vocab, target, want_gradient,
                                                                               static_cast<Real>(args.grad_scale));
      }
    });
    if (!want_gradient) continue;
    Real* dx = args.dx.data<Real>() + begin * dim;
    parallel_tiles(ctx, chunk, dim, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      gemm<Real>(rows, cols, vocab, 1, {logits + row * vocab, vocab}, {w + col, dim}, 0, dx + row * dim + col, dim);
    });
    Real* dw = args.dw.data<Real>();
    parallel_tiles(ctx, vocab, dim, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      gemm<Real>(rows, cols, chunk, 1, {logits + row, vocab, Transpose::kYes}, {x + col, dim}, 1, dw + row * dim + col,
                 dim);
    });
  }
}

template void head_loss<float>(Context&, const HeadLoss&);
template void head_loss<double>(Context&, const HeadLoss&);

}  // namespace nmoe::cpu
