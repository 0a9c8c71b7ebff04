#include <algorithm>

#include "ops/cpu/operations.h"
#include "ops/log_sum.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kChunkRows = 512;  // tokens whose logits exist at one time

// Of a row of logits: dloss/d(its cross-entropy) and dloss/d(its z loss). Zero where no gradient is wanted.
template <class Real>
struct RowScales {
  Real entropy = 0, z = 0;
};
template <class Real>
struct RowLosses {
  Real entropy = 0, z = 0;
};

// Returns the losses of a row of logits, and with `want_gradient` turns the row into its gradient: that of the
// cross-entropy is softmax - onehot(target), of the z loss 2 * log(sum of exp) * softmax. Leaves the row in an
// unspecified state otherwise.
template <class Real>
RowLosses<Real> losses_of_row(Real* logits, int64_t vocab, int32_t target, bool want_gradient, RowScales<Real> scales) {
  if (target < 0) {
    std::fill_n(logits, vocab, Real{0});
    return {};
  }
  const Real target_logit = logits[target];
  const LogSumOf<Real> sum = log_sum_of(logits, vocab);
  const Real log_z = sum.log_z();
  if (want_gradient) {
    const Real pull = scales.z == 0 ? scales.entropy : scales.entropy + 2 * scales.z * log_z;
    const Real factor = pull / sum.sum;
#pragma omp simd
    for (int64_t v = 0; v < vocab; ++v) logits[v] *= factor;
    logits[target] -= scales.entropy;
  }
  return {sum.loss(target_logit), log_z * log_z};
}

}  // namespace

template <class Real>
void head_loss(Context& ctx, const HeadLoss& args) {
  const int64_t num_tokens = args.x.dim(0), vocab = args.w.dim(0);
  const bool want_gradient = args.dx.defined();
  ArenaScope scope(ctx.scratch);
  const Tensor chunk_logits = scope.allocate(DTypeOf<Real>::value, {std::min(kChunkRows, num_tokens), vocab});
  const auto value_of = [&](const Tensor& scale) {
    return want_gradient && scale.defined() && !ctx.counting() ? static_cast<Real>(*scale.data<double>()) : Real{0};
  };
  const RowScales<Real> scales = {value_of(args.grad_scale), value_of(args.z_scale)};

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
        const auto [entropy, z] =
            losses_of_row(row_logits, vocab, target, want_gradient, {weight * scales.entropy, scales.z});
        args.losses.data<Real>()[begin + row] = weight * entropy;
        if (args.z_losses.defined()) args.z_losses.data<Real>()[begin + row] = z;
      }
    });
    if (!want_gradient) continue;
    linear_backward_input<Real>(ctx, {logits, args.w, args.dx.rows(begin, end)});
    if (!args.dw.defined()) continue;
    linear_backward_weight<Real>(ctx, {x, logits, args.dw, /*accumulate=*/args.accumulate_dw || begin > 0});
  }
}

template <class Real>
void logit_sums(Context& ctx, const LogitSums& args) {
  const int64_t num_rows = args.logits.dim(0), vocab = args.logits.dim(1);
  ArenaScope scope(ctx.scratch);
  const Tensor thread_rows = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), vocab});
  if (ctx.counting()) return;
  parallel_blocks(ctx, num_rows, task_rows(vocab), [&](int64_t begin, int64_t end, int thread) {
    Real* const row = thread_rows[thread].data<Real>();
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(args.logits[i].data<Real>(), vocab, row);
      const LogSumOf<Real> sum = log_sum_of(row, vocab);
      Real* const made = args.sums[i].data<Real>();
      made[0] = sum.highest, made[1] = sum.sum, made[2] = sum.log;
    }
  });
}

NMOE_CPU_INSTANTIATE(head_loss, HeadLoss)
NMOE_CPU_INSTANTIATE(logit_sums, LogitSums)

}  // namespace nmoe::cpu
