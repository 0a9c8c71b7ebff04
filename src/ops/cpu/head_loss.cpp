#include <algorithm>
#include <cmath>

#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kChunkRows = 512;  // tokens whose logits exist at one time

// Returns the loss of a row of logits, and with `want_gradient` turns the row into its gradient, grad_scale * (softmax
// - onehot(target)). Leaves the row in an unspecified state otherwise.
template <class Real>
Real cross_entropy_row(Real* logits, int64_t vocab, int32_t target, bool want_gradient, Real grad_scale) {
  if (target < 0) {
    std::fill_n(logits, vocab, Real{0});
    return 0;
  }
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

}  // namespace

template <class Real>
void head_loss(Context& ctx, const HeadLoss& args) {
  const int64_t num_tokens = args.x.dim(0), vocab = args.w.dim(0);
  const bool want_gradient = args.dx.defined();
  ArenaScope scope(ctx.scratch);
  const Tensor chunk_logits = scope.allocate(DTypeOf<Real>::value, {std::min(kChunkRows, num_tokens), vocab});
  const auto grad_scale =
      want_gradient && !ctx.counting() ? static_cast<Real>(*args.grad_scale.data<double>()) : Real{0};

  for (int64_t begin = 0; begin < num_tokens; begin += kChunkRows) {
    const int64_t end = std::min(begin + kChunkRows, num_tokens);
    const Tensor x = args.x.rows(begin, end), logits = chunk_logits.rows(0, end - begin);
    linear_forward<Real>(ctx, {x, args.w, logits});
    if (ctx.counting()) return;  // the other products take as much scratch
    constexpr int64_t kRowsPerTask = 8;
    parallel_blocks(ctx, end - begin, kRowsPerTask, [&](int64_t first, int64_t last, int) {
      for (int64_t row = first; row < last; ++row) {
        Real* row_logits = logits.data<Real>() + row * vocab;
        if (args.predictions.defined()) {
          args.predictions.data<int32_t>()[begin + row] =
              static_cast<int32_t>(std::max_element(row_logits, row_logits + vocab) - row_logits);
        }
        const int32_t target = args.targets.data<int32_t>()[begin + row];
        NMOE_CHECK(target < vocab, "target {} of token {} is beyond the vocabulary of {}", target, begin + row, vocab);
        const Real weight = args.weights.defined() && target >= 0 ? args.weights.data<Real>()[begin + row] : Real{1};
        args.losses.data<Real>()[begin + row] =
            weight * cross_entropy_row(row_logits, vocab, target, want_gradient, weight * grad_scale);
      }
    });
    if (!want_gradient) continue;
    linear_backward_input<Real>(ctx, {logits, args.w, args.dx.rows(begin, end)});
    linear_backward_weight<Real>(ctx, {x, logits, args.dw, /*accumulate=*/args.accumulate_dw || begin > 0});
  }
}

NMOE_CPU_INSTANTIATE(head_loss, HeadLoss)

}  // namespace nmoe::cpu
