// Logits of some rows by one product, in F32, then a kernel that makes of each row its losses, its prediction and its
// gradient g = grad_scale * weight * (softmax - onehot(target)) + z_scale * 2 log(sum of exp) * softmax, in act; then,
// for all rows of a chunk, two products of the gradient.
//
// The kernel: a row belongs to a cluster of blocks, each of which has a slice of it in shared memory, so that the row
// is read from memory once. A thread keeps the largest of the logits it reads, the first index of that, and the sum of
// exp(logit - largest) (online softmax, arXiv 1805.02867, algorithm 3); these are merged over the block, then over the
// cluster, in an order that V alone fixes: generation's logits go through the same kernel. Memory-bound: clusters stay
// for many rows, and a segment of the next row is on its way as soon as the gradients of one are made.
#include <cooperative_groups.h>

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cuda/barrier>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kVector = 16 / static_cast<int>(sizeof(float));
constexpr int kMaxSegments = 64;  // more than fit in shared memory
constexpr int kSegmentReads = 2;  // of a thread, 16 bytes each

// A running softmax and argmax over some of a row's logits. How sums round is written out: kernels of all types give
// the same.
struct OnlineSoftmax {
  float max;   // finite where there is none, so that exp(-inf - max) is 0
  float sum;   // of exp(logit - max)
  int argmax;  // the lowest index at which `max` is

  __device__ static OnlineSoftmax of_nothing() { return {-FLT_MAX, 0.0F, INT_MAX}; }

