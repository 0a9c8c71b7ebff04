// Counts what rounding to low precision loses of a matrix: the arithmetic of tensor/block_rounding.h, which the CPU
// runs too, but with sums of a row in fp32 and in units of its block's scale. Bound by instructions, some 20 for each
// value: memory would take half as long.
//
// A team of threads has a block: a row of it is on neighbouring lanes, 8 values each; of a tile, several rows at once.
// Threads keep their counts until there are no more blocks. Counts are whole numbers: sums of blocks have no order.
#include <cuda_fp8.h>

#include <algorithm>

#include "ops/cuda/kernels/low_precision/expert_amax.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/block_rounding.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerSm = 8;
constexpr int kValues = 8;  // of a lane, in a row

struct Matrices {
  unsigned count, rows, cols;
  bool vector;                     // as can_vectorise says
  const int32_t *offsets, *index;  // of experts' rows; null: there are `rows`, and as they lie
  int num_experts;
  const float* amax;  // of matrices or experts' rows; NVFP4
};

// How threads are dealt to blocks.
template <OperandFormat kFormat, BlockShape kShape>
struct Teams {
  static constexpr int kWidth = static_cast<int>(block_size(kFormat));
  static constexpr int kHeight = kShape == BlockShape::kTiles ? kWidth : 1;
  static constexpr int kLanes = kWidth / kValues;  // of a row
  static constexpr int kRowsAtOnce = std::min(kHeight, kThreads / kLanes);
  static constexpr int kSteps = kHeight / kRowsAtOnce;
  static constexpr int kTeam = kLanes * kRowsAtOnce;
  static constexpr int kTeamLanes = std::min(kTeam, kWarp);  // of a team, in a warp
  static constexpr int kBlocksAtOnce = kThreads / kTeam;
};

struct Counts {
  unsigned values = 0, underflows = 0, saturated = 0, rows = 0;
  unsigned long long lost = 0;
};

// Over lanes that are neighbours, a power of two of them, aligned to it.
template <int kLanes, class T, class Combine>
__device__ T across_lanes(T value, const Combine& combine) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

__device__ unsigned largest_bits(const float (&values)[kValues]) {
  unsigned bits = 0;
#pragma unroll
  for (const float value : values) bits = max(bits, magnitude_bits(value));
  return bits;
}

// Elements of values that were multiplied by their block's factor.
template <OperandFormat kFormat>
__device__ void round_elements(const float (&x)[kValues], float (&elements)[kValues]) {
#pragma unroll
  for (int k = 0; k < kValues; k += 2) {
    if constexpr (kFormat == OperandFormat::kNvFp4) {
      elements[k] = round_to_e2m1(x[k]);
      elements[k + 1] = round_to_e2m1(x[k + 1]);
    } else {
      const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(e4m3_pair(x[k], x[k + 1]), __NV_E4M3)));
      elements[k] = pair.x;
      elements[k + 1] = pair.y;
    }
  }
}

