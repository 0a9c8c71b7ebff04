#include "ops/contracts/convolution.h"

#include <array>
#include <cstring>

#include "ops/cpu/documents.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kChannelBlock = 256;  // channels of a task
constexpr int64_t kMostTaps = 8;        // rows that a sum's terms are in; null: no such row
template <class Real>
using Taps = std::array<const Real*, kMostTaps>;

// Weights [W, K] as [K, W], so that loops run over channels.
template <class Real>
void transpose_weight(const Tensor& weight, const Tensor& out) {
  const int64_t width = weight.dim(0), taps = weight.dim(1);
  const Real* const from = weight.data<Real>();
  Real* const to = out.data<Real>();
  for (int64_t w = 0; w < width; ++w) {
    for (int64_t k = 0; k < taps; ++k) to[k * width + w] = from[w * taps + k];
  }
}

// pre of channels [begin, end). Not put into its callers, as softmax_row (attention.cpp): training and generation have
// the same bits.
template <class Real>
[[gnu::noinline]] void convolve(const Taps<Real>& rows, int64_t num_taps, const Real* weight, int64_t width,
                                const Real* bias, int64_t begin, int64_t end, Real* pre) {
  bias != nullptr ? std::copy(bias + begin, bias + end, pre) : std::fill_n(pre, end - begin, Real{0});
  const int64_t count = end - begin;
  for (int64_t k = 0; k < num_taps; ++k) {
    if (rows[static_cast<size_t>(k)] == nullptr) continue;
    const Real* const row = rows[static_cast<size_t>(k)] + begin;
    const Real* const w = weight + k * width + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) pre[i] += w[i] * row[i];
  }
}
template <class Real>
[[gnu::noinline]] void silu(const Real* pre, int64_t count, Real* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = pre[i] / (1 + exp_approx(-pre[i]));
}

// Rows of the batch, and those before its sequences.
template <class Real>
class Inputs {
 public:
  // `document_begin`: room for [T] i32.
  Inputs(const ConvolutionInputs& in, const Tensor& document_begin)
      : x_(in.x.rows_data<Real>()),
        stride_(in.x.stride()),
        width_(in.x.dim(1)),
        seq_len_(in.seq_len),
        before_(in.before.data_or_null<Real>()),
        num_taps_(in.weight.dim(1)),
        document_begin_(document_begin.data<int32_t>()) {
    for_each_document(in.num_seqs, in.seq_len, in.cu_seqlens, [&](int64_t begin, int64_t end) {
      std::fill(document_begin_ + begin, document_begin_ + end, static_cast<int32_t>(begin));
    });
  }

  int64_t document_begin(int64_t t) const { return document_begin_[t]; }
  // The row `back` rows before a place of the document that begins at `begin`; null if it has none.
  const Real* row(int64_t begin, int64_t place, int64_t back) const {
    const int64_t at = place - back;
    if (at >= begin) return x_ + at * stride_;
    const int64_t beyond = begin - at;  // 1: the last row before
    if (before_ == nullptr || begin % seq_len_ != 0 || beyond > num_taps_ - 1) return nullptr;
    return before_ + (begin / seq_len_ * (num_taps_ - 1) + num_taps_ - 1 - beyond) * width_;
  }
  Taps<Real> taps(int64_t t) const {
    Taps<Real> rows{};
    for (int64_t k = 0; k < num_taps_; ++k) {
      rows[static_cast<size_t>(k)] = row(document_begin(t), t, num_taps_ - 1 - k);
    }
    return rows;
  }

 private:
  const Real* x_;
  int64_t stride_, width_, seq_len_;
  const Real* before_;
  int64_t num_taps_;
  int32_t* document_begin_;
};

