// Depthwise causal convolution with SiLU, memory-bound. A thread has eight channels of a chunk of rows, one row after
// the other, and the rows before in registers: each element is read once, but for the K - 1 rows before a chunk. Later
// rows are under way meanwhile.
// Backward computes pre-activations again, and reads K - 1 rows ahead of a chunk too, so that gradients of inputs need
// no memory of their own.
#include <climits>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/documents.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/raw_values.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kChannels = 8;  // of a thread
constexpr int kThreads = 64;
constexpr int kForwardRows = 64;  // of a block
constexpr int kTogether = 4;      // of which a thread reads so many at once
constexpr int kBackwardRows = kConvolutionChunkRows;

// What all kernels but those of generation read. `before` may be null.
template <class T>
struct Rows {
  const T* x;
  int64_t stride, width;
  int num_rows, seq_len;
  const int32_t* bounds;  // [capacity]
  int capacity;
  const T* before;
  const float *weight, *bias;  // bias may be null
  bool vector;

  __device__ int document_begin(int t) const { return document_of(t, seq_len, bounds, capacity).x; }
  __device__ bool goes_on(int document) const { return before != nullptr && document % seq_len == 0; }
};

// The taps and bias of a thread's channels; 0 where there are no biases.
template <int K>
struct Filter {
  float weight[K][kChannels], bias[kChannels];

  __device__ Filter(const float* weights, const float* biases, int64_t channel, int64_t width) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const bool is_one = channel + j < width;
      bias[j] = is_one && biases != nullptr ? biases[channel + j] : 0.0F;
#pragma unroll
      for (int k = 0; k < K; ++k) weight[k][j] = is_one ? weights[(channel + j) * K + k] : 0.0F;
    }
  }
  // Of training and generation alike. `have`: rows before the last one that count.
  __device__ void convolve(const float (&rows)[K][kChannels], int have, float (&pre)[kChannels]) const {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) pre[j] = bias[j];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < K - 1 - have) continue;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) pre[j] = fmaf(weight[k][j], rows[k][j], pre[j]);
    }
  }
};

template <class T>
__device__ void silu(float (&pre)[kChannels]) {
#pragma unroll
  for (float& value : pre) value *= sigmoid<T>(value);
}

// A token's row and those before it, as they slide over a chunk.
template <int K, class T>
class Window {
 public:
  __device__ Window(const Rows<T>& in, int64_t channel) : in_(in), channel_(channel) {}

  // To token t of the document that begins at `document`, from the token before, or from anywhere if `is_first`.
  __device__ void move_to(int t, int document, bool is_first) { move_to(t, document, is_first, read(t)); }
  // own: what read(t) returned.
  __device__ void move_to(int t, int document, bool is_first, const RawValues<T>& own) {
    if (is_first || t == document) {
      fetch_before(t, document);
    } else {
#pragma unroll
      for (int k = 0; k + 1 < K; ++k) copy(rows[k], rows[k + 1]);
    }
    own.to_floats(rows[K - 1]);
    have = in_.goes_on(document) ? K - 1 : min(K - 1, t - document);
  }

  // To tokens t to t + kCount - 1, all of one document, as are K - 1 before them: fn(i, rows of token t + i).
  // `is_first`: from anywhere, else from token t - 1.
  template <int kCount, class Fn>
  __device__ void move_through(int t, bool is_first, const Fn& fn) {
    RawValues<T> fresh[kCount];
    if (is_first) fetch_before(t, t - (K - 1));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      fresh[i] = read(t + i);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i > 0 || !is_first) {
#pragma unroll
        for (int k = 0; k + 1 < K; ++k) copy(rows[k], rows[k + 1]);
      }
      fresh[i].to_floats(rows[K - 1]);
      fn(i, rows);
    }
    have = K - 1;
  }

  __device__ RawValues<T> read(int t) const {
    RawValues<T> row;
    row.load(in_.x + t * in_.stride, channel_, in_.width, in_.vector);
    return row;
  }

  float rows[K][kChannels];
  int have = 0;  // rows before the last one that count

 private:
  __device__ static void copy(float (&to)[kChannels], const float (&from)[kChannels]) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) to[j] = from[j];
  }
  __device__ void fetch_before(int t, int document) {
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) {
      const int at = t - (K - 1) + k;
      if (at >= document) {
        load8(in_.x + at * in_.stride, channel_, in_.width, in_.vector, rows[k]);
      } else if (in_.goes_on(document)) {
        const int64_t row = static_cast<int64_t>(document / in_.seq_len) * (K - 1) + K - 1 - (document - at);
        load8(in_.before + row * in_.width, channel_, in_.width, in_.vector, rows[k]);
      }
    }
  }

  const Rows<T>& in_;
  int64_t channel_;
};