// Adds a row of a block, of which a lane has `values`: ratios count in the row's first lane alone.
template <OperandFormat kFormat, int kLanes>
__device__ void count_row(const BlockRounding& rounding, const float (&values)[kValues], int lane, Counts& counts) {
  constexpr float kMost = kFormat == OperandFormat::kNvFp4 ? kE2M1Max : kE4M3Max;
  const unsigned largest = across_lanes<kLanes>(largest_bits(values), [](unsigned a, unsigned b) { return max(a, b); });
  int first = kLanes * kValues;
#pragma unroll
  for (int k = kValues - 1; k >= 0; --k) {
    if (magnitude_bits(values[k]) == largest) first = lane * kValues + k;
  }
  first = across_lanes<kLanes>(first, [](int a, int b) { return min(a, b); }) - lane * kValues;
  float scaled[kValues], elements[kValues];
#pragma unroll
  for (int k = 0; k < kValues; ++k) scaled[k] = values[k] * rounding.factor;
  round_elements<kFormat>(scaled, elements);
  const bool keeps_any = rounding.unit != 0.0F;
  float signal = 0.0F, noise = 0.0F;  // of all but the row's largest
  unsigned there = 0, kept = 0, others = 0;
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    const bool is_there = values[k] != 0.0F, is_kept = keeps_any && elements[k] != 0.0F;
    there += is_there ? 1 : 0;
    kept += is_kept ? 1 : 0;
    counts.saturated += is_there && magnitude_bits(scaled[k]) > low_precision::bits_of(kMost) ? 1 : 0;
    if (k == first) continue;
    const float error = elements[k] - scaled[k];
    signal += scaled[k] * scaled[k];
    noise += error * error;
    others += (is_there ? 1 : 0) + (is_kept ? 1U << 16 : 0);  // two counts
  }
  counts.values += there;
  counts.underflows += there - kept;
  const auto sum = [](auto a, auto b) { return a + b; };
  signal = across_lanes<kLanes>(signal, sum);
  noise = across_lanes<kLanes>(noise, sum);
  others = across_lanes<kLanes>(others, sum);
  if (lane != 0 || (others & 0xFFFFU) == 0) return;
  counts.rows += 1;
  // Where none is kept, all is lost: their squares may be too small for fp32.
  const float share = others >> 16 == 0 ? 1.0F : fminf(1.0F, noise / signal);
  counts.lost += __float2uint_rn(share * static_cast<float>(1.0 / kLostUnit));
}