// Calls fn(row begin, row end, channel begin, channel end, thread) for blocks of rows and channels.
template <class Fn>
void for_each_block(Context& ctx, int64_t num_rows, int64_t width, const Fn& fn) {
  const int64_t columns = ceil_div(width, kChannelBlock);
  ctx.pool.parallel_for(ceil_div(num_rows, kConvolutionChunkRows) * columns, [&](int64_t task, int thread) {
    const int64_t row = task / columns * kConvolutionChunkRows, channel = task % columns * kChannelBlock;
    fn(row, std::min(row + kConvolutionChunkRows, num_rows), channel, std::min(channel + kChannelBlock, width), thread);
  });
}

void check_taps(const Tensor& weight) {
  NMOE_CHECK(weight.dim(1) <= kMostTaps, "a convolution of {} taps: {} are possible", weight.dim(1), kMostTaps);
}

// d pre of channels, from dy and pre.
template <class Real>
void silu_backward(const Real* pre, const Real* dy, int64_t count, Real* dpre) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Real gate = 1 / (1 + exp_approx(-pre[i]));
    dpre[i] = dy[i] * gate * (1 + pre[i] * (1 - gate));
  }
}

// dx of a token's channels: the last tap's part, then those of later rows of its document and sequence, and of what
// follows elsewhere.
template <class Real>
void input_gradient(const ConvolutionBackward& args, const Inputs<Real>& inputs, const Real* weight, const Real* dpre,
                    int64_t t, int64_t begin, int64_t end) {
  const int64_t width = args.in.x.dim(1), num_taps = args.in.weight.dim(1), num_rows = args.in.x.dim(0);
  Real* const dx = args.dx.rows_data<Real>() + t * args.dx.stride();
  const int64_t seq = t / args.in.seq_len, seq_end = (seq + 1) * args.in.seq_len;
  for (int64_t ahead = 0; ahead < num_taps && t + ahead < num_rows; ++ahead) {
    if (inputs.document_begin(t + ahead) != inputs.document_begin(t)) break;
    const Real* const w = weight + (num_taps - 1 - ahead) * width;
    const Real* const gradient = dpre + (t + ahead) * width;
    if (ahead == 0) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) dx[i] = w[i] * gradient[i];
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) dx[i] += w[i] * gradient[i];
    }
  }
  const int64_t from_end = seq_end - t;  // 1: the last row of the sequence
  if (!args.dafter.defined() || from_end > num_taps - 1) return;
  if (inputs.document_begin(seq_end - 1) != inputs.document_begin(t)) return;
  const Real* const after = args.dafter.data<Real>() + (seq * (num_taps - 1) + num_taps - 1 - from_end) * width;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) dx[i] += after[i];
}

// dbefore, of all sequences: row r is tap k of the token that is r - k tokens into its sequence.
template <class Real>
void before_gradient(const ConvolutionBackward& args, const Inputs<Real>& inputs, const Real* weight,
                     const Real* dpre) {
  const int64_t width = args.in.x.dim(1), num_taps = args.in.weight.dim(1), S = args.in.seq_len;
  Real* const out = args.dbefore.data<Real>();
  for (int64_t seq = 0; seq < args.in.num_seqs; ++seq) {
    const int64_t first = seq * S;
    for (int64_t r = 0; r < num_taps - 1; ++r) {
      Real* const row = out + (seq * (num_taps - 1) + r) * width;
      std::fill_n(row, width, Real{0});
      for (int64_t t = 0; t <= r && t < S && inputs.document_begin(first + t) == first; ++t) {
        const Real* const w = weight + (r - t) * width;
        const Real* const gradient = dpre + (first + t) * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) row[i] += w[i] * gradient[i];
      }
      // A sequence that is shorter than the taps hands rows on as they came.
      const int64_t kept = r - S;
      if (!args.dafter.defined() || kept < 0 || inputs.document_begin(first + S - 1) != first) continue;
      const Real* const after = args.dafter.data<Real>() + (seq * (num_taps - 1) + kept) * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) row[i] += after[i];
    }
  }
}