// begins[i] = where the document of token first + i begins; of tokens beyond the last, which are in none, INT_MAX. All
// threads of a block.
template <class T>
__device__ void find_begins(const Rows<T>& in, int first, int count, int* begins) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    begins[i] = first + i < in.num_rows ? in.document_begin(first + i) : INT_MAX;
  }
  __syncthreads();
}

__device__ int64_t own_channel() { return (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kChannels; }

template <int K, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Rows<T> in, T* y) {
  __shared__ int begins[kForwardRows];
  const int first = static_cast<int>(blockIdx.x) * kForwardRows, end = min(first + kForwardRows, in.num_rows);
  find_begins(in, first, kForwardRows, begins);
  const int64_t channel = own_channel();
  if (channel >= in.width) return;
  const Filter<K> filter(in.weight, in.bias, channel, in.width);
  Window<K, T> window(in, channel);
  const auto finish = [&](int t, float(&pre)[kChannels]) {
    silu<T>(pre);
    store8(y + t * in.width, channel, in.width, in.vector, pre);
  };
  for (int t = first; t < end; t += kTogether) {
    const int document = begins[t - first];
    if (t + kTogether <= end && t - document >= K - 1 && begins[t - first + kTogether - 1] == document) {
      window.template move_through<kTogether>(t, t == first, [&](int i, const float(&rows)[K][kChannels]) {
        float pre[kChannels];
        filter.convolve(rows, K - 1, pre);
        finish(t + i, pre);
      });
      continue;
    }
    for (int i = t; i < min(t + kTogether, end); ++i) {
      float pre[kChannels];
      window.move_to(i, begins[i - first], i == first);
      filter.convolve(window.rows, window.have, pre);
      finish(i, pre);
    }
  }
}

// What the next part of each sequence goes on from: a block has a sequence.
template <int K, class T>
__global__ void __launch_bounds__(kThreads) after_kernel(Rows<T> in, T* after) {
  const int64_t channel = own_channel();
  if (channel >= in.width) return;
  const int seq = static_cast<int>(blockIdx.x), end = (seq + 1) * in.seq_len, document = in.document_begin(end - 1);
  for (int row = 0; row < K - 1; ++row) {
    const int at = end - (K - 1) + row;
    float values[kChannels] = {};
    if (at >= document) {
      load8(in.x + at * in.stride, channel, in.width, in.vector, values);
    } else if (in.goes_on(document) && document - at <= K - 1) {
      const int64_t place = static_cast<int64_t>(seq) * (K - 1) + K - 1 - (document - at);
      load8(in.before + place * in.width, channel, in.width, in.vector, values);
    }
    store8(after + (static_cast<int64_t>(seq) * (K - 1) + row) * in.width, channel, in.width, in.vector, values);
  }
}

// Gradients of pre-activations: dpre = dy silu'(pre), of the window's token.
template <int K, class T>
__device__ void gradient_of_pre(const Filter<K>& filter, const Window<K, T>& window, const RawValues<T>& dy,
                                float (&dpre)[kChannels]) {
  float pre[kChannels], dys[kChannels];
  filter.convolve(window.rows, window.have, pre);
  dy.to_floats(dys);
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    const float gate = sigmoid<T>(pre[j]);
    dpre[j] = dys[j] * gate * (1.0F + pre[j] * (1.0F - gate));
  }
}

// dy and dafter of backward, dafter may be null.
template <class T>
struct Gradients {
  const T *dy, *dafter;
  T* dx;
  int64_t dx_stride;
  bool vector;

  __device__ RawValues<T> read(int t, int64_t channel, int64_t width) const {
    RawValues<T> row;
    row.load(dy + t * width, channel, width, vector);
    return row;
  }
};

