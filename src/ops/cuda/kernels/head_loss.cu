// Logits of a chunk of rows by one product in F32, then a kernel that turns each row into its loss, its prediction and
// its gradient g = grad_scale * (softmax - onehot(target)), then two products of the gradient.
//
// The kernel: one block a row. A thread keeps the largest of the logits it reads, the first index of that, and the sum
// of exp(logit - largest) (online softmax, arXiv 1805.02867, algorithm 3); these are merged in an order that V alone
// fixes. Memory-bound: a row is read twice, the second time from L2, and its gradient written once. With F32
// gradients it is written over the logits: a thread overwrites only what it alone reads.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/scratch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVector = 8;
static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);

// A running softmax and argmax over some of a row's logits.
struct OnlineSoftmax {
  float max = -FLT_MAX;  // finite, so that exp(-inf - max) is 0
  float sum = 0.0F;      // of exp(logit - max)
  int argmax = INT_MAX;  // the lowest index at which `max` is

  __device__ void add(float logit, int index) {
    if (logit > max) {
      sum = sum * expf(max - logit) + 1.0F;
      max = logit;
      argmax = index;
    } else {
      sum += expf(logit - max);  // NaN stays in the sum
    }
  }
};

__device__ OnlineSoftmax merge(const OnlineSoftmax& a, const OnlineSoftmax& b) {
  OnlineSoftmax both;
  both.max = fmaxf(a.max, b.max);
  both.sum = a.sum * expf(a.max - both.max) + b.sum * expf(b.max - both.max);
  both.argmax = a.max > b.max ? a.argmax : b.max > a.max ? b.argmax : min(a.argmax, b.argmax);
  return both;
}

// Lane 0 returns that of the warp's logits.
__device__ OnlineSoftmax merge_warp(OnlineSoftmax softmax) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    OnlineSoftmax other;
    other.max = __shfl_down_sync(kAllLanes, softmax.max, offset);
    other.sum = __shfl_down_sync(kAllLanes, softmax.sum, offset);
    other.argmax = __shfl_down_sync(kAllLanes, softmax.argmax, offset);
    softmax = merge(softmax, other);
  }
  return softmax;
}

// Every thread returns that of the block's logits. Once a kernel.
__device__ OnlineSoftmax merge_block(OnlineSoftmax softmax) {
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ int indices[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  softmax = merge_warp(softmax);
  if (lane == 0) maxima[warp] = softmax.max, sums[warp] = softmax.sum, indices[warp] = softmax.argmax;
  __syncthreads();
  if (warp == 0) {
    OnlineSoftmax of_warp;  // lane l's is warp l's
    if (lane < kWarps) of_warp.max = maxima[lane], of_warp.sum = sums[lane], of_warp.argmax = indices[lane];
    of_warp = merge_warp(of_warp);
    __syncwarp();
    if (lane == 0) maxima[0] = of_warp.max, sums[0] = of_warp.sum, indices[0] = of_warp.argmax;
  }
  __syncthreads();
  softmax.max = maxima[0];
  softmax.sum = sums[0];
  softmax.argmax = indices[0];
  return softmax;
}

template <class T>
struct RowArgs {
  const float* logits;       // [rows, V]
  T* gradient;               // = [rows, V]; null: not wanted. May be `logits`
  const int32_t* targets;    // [rows]
  const double* grad_scale;  // [1]; null with `gradient`
  float* losses;             // = [rows]
  int32_t* predictions;      // = [rows]; null: not wanted
  int vocab;
};

// kValues: logits a thread takes at a time, 8 where V is divisible by it.
template <class T, int kValues>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(RowArgs<T> args) {
  const int64_t row = blockIdx.x;
  const int vocab = args.vocab, target = args.targets[row];
  const float* logits = args.logits + row * vocab;
  const bool has_target = target >= 0 && target < vocab;
  float target_logit = 0.0F;  // read before the gradient may be written over it
  if (threadIdx.x == 0 && has_target) target_logit = logits[target];

  OnlineSoftmax softmax;
  for (int v = static_cast<int>(threadIdx.x) * kValues; v < vocab; v += kThreads * kValues) {
    float x[kValues];
    if constexpr (kValues == kVector) {
      load8(logits + v, x);
    } else {
      x[0] = logits[v];
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) softmax.add(x[i], v + i);
  }
  softmax = merge_block(softmax);
  if (threadIdx.x == 0) {
    if (args.predictions != nullptr) args.predictions[row] = softmax.argmax < vocab ? softmax.argmax : 0;
    float loss = 0.0F;
    if (has_target) loss = logf(softmax.sum) - (target_logit - softmax.max);
    if (target >= vocab) loss = nanf("");
    args.losses[row] = loss;
  }
  if (args.gradient == nullptr) return;

  const float scale = has_target ? static_cast<float>(*args.grad_scale) : 0.0F, factor = scale / softmax.sum;
  T* gradient = args.gradient + row * vocab;
  for (int v = static_cast<int>(threadIdx.x) * kValues; v < vocab; v += kThreads * kValues) {
    float x[kValues];
    if constexpr (kValues == kVector) {
      load8(logits + v, x);
    } else {
      x[0] = logits[v];
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float scaled = has_target ? expf(x[i] - softmax.max) * factor : 0.0F;  // scale * softmax
      x[i] = v + i == target ? scaled - scale : scaled;
    }
    if constexpr (kValues == kVector) {
      store8(gradient + v, x);
    } else {
      gradient[v] = from_float<T>(x[0]);
    }
  }
}

template <class T>
void cross_entropy(Context& ctx, const RowArgs<T>& args, int64_t num_rows) {
  const auto blocks = static_cast<unsigned>(num_rows);
  if (args.vocab % kVector == 0) {
    cross_entropy_kernel<T, kVector><<<blocks, kThreads, 0, ctx.stream>>>(args);
  } else {
    cross_entropy_kernel<T, 1><<<blocks, kThreads, 0, ctx.stream>>>(args);
  }
  NMOE_CUDA_CHECK(cudaGetLastError());
}

template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw()) : nullptr;
}