// The chunks' sums [chunks, K + 1, W], of weights and biases, added to the gradients.
template <class Real>
void add_parameter_gradients(const ConvolutionBackward& args, const Tensor& partials) {
  const int64_t width = args.in.x.dim(1), num_taps = args.in.weight.dim(1), row = (num_taps + 1) * width;
  Real* const sums = partials.data<Real>();
  for (int64_t chunk = 1; chunk < partials.dim(0); ++chunk) {
#pragma omp simd
    for (int64_t i = 0; i < row; ++i) sums[i] += sums[chunk * row + i];
  }
  Real* const dweight = args.dweight.data<Real>();
  Real* const dbias = args.dbias.data_or_null<Real>();
  for (int64_t w = 0; w < width; ++w) {
    for (int64_t k = 0; k < num_taps; ++k) dweight[w * num_taps + k] += sums[k * width + w];
    if (dbias != nullptr) dbias[w] += sums[num_taps * width + w];
  }
}

}  // namespace

template <class Real>
void convolution_forward(Context& ctx, const ConvolutionForward& args) {
  check_taps(args.in.weight);
  const int64_t num_rows = args.in.x.dim(0), width = args.in.x.dim(1), num_taps = args.in.weight.dim(1);
  ArenaScope scope(ctx.scratch);
  const Tensor taps = scope.allocate(DTypeOf<Real>::value, {num_taps, width});
  const Tensor pres = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kChannelBlock});
  const Tensor begins = scope.allocate(DType::kI32, {num_rows});
  if (ctx.counting() || num_rows == 0) return;
  transpose_weight<Real>(args.in.weight, taps);
  const Inputs<Real> inputs(args.in, begins);
  const Real* const weight = taps.data<Real>();
  const Real* const bias = args.in.bias.data_or_null<Real>();
  Real* const y = args.y.data<Real>();
  for_each_block(ctx, num_rows, width, [&](int64_t row, int64_t row_end, int64_t begin, int64_t end, int thread) {
    Real* const pre = pres[thread].data<Real>();
    for (int64_t t = row; t < row_end; ++t) {
      convolve(inputs.taps(t), num_taps, weight, width, bias, begin, end, pre);
      silu(pre, end - begin, y + t * width + begin);
    }
  });
  if (!args.after.defined()) return;
  Real* after = args.after.data<Real>();
  for (int64_t seq = 0; seq < args.in.num_seqs; ++seq) {
    const int64_t end = (seq + 1) * args.in.seq_len;
    for (int64_t back = num_taps - 1; back > 0; --back, after += width) {
      const Real* const row = inputs.row(inputs.document_begin(end - 1), end, back);
      row != nullptr ? std::copy_n(row, width, after) : std::fill_n(after, width, Real{0});
    }
  }
}