// partials[chunk] = the chunk's sums for each tap and the bias; and dx.
template <int K, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(Rows<T> in, Gradients<T> of, float* partials) {
  constexpr int kAhead = K - 1;
  __shared__ int begins[kBackwardRows + kAhead];
  const int first = static_cast<int>(blockIdx.x) * kBackwardRows, end = min(first + kBackwardRows, in.num_rows);
  find_begins(in, first, kBackwardRows + kAhead, begins);
  const int64_t channel = own_channel();
  if (channel >= in.width) return;
  const Filter<K> filter(in.weight, in.bias, channel, in.width);
  Window<K, T> window(in, channel);
  float sums[K + 1][kChannels] = {}, ahead[K][kChannels] = {};  // ahead[i]: dpre of token t + i
  // dx of token t, whose dpre is ahead[0].
  const auto finish = [&](int t) {
    const int document = begins[t - first];
    float dx[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) dx[j] = filter.weight[K - 1][j] * ahead[0][j];
#pragma unroll
    for (int i = 1; i < K; ++i) {
      if (begins[t + i - first] != document) continue;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) dx[j] = fmaf(filter.weight[K - 1 - i][j], ahead[i][j], dx[j]);
    }
    const int seq = t / in.seq_len, from_end = (seq + 1) * in.seq_len - t;  // 1: the sequence's last token
    if (of.dafter != nullptr && from_end <= K - 1 && begins[t + from_end - 1 - first] == document) {
      const int64_t row = static_cast<int64_t>(seq) * (K - 1) + K - 1 - from_end;
      float dafter[kChannels];
      load8(of.dafter + row * in.width, channel, in.width, of.vector, dafter);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) dx[j] += dafter[j];
    }
    store8(of.dx + t * of.dx_stride, channel, in.width, of.vector, dx);
  };
  RawValues<T> next_x = window.read(first), next_dy = of.read(first, channel, in.width);
  for (int t = first; t < end + kAhead; ++t) {
    const RawValues<T> own_x = next_x, own_dy = next_dy;
    if (t + 1 < min(end + kAhead, in.num_rows)) {  // under way during this token's sums
      next_x = window.read(t + 1);
      next_dy = of.read(t + 1, channel, in.width);
    }
#pragma unroll
    for (int i = 0; i + 1 < K; ++i) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) ahead[i][j] = ahead[i + 1][j];
    }
    float dpre[kChannels] = {};
    if (t < in.num_rows) {
      window.move_to(t, begins[t - first], t == first, own_x);
      gradient_of_pre(filter, window, own_dy, dpre);
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) ahead[K - 1][j] = dpre[j];
    if (t < end) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (k < K - 1 - window.have) continue;
#pragma unroll
        for (int j = 0; j < kChannels; ++j) sums[k][j] = fmaf(dpre[j], window.rows[k][j], sums[k][j]);
      }
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sums[K][j] += dpre[j];
    }
    if (t - kAhead >= first) finish(t - kAhead);
  }
  const bool vector = in.width % kChannels == 0;
#pragma unroll
  for (int k = 0; k <= K; ++k) {
    store8(partials + (static_cast<int64_t>(blockIdx.x) * (K + 1) + k) * in.width, channel, in.width, vector, sums[k]);
  }
}

// dbefore: row r is tap r - t of the sequence's token t.
template <int K, class T>
__global__ void __launch_bounds__(kThreads) before_kernel(Rows<T> in, Gradients<T> of, T* dbefore) {
  const int64_t channel = own_channel();
  if (channel >= in.width) return;
  const int seq = static_cast<int>(blockIdx.x), first = seq * in.seq_len, last = first + in.seq_len - 1;
  const Filter<K> filter(in.weight, in.bias, channel, in.width);
  Window<K, T> window(in, channel);
  float dpre[K - 1][kChannels] = {};
#pragma unroll
  for (int t = 0; t < K - 1; ++t) {
    if (t >= in.seq_len || in.document_begin(first + t) != first) continue;
    window.move_to(first + t, first, /*is_first=*/true);
    gradient_of_pre(filter, window, of.read(first + t, channel, in.width), dpre[t]);
  }
  const bool hands_on =
      of.dafter != nullptr && in.document_begin(last) == first;  // rows of a sequence shorter than taps
#pragma unroll
  for (int r = 0; r < K - 1; ++r) {
    float sum[kChannels] = {};
#pragma unroll
    for (int t = 0; t <= r; ++t) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sum[j] = fmaf(filter.weight[r - t][j], dpre[t][j], sum[j]);
    }
    if (hands_on && r >= in.seq_len) {
      float dafter[kChannels];
      const int64_t row = static_cast<int64_t>(seq) * (K - 1) + r - in.seq_len;
      load8(of.dafter + row * in.width, channel, in.width, of.vector, dafter);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sum[j] += dafter[j];
    }
    store8(dbefore + (static_cast<int64_t>(seq) * (K - 1) + r) * in.width, channel, in.width, of.vector, sum);
  }
}