template <class T, OperandFormat kFormat, BlockShape kShape>
__global__ void __launch_bounds__(kThreads) measure_kernel(const T* x, Matrices p, double* sums) {
  using Own = Teams<kFormat, kShape>;
  __shared__ unsigned warps_largest[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % Own::kLanes, own_row = thread / Own::kLanes % Own::kRowsAtOnce;
  const unsigned there = p.offsets == nullptr ? p.rows : static_cast<unsigned>(max(p.offsets[p.num_experts], 0));
  const unsigned down = ceil_div(there, static_cast<unsigned>(Own::kHeight)),
                 across = ceil_div(p.cols, static_cast<unsigned>(Own::kWidth)), count = p.count * down * across;
  Counts counts;
  // All threads take as many turns, also those without a block: rows are summed by whole warps.
  for (unsigned first = blockIdx.x * Own::kBlocksAtOnce; first < count; first += gridDim.x * Own::kBlocksAtOnce) {
    const unsigned i = first + static_cast<unsigned>(thread / Own::kTeam);
    const unsigned block_row = i / across, matrix = block_row / down;
    const unsigned row = (block_row - matrix * down) * Own::kHeight + static_cast<unsigned>(own_row);
    const unsigned col = (i - block_row * across) * Own::kWidth + static_cast<unsigned>(lane * kValues);
    const int64_t place = p.index == nullptr || i >= count ? static_cast<int64_t>(matrix) * p.rows + row : p.index[row];
    const T* const source = x + place * p.cols;
    float values[kValues];
    const auto load = [&](int step) {
      const unsigned ahead = static_cast<unsigned>(step * Own::kRowsAtOnce);
      if (i < count && row + ahead < there && col < p.cols) {
        load8(source + static_cast<int64_t>(ahead) * p.cols, col, p.cols, p.vector, values);
      } else {
#pragma unroll
        for (float& value : values) value = 0.0F;
      }
    };
    unsigned largest = 0;
#pragma unroll
    for (int step = 0; step < Own::kSteps; ++step) {
      load(step);
      largest = max(largest, largest_bits(values));
    }
    largest = across_lanes<Own::kTeamLanes>(largest, [](unsigned a, unsigned b) { return max(a, b); });
    if constexpr (Own::kTeam > kWarp) {
      static_assert(Own::kTeam == kThreads);
      __syncthreads();  // those of the block before may still be read
      if (thread % kWarp == 0) warps_largest[thread / kWarp] = largest;
      __syncthreads();
#pragma unroll
      for (const unsigned other : warps_largest) largest = max(largest, other);
    }
    float tensor_amax = 0.0F;
    if (p.amax != nullptr && i < count) {
      const unsigned tensor =
          p.offsets == nullptr ? matrix : static_cast<unsigned>(expert_of(p.offsets, p.num_experts, row));
      tensor_amax = amax_of_bits(magnitude_bits(p.amax[tensor]));
    }
    const auto rounding = BlockRounding::of(kFormat, amax_of_bits(largest), tensor_amax);
#pragma unroll
    for (int step = 0; step < Own::kSteps; ++step) {
      if constexpr (Own::kSteps > 1) load(step);
      count_row<kFormat, Own::kLanes>(rounding, values, lane, counts);
    }
  }
  const double all[] = {block_sum(static_cast<double>(counts.values)),
                        block_sum(static_cast<double>(counts.underflows)),
                        block_sum(static_cast<double>(counts.saturated)), block_sum(static_cast<double>(counts.rows)),
                        block_sum(static_cast<double>(counts.lost))};
  if (thread != 0) return;
#pragma unroll
  for (int i = 0; i < 5; ++i) atomicAdd(sums + i, all[i]);
}

template <OperandFormat kFormat, BlockShape kShape>
void launch(Context& ctx, Tensor x, const Matrices& matrices, int64_t most_rows, Tensor counts) {
  using Own = Teams<kFormat, kShape>;
  const int64_t blocks =
      matrices.count * ceil_div<int64_t>(most_rows, Own::kHeight) * ceil_div<int64_t>(matrices.cols, Own::kWidth);
  NMOE_CHECK(blocks <= INT32_MAX, "{} blocks of {}", blocks, x.shape());
  const int64_t grid =
      std::min<int64_t>(ceil_div<int64_t>(blocks, Own::kBlocksAtOnce), int64_t{kBlocksPerSm} * ctx.num_sms);
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    measure_kernel<T, kFormat, kShape>
        <<<grid_size(grid), kThreads, 0, ctx.stream>>>(x.data<T>(), matrices, counts.data<double>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void measure_rounding(Context& ctx, const MeasureRounding& args, const Tensor& amax) {
  if (args.x.num_elements() == 0) return;
  const int64_t N = args.x.dim(1), C = args.x.dim(2), most_rows = args.index.defined() ? args.index.dim(0) : N;
  if (amax.defined()) {
    if (args.offsets.defined()) {
      expert_abs_max(ctx, {args.x.reshape({N, C}), args.index}, args.offsets, amax);
    } else {
      abs_max(ctx, {.x = args.x, .amax = amax});
    }
  }
  const Matrices matrices{.count = static_cast<unsigned>(args.x.dim(0)),
                          .rows = static_cast<unsigned>(N),
                          .cols = static_cast<unsigned>(C),
                          .vector = can_vectorise(C, args.x),
                          .offsets = args.offsets.data_or_null<int32_t>(),
                          .index = args.index.data_or_null<int32_t>(),
                          .num_experts = args.offsets.defined() ? static_cast<int>(args.offsets.dim(0)) - 1 : 0,
                          .amax = amax.data_or_null<float>()};
  const bool tiles = args.blocks == BlockShape::kTiles;
  if (args.format == OperandFormat::kMxFp8) {
    launch<OperandFormat::kMxFp8, BlockShape::kRows>(ctx, args.x, matrices, most_rows, args.counts);
  } else if (args.format == OperandFormat::kFp8 && tiles) {
    launch<OperandFormat::kFp8, BlockShape::kTiles>(ctx, args.x, matrices, most_rows, args.counts);
  } else if (args.format == OperandFormat::kFp8) {
    launch<OperandFormat::kFp8, BlockShape::kRows>(ctx, args.x, matrices, most_rows, args.counts);
  } else if (tiles) {
    launch<OperandFormat::kNvFp4, BlockShape::kTiles>(ctx, args.x, matrices, most_rows, args.counts);
  } else {
    launch<OperandFormat::kNvFp4, BlockShape::kRows>(ctx, args.x, matrices, most_rows, args.counts);
  }
}

}  // namespace nmoe::cuda