template <class T>
void head_loss_of(Context& ctx, const HeadLoss& args) {
  const int64_t num_tokens = args.x.dim(0), vocab = args.w.dim(0);
  const bool want_gradient = args.dx.defined();
  const int64_t chunk_rows = head_chunk_rows(num_tokens, vocab);
  ArenaScope scope(ctx.scratch);
  const auto [logits, gradient] = claim(scope, args);
  for (int64_t begin = 0; begin < num_tokens; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, num_tokens), rows = end - begin;
    const Tensor x = args.x.rows(begin, end), chunk = logits.rows(0, rows);
    linear_forward(ctx, {.x = x, .w = args.w, .y = chunk});
    if (!ctx.counting()) {
      RowArgs<T> row_args{};
      row_args.logits = chunk.data<float>();
      row_args.gradient = data_or_null<T>(gradient);
      row_args.targets = args.targets.data<int32_t>() + begin;
      row_args.grad_scale = want_gradient ? args.grad_scale.data<double>() : nullptr;
      row_args.losses = args.losses.data<float>() + begin;
      row_args.predictions = args.predictions.defined() ? args.predictions.data<int32_t>() + begin : nullptr;
      row_args.vocab = static_cast<int>(vocab);
      cross_entropy(ctx, row_args, rows);
    }
    if (want_gradient) {
      const Tensor dy = gradient.rows(0, rows);
      linear_backward_input(ctx, {.dy = dy, .w = args.w, .dx = args.dx.rows(begin, end)});
      linear_backward_weight(ctx, {.x = x, .dy = dy, .dw = args.dw, .accumulate = args.accumulate_dw || begin > 0});
    }
    if (ctx.counting()) return;  // one chunk stands for all
  }
}

}  // namespace

void head_loss(Context& ctx, const HeadLoss& args) {
  const int64_t num_tokens = args.x.dim(0), vocab = args.w.dim(0);
  NMOE_CHECK(args.targets.shape() == Shape({num_tokens}) && args.losses.shape() == Shape({num_tokens}) && vocab > 0 &&
                 vocab <= INT_MAX - kThreads * kVector,
             "head over x {} and w {}: targets {}, losses {}", args.x.shape(), args.w.shape(), args.targets.shape(),
             args.losses.shape());
  if (args.x.dtype() == DType::kF32) {
    head_loss_of<float>(ctx, args);
  } else {
    NMOE_CHECK(args.x.dtype() == DType::kBF16, "head over {}", dtype_name(args.x.dtype()));
    head_loss_of<__nv_bfloat16>(ctx, args);
  }
}

}  // namespace nmoe::cuda