// A thread has a channel of a tap, or of the bias (blockIdx.y == K).
__global__ void __launch_bounds__(kThreads) add_partials_kernel(const float* partials, float* dweight, float* dbias,
                                                                int num_chunks, int64_t num_taps, int64_t width) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= width) return;
  const int64_t k = blockIdx.y;
  float sum = partials[k * width + channel];
#pragma unroll 4
  for (int64_t chunk = 1; chunk < num_chunks; ++chunk) sum += partials[(chunk * (num_taps + 1) + k) * width + channel];
  float* const target = k < num_taps ? dweight + channel * num_taps + k : dbias + channel;
  *target += sum;
}

// A block has a slot's rows, in their order; the last one those of no slot.
template <int K, class T>
__global__ void __launch_bounds__(kThreads)
    cached_kernel(const T* x, int64_t stride, int64_t width, int num_rows, const float* weight, const float* bias,
                  const int32_t* slots, const int32_t* positions, T* kept, int num_slots, T* y, bool vector) {
  const int64_t channel = own_channel();
  if (channel >= width) return;
  const int slot = static_cast<int>(blockIdx.x) < num_slots ? static_cast<int>(blockIdx.x) : -1;
  const Filter<K> filter(weight, bias, channel, width);
  float rows[K][kChannels] = {};
  bool is_used = false;
  for (int t = 0; t < num_rows; ++t) {
    if (slots[t] != slot) continue;
    float out[kChannels] = {};
    if (slot >= 0) {
#pragma unroll
      for (int k = 0; k + 1 < K; ++k) {
        if (!is_used) {
          load8(kept + (static_cast<int64_t>(slot) * (K - 1) + k) * width, channel, width, vector, rows[k]);
        } else {
#pragma unroll
          for (int j = 0; j < kChannels; ++j) rows[k][j] = rows[k + 1][j];
        }
      }
      is_used = true;
      load8(x + t * stride, channel, width, vector, rows[K - 1]);
      filter.convolve(rows, min(K - 1, positions[t]), out);
      silu<T>(out);
    }
    store8(y + t * width, channel, width, vector, out);
  }
  if (!is_used) return;
#pragma unroll
  for (int k = 0; k + 1 < K; ++k) {
    store8(kept + (static_cast<int64_t>(slot) * (K - 1) + k) * width, channel, width, vector, rows[k + 1]);
  }
}

template <class T>
Rows<T> rows_of(const ConvolutionInputs& in) {
  const bool has_documents = in.cu_seqlens.defined();
  return {.x = in.x.rows_data<T>(),
          .stride = in.x.stride(),
          .width = in.x.dim(1),
          .num_rows = static_cast<int>(in.x.dim(0)),
          .seq_len = static_cast<int>(in.seq_len),
          .bounds = has_documents ? in.cu_seqlens.data<int32_t>() : nullptr,
          .capacity = has_documents ? static_cast<int>(in.cu_seqlens.dim(0)) : 0,
          .before = in.before.data_or_null<T>(),
          .weight = in.weight.data<float>(),
          .bias = in.bias.data_or_null<float>(),
          .vector = false};
}