  // Logits index, index + 1 and so on. NaN stays in the sum.
  template <int kCount>
  __device__ void add(const float (&logits)[kCount], int index) {
    float highest = logits[0];
#pragma unroll
    for (int j = 1; j < kCount; ++j) highest = fmaxf(highest, logits[j]);
    if (highest > max) {  // seldom
      sum = __fmul_rn(sum, flushed_exp(max - highest));
      max = highest;
#pragma unroll
      for (int j = kCount - 1; j >= 0; --j) {
        if (logits[j] == highest) argmax = index + j;
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum = __fadd_rn(sum, flushed_exp(logits[j] - max));
  }
};

__device__ OnlineSoftmax merge(const OnlineSoftmax& a, const OnlineSoftmax& b) {
  OnlineSoftmax both;
  both.max = fmaxf(a.max, b.max);
  both.sum = __fmaf_rn(a.sum, flushed_exp(a.max - both.max), __fmul_rn(b.sum, flushed_exp(b.max - both.max)));
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

// What a block knows of its row's slice.
struct SliceResult {
  OnlineSoftmax softmax;
  float target_logit;  // where the slice has the target; else 0
};

// Thread 0 returns that of the block's logits.
template <int kThreads>
__device__ OnlineSoftmax merge_block(OnlineSoftmax softmax) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  __shared__ OnlineSoftmax of_warps[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  softmax = merge_warp(softmax);
  if (lane == 0) of_warps[warp] = softmax;
  __syncthreads();
  if (warp > 0) return softmax;
  return merge_warp(lane < kWarps ? of_warps[lane] : OnlineSoftmax::of_nothing());
}

// Every thread returns that of the row, from its block's in thread 0. `turn` alternates from row to row: others may
// still read what a block said of the row before.
__device__ SliceResult merge_cluster(const SliceResult& of_block, int turn) {
  namespace cg = cooperative_groups;
  __shared__ SliceResult of_slice[2];
  __shared__ SliceResult of_row;
  const cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) of_slice[turn] = of_block;
  cluster.sync();
  if (threadIdx.x < kWarp) {
    const unsigned lane = threadIdx.x;
    SliceResult of_lane{OnlineSoftmax::of_nothing(), 0.0F};
    if (lane < cluster.num_blocks()) of_lane = *cluster.map_shared_rank(&of_slice[turn], lane);
    of_lane.softmax = merge_warp(of_lane.softmax);
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      of_lane.target_logit += __shfl_down_sync(kAllLanes, of_lane.target_logit, offset);
    }
    if (lane == 0) of_row = of_lane;
  }
  __syncthreads();
  return of_row;
}

// T: of gradients.
template <class T>
struct RowArgs {
  const float* logits;       // [rows, V]
  T* gradients;              // = [rows, V]; null: not wanted
  const int32_t* targets;    // [rows]; null: none
  const double* grad_scale;  // [1]; null without gradients
  const double* z_scale;     // [1]; null: no gradients of z losses
  const float* weights;      // [rows]; null: 1
  float* losses;             // = [rows]; null: not wanted
  float* z_losses;           // = [rows]; null: not wanted
  int32_t* predictions;      // = [rows]; null: not wanted
  float* sums;               // = [rows, 3], LogitSums; null: not wanted
  int num_rows, vocab;
  int slice;  // logits that a block has of a row, the last of the cluster maybe fewer
};

// kValues: logits a thread takes at a time, 16 bytes where rows are a multiple of that. Those travel by bulk copies, a
// segment of the slice each.
template <class T, int kValues, int kThreads>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(RowArgs<T> args) {
  namespace cg = cooperative_groups;
  using Barrier = ::cuda::barrier<::cuda::thread_scope_block>;
  constexpr bool kBulk = kValues == kVector;
  constexpr int kSegment = kSegmentReads * kThreads * kValues;
  extern __shared__ __align__(128) std::byte shared[];
  auto* const logits = reinterpret_cast<float*>(shared);
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20054  // their constructor does not run: init() does what is to be done
  __shared__ Barrier filled[kMaxSegments];
#pragma nv_diagnostic pop

  const cg::cluster_group cluster = cg::this_cluster();
  const auto num_blocks = static_cast<int>(cluster.num_blocks());
  const int num_clusters = static_cast<int>(gridDim.x) / num_blocks,
            first_row = static_cast<int>(blockIdx.x) / num_blocks;
  const int begin = static_cast<int>(cluster.block_rank()) * args.slice;
  const int size = max(0, min(args.slice, args.vocab - begin));
  if (kBulk && threadIdx.x == 0) {
    for (Barrier& barrier : filled) init(&barrier, 1);
    ::cuda::device::experimental::fence_proxy_async_shared_cta();  // copies see them
  }
  __syncthreads();

  // The part of a row's slice that begins at `first`.
  const auto fetch = [&](int row, int first) {
    if (row >= args.num_rows) return;
    const int count = min(kSegment, size - first);
    const float* const source = args.logits + static_cast<int64_t>(row) * args.vocab + begin + first;
    if constexpr (kBulk) {
      if (threadIdx.x != 0) return;
      const auto bytes = static_cast<unsigned>(count * sizeof(float));
      Barrier& barrier = filled[first / kSegment];
      ::cuda::device::memcpy_async_tx(logits + first, source, ::cuda::aligned_size_t<16>(bytes), barrier);
      static_cast<void>(::cuda::device::barrier_arrive_tx(barrier, 1, bytes));
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) logits[first + i] = source[i];
    }
  };
  for (int first = 0; first < size; first += kSegment) fetch(first_row, first);