template <class Real>
void convolution_backward(Context& ctx, const ConvolutionBackward& args) {
  check_taps(args.in.weight);
  const int64_t num_rows = args.in.x.dim(0), width = args.in.x.dim(1), num_taps = args.in.weight.dim(1);
  ArenaScope scope(ctx.scratch);
  const Tensor taps = scope.allocate(DTypeOf<Real>::value, {num_taps, width});
  const Tensor begins = scope.allocate(DType::kI32, {num_rows});
  const Tensor pre_gradients = scope.allocate(DTypeOf<Real>::value, {num_rows, width});
  const Tensor partials =
      scope.allocate(DTypeOf<Real>::value, {ceil_div(num_rows, kConvolutionChunkRows), num_taps + 1, width});
  const Tensor pres = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kChannelBlock});
  if (ctx.counting() || num_rows == 0) return;
  transpose_weight<Real>(args.in.weight, taps);
  const Inputs<Real> inputs(args.in, begins);
  const Real* const weight = taps.data<Real>();
  const Real* const bias = args.in.bias.data_or_null<Real>();
  const Real* const dy = args.dy.data<Real>();
  Real* const dpre = pre_gradients.data<Real>();
  for_each_block(ctx, num_rows, width, [&](int64_t row, int64_t row_end, int64_t begin, int64_t end, int thread) {
    Real* const pre = pres[thread].data<Real>();
    Real* const sums = partials.data<Real>() + row / kConvolutionChunkRows * (num_taps + 1) * width;
    for (int64_t k = 0; k <= num_taps; ++k) std::fill(sums + k * width + begin, sums + k * width + end, Real{0});
    for (int64_t t = row; t < row_end; ++t) {
      const Taps<Real> rows = inputs.taps(t);
      Real* const gradient = dpre + t * width;
      convolve(rows, num_taps, weight, width, bias, begin, end, pre);
      silu_backward(pre, dy + t * width + begin, end - begin, gradient + begin);
      for (int64_t k = 0; k <= num_taps; ++k) {
        Real* const sum = sums + k * width;
        const Real* const x = k < num_taps ? rows[static_cast<size_t>(k)] : nullptr;
        if (k == num_taps) {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) sum[i] += gradient[i];
        } else if (x != nullptr) {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) sum[i] += gradient[i] * x[i];
        }
      }
    }
  });
  for_each_block(ctx, num_rows, width, [&](int64_t row, int64_t row_end, int64_t begin, int64_t end, int) {
    for (int64_t t = row; t < row_end; ++t) input_gradient(args, inputs, weight, dpre, t, begin, end);
  });
  if (args.dbefore.defined()) before_gradient(args, inputs, weight, dpre);
  add_parameter_gradients<Real>(args, partials);
}

template <class Real>
void cached_convolution(Context& ctx, const CachedConvolution& args) {
  check_taps(args.weight);
  const int64_t num_rows = args.x.dim(0), width = args.x.dim(1), num_taps = args.weight.dim(1);
  ArenaScope scope(ctx.scratch);
  const Tensor taps = scope.allocate(DTypeOf<Real>::value, {num_taps, width});
  const Tensor pres = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), kChannelBlock});
  if (ctx.counting()) return;
  transpose_weight<Real>(args.weight, taps);
  const Real* const bias = args.bias.data_or_null<Real>();
  const int32_t* const slots = args.slots.data<int32_t>();
  const int32_t* const positions = args.positions.data<int32_t>();
  parallel_blocks(ctx, width, kChannelBlock, [&](int64_t begin, int64_t end, int thread) {
    Real* const pre = pres[thread].data<Real>();
    for (int64_t t = 0; t < num_rows; ++t) {
      Real* const y = args.y.data<Real>() + t * width;
      if (slots[t] < 0) {
        std::fill(y + begin, y + end, Real{0});
        continue;
      }
      const Real* const x = args.x.rows_data<Real>() + t * args.x.stride();
      Real* const kept = args.rows.data<Real>() + slots[t] * (num_taps - 1) * width;
      Taps<Real> rows{};
      for (int64_t k = 0; k < num_taps; ++k) {
        const bool is_there = num_taps - 1 - k <= positions[t];
        rows[static_cast<size_t>(k)] = !is_there ? nullptr : k == num_taps - 1 ? x : kept + k * width;
      }
      convolve(rows, num_taps, taps.data<Real>(), width, bias, begin, end, pre);
      silu(pre, end - begin, y + begin);
      for (int64_t k = 0; k + 2 < num_taps; ++k) {
        std::copy(kept + (k + 1) * width + begin, kept + (k + 1) * width + end, kept + k * width + begin);
      }
      std::copy(x + begin, x + end, kept + (num_taps - 2) * width + begin);
    }
  });
}

NMOE_CPU_INSTANTIATE(convolution_forward, ConvolutionForward)
NMOE_CPU_INSTANTIATE(convolution_backward, ConvolutionBackward)
NMOE_CPU_INSTANTIATE(cached_convolution, CachedConvolution)

}  // namespace nmoe::cpu