// Calls fn(element, std::integral_constant of K).
template <class Fn>
void dispatch(const Tensor& x, const Tensor& weight, const Fn& fn) {
  dispatch_act(x.dtype(), [&](auto element) {
    switch (weight.dim(1)) {
      case 2:
        return fn(element, std::integral_constant<int, 2>());
      case 3:
        return fn(element, std::integral_constant<int, 3>());
      default:
        return fn(element, std::integral_constant<int, 4>());
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

dim3 grid_of(int64_t blocks, int64_t width) {
  return dim3(grid_size(blocks), grid_size(ceil_div(width, int64_t{kThreads} * kChannels)));
}

}  // namespace

void convolution_forward(Context& ctx, const ConvolutionForward& args, const NoScratch& /*plan*/) {
  const ConvolutionInputs& in = args.in;
  const int64_t width = in.x.dim(1);
  if (in.x.dim(0) == 0 || width == 0) return;
  dispatch(in.x, in.weight, [&](auto element, auto taps) {
    using T = decltype(element);
    Rows<T> rows = rows_of<T>(in);
    rows.vector = can_vectorise(width, in.x, args.y) && (!in.before.defined() || can_vectorise(width, in.before));
    forward_kernel<taps(), T>
        <<<grid_of(ceil_div(in.x.dim(0), kForwardRows), width), kThreads, 0, ctx.stream>>>(rows, args.y.data<T>());
    if (!args.after.defined()) return;
    rows.vector = rows.vector && can_vectorise(width, args.after);
    after_kernel<taps(), T><<<grid_of(in.num_seqs, width), kThreads, 0, ctx.stream>>>(rows, args.after.data<T>());
  });
}

void convolution_backward(Context& ctx, const ConvolutionBackward& args, const Tensor& partials) {
  const ConvolutionInputs& in = args.in;
  const int64_t width = in.x.dim(1), num_taps = in.weight.dim(1);
  if (in.x.dim(0) == 0 || width == 0) return;
  dispatch(in.x, in.weight, [&](auto element, auto taps) {
    using T = decltype(element);
    const auto aligned = [&](const Tensor& x) { return !x.defined() || can_vectorise(width, x); };
    Rows<T> rows = rows_of<T>(in);
    rows.vector = aligned(in.x) && aligned(in.before);
    const Gradients<T> of{
        .dy = args.dy.data<T>(),
        .dafter = args.dafter.data_or_null<T>(),
        .dx = args.dx.rows_data<T>(),
        .dx_stride = args.dx.stride(),
        .vector = aligned(args.dy) && aligned(args.dafter) && aligned(args.dx) && aligned(args.dbefore)};
    backward_kernel<taps(), T>
        <<<grid_of(partials.dim(0), width), kThreads, 0, ctx.stream>>>(rows, of, partials.data<float>());
    if (!args.dbefore.defined()) return;
    before_kernel<taps(), T>
        <<<grid_of(in.num_seqs, width), kThreads, 0, ctx.stream>>>(rows, of, args.dbefore.data<T>());
  });
  const int64_t num_sums = args.dbias.defined() ? num_taps + 1 : num_taps;
  const dim3 grid(grid_size(ceil_div(width, int64_t{kThreads})), grid_size(num_sums));
  add_partials_kernel<<<grid, kThreads, 0, ctx.stream>>>(partials.data<float>(), args.dweight.data<float>(),
                                                         args.dbias.data_or_null<float>(),
                                                         static_cast<int>(partials.dim(0)), num_taps, width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void cached_convolution(Context& ctx, const CachedConvolution& args, const NoScratch& /*plan*/) {
  const int64_t width = args.x.dim(1), num_slots = args.rows.dim(0);
  if (args.x.dim(0) == 0 || width == 0) return;
  dispatch(args.x, args.weight, [&](auto element, auto taps) {
    using T = decltype(element);
    cached_kernel<taps(), T><<<grid_of(num_slots + 1, width), kThreads, 0, ctx.stream>>>(
        args.x.rows_data<T>(), args.x.stride(), width, static_cast<int>(args.x.dim(0)), args.weight.data<float>(),
        args.bias.data_or_null<float>(), args.slots.data<int32_t>(), args.positions.data<int32_t>(),
        args.rows.data<T>(), static_cast<int>(num_slots), args.y.data<T>(),
        can_vectorise(width, args.x, args.rows, args.y));
  });
}

}  // namespace nmoe::cuda