  int turn = 0;
  for (int row = first_row; row < args.num_rows; row += num_clusters, ++turn) {
    const int target = args.targets != nullptr ? args.targets[row] : -1;
    const bool has_target = target >= 0 && target < args.vocab;
    if constexpr (!kBulk) __syncthreads();
    OnlineSoftmax softmax = OnlineSoftmax::of_nothing();
    for (int first = 0; first < size; first += kSegment) {
      if constexpr (kBulk) filled[first / kSegment].wait_parity(turn % 2 != 0);
#pragma unroll
      for (int r = 0; r < kSegmentReads; ++r) {
        const int i = first + (r * kThreads + static_cast<int>(threadIdx.x)) * kValues;
        if (i >= size) break;
        float x[kValues];
        load_values(logits + i, x);
        softmax.add(x, begin + i);
      }
    }
    SliceResult result{.softmax = merge_block<kThreads>(softmax), .target_logit = 0.0F};
    const int in_slice = target - begin;
    if (has_target && in_slice >= 0 && in_slice < size) result.target_logit = logits[in_slice];
    result = merge_cluster(result, turn % 2);
    softmax = result.softmax;
    const float weight = args.weights != nullptr && has_target ? args.weights[row] : 1.0F;
    if (threadIdx.x == 0 && begin == 0) {
      if (args.predictions != nullptr) args.predictions[row] = softmax.argmax < args.vocab ? softmax.argmax : 0;
      float loss = 0.0F;
      if (has_target) loss = logf(softmax.sum) - (result.target_logit - softmax.max);
      if (target >= args.vocab) loss = nanf("");
      if (args.losses != nullptr) args.losses[row] = weight * loss;
      if (args.z_losses != nullptr) {
        const float log_z = logf(softmax.sum) + softmax.max;
        args.z_losses[row] = has_target ? log_z * log_z : 0.0F;
      }
      if (args.sums != nullptr) {
        float* const sums = args.sums + static_cast<int64_t>(row) * 3;
        sums[0] = softmax.max, sums[1] = softmax.sum, sums[2] = logf(softmax.sum);
      }
    }
    if (args.gradients != nullptr) {
      const float scale = has_target ? weight * static_cast<float>(*args.grad_scale) : 0.0F;
      float pull = scale;  // of the softmax
      if (args.z_scale != nullptr) {
        pull += 2.0F * static_cast<float>(*args.z_scale) * (logf(softmax.sum) + softmax.max);
      }
      const float factor = pull / softmax.sum;
      T* const gradient = args.gradients + static_cast<int64_t>(row) * args.vocab + begin;
      for (int first = 0; first < size; first += kSegment) {
#pragma unroll
        for (int r = 0; r < kSegmentReads; ++r) {
          const int i = first + (r * kThreads + static_cast<int>(threadIdx.x)) * kValues;
          if (i >= size) break;
          float values[kValues];
          load_values(logits + i, values);
#pragma unroll
          for (int j = 0; j < kValues; ++j) {
            values[j] = has_target ? flushed_exp(values[j] - softmax.max) * factor : 0.0F;  // pull * softmax
          }
          if (const int at = in_slice - i; at >= 0 && at < kValues) {  // seldom
#pragma unroll
            for (int j = 0; j < kValues; ++j) {
              if (j == at) values[j] -= scale;
            }
          }
          store_values(gradient + i, values);
        }
        __syncthreads();  // the segment is read
        fetch(row + num_clusters, first);
      }
    } else {
      __syncthreads();
      for (int first = 0; first < size; first += kSegment) fetch(row + num_clusters, first);
    }
  }
  cluster.sync();  // shared memory stays until the others have read it
}

// Blocks of a cluster: few, but so many that two slices fit on a multiprocessor, if that can be.
int cluster_blocks(int64_t row_bytes) {
  int blocks = 1;
  while (blocks < kMaxHeadBlocks && ceil_div<int64_t>(row_bytes, blocks) > kHeadSliceBytes / 2) blocks *= 2;
  return blocks;
}

template <int kValues, class T>
void launch_cross_entropy(Context& ctx, RowArgs<T> args) {
  const int blocks = cluster_blocks(args.vocab * static_cast<int64_t>(sizeof(float)));
  args.slice = ceil_div(ceil_div(args.vocab, blocks), kVector) * kVector;
  const auto shared = static_cast<size_t>(args.slice) * sizeof(float);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = static_cast<unsigned>(blocks), .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid_size(static_cast<int64_t>(args.num_rows) * blocks));
  config.dynamicSmemBytes = shared;
  config.stream = ctx.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const auto launch = [&]<int kThreads>() {
    const auto kernel = cross_entropy_kernel<T, kValues, kThreads>;
    allow_dynamic_shared(kernel, static_cast<int>(shared));
    config.blockDim = dim3(kThreads);
    int at_once = 0;  // clusters
    NMOE_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&at_once, kernel, &config));
    config.gridDim = dim3(grid_size(static_cast<int64_t>(std::clamp(args.num_rows, 1, std::max(1, at_once))) * blocks));
    NMOE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
  };
  const bool one_a_multiprocessor = 2 * static_cast<int64_t>(shared) > kHeadSliceBytes;
  one_a_multiprocessor ? launch.template operator()<1024>() : launch.template operator()<512>();
}

template <class T>
void cross_entropy(Context& ctx, const RowArgs<T>& args) {
  if (args.num_rows == 0) return;
  if (args.vocab % kVector == 0) {
    launch_cross_entropy<kVector>(ctx, args);
  } else {
    launch_cross_entropy<1>(ctx, args);
  }
}

// T: of gradients, or of what they would be.
template <class T>
void head_loss_of(Context& ctx, const HeadLoss& args, const HeadLossPlan& plan) {
  const bool want_gradient = args.dx.defined();
  // Logits of rows [begin, end), and what is made of them; gradients: theirs, undefined if not wanted.
  const auto run_rows = [&](int64_t begin, int64_t end, const Tensor& gradients) {
    const Tensor logits = plan.logits.rows(0, end - begin);
    linear_forward(ctx, {.x = args.x.rows(begin, end), .w = args.w, .y = logits}, plan.product);
    RowArgs<T> row_args{};
    row_args.logits = logits.data<float>();
    row_args.gradients = want_gradient ? gradients.data<T>() : nullptr;
    row_args.targets = args.targets.data<int32_t>() + begin;
    row_args.grad_scale = want_gradient ? args.grad_scale.data<double>() : nullptr;
    row_args.z_scale = want_gradient && args.z_scale.defined() ? args.z_scale.data<double>() : nullptr;
    row_args.weights = args.weights.defined() ? args.weights.data<float>() + begin : nullptr;
    row_args.losses = args.losses.data<float>() + begin;
    row_args.z_losses = args.z_losses.defined() ? args.z_losses.data<float>() + begin : nullptr;
    row_args.predictions = args.predictions.defined() ? args.predictions.data<int32_t>() + begin : nullptr;
    row_args.num_rows = static_cast<int>(end - begin);
    row_args.vocab = static_cast<int>(args.w.dim(0));
    cross_entropy(ctx, row_args);
  };
  const int64_t num_tokens = args.x.dim(0), part_rows = plan.logits.dim(0);
  const int64_t chunk_rows = want_gradient ? plan.gradients.dim(0) : num_tokens;
  for (int64_t begin = 0; begin < num_tokens; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, num_tokens);
    for (int64_t first = begin; first < end; first += part_rows) {
      const int64_t last = std::min(first + part_rows, end);
      run_rows(first, last, want_gradient ? plan.gradients.rows(first - begin, last - begin) : Tensor());
    }
    if (!want_gradient) continue;
    const Tensor gradients = plan.gradients.rows(0, end - begin);
    linear_backward_input(ctx, {.dy = gradients, .w = args.w, .dx = args.dx.rows(begin, end)}, plan.product);
    linear_backward_weight(
        ctx,
        {.x = args.x.rows(begin, end), .dy = gradients, .dw = args.dw, .accumulate = args.accumulate_dw || begin > 0},
        plan.product);
  }
}

}  // namespace

void head_loss(Context& ctx, const HeadLoss& args, const HeadLossPlan& plan) {
  if (args.x.dtype() == DType::kF32) {
    head_loss_of<float>(ctx, args, plan);
  } else {
    head_loss_of<__nv_bfloat16>(ctx, args, plan);
  }
}

void logit_sums(Context& ctx, const LogitSums& args) {
  check_head_vocab(args.logits.dim(1));
  RowArgs<float> row_args{};
  row_args.logits = args.logits.data<float>();
  row_args.sums = args.sums.data<float>();
  row_args.num_rows = static_cast<int>(args.logits.dim(0));
  row_args.vocab = static_cast<int>(args.logits.dim(1));
  cross_entropy(ctx, row_args);
}

}  // namespace nmoe::cuda
