// Counts what rounding to low precision loses of a matrix: the arithmetic of tensor/block_rounding.h, which the CPU
// runs too. Seldom, so that it is simple: a warp has a block of values, reads it twice, the second time from a cache,
// and keeps its counts until it has no more blocks. Counts are whole numbers: atomic sums have no order.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"
#include "tensor/block_rounding.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerSm = 4;
constexpr int kPerLane = static_cast<int>(block_size(OperandFormat::kFp8)) / kWarp;  // of a row of the widest block

struct Blocks {
  OperandFormat format;
  int64_t matrices, rows, cols;
  int64_t width, height;    // of a block
  const int32_t* num_rows;  // null: `rows`
  const float* amax;        // of matrices, or null
};

// A lane's values of a row of a block, zeros where there are none.
template <class T>
__device__ void load_row(const T* row, int cols, int lane, float (&values)[kPerLane]) {
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int col = lane + k * kWarp;
    values[k] = col < cols ? to_float(row[col]) : 0.0F;
  }
}
__device__ unsigned largest_bits(const float (&values)[kPerLane]) {
  unsigned bits = 0;
#pragma unroll
  for (const float value : values) bits = max(bits, magnitude_bits(value));
  return __reduce_max_sync(kAllLanes, bits);
}

// Adds a row of a block, of which all lanes take part: ratios count in lane 0 alone.
__device__ void count_row(const BlockRounding& rounding, const float (&values)[kPerLane], int lane,
                          RoundingCounts& counts) {
  const unsigned largest = largest_bits(values);
  unsigned first = ~0U;
#pragma unroll
  for (int k = kPerLane - 1; k >= 0; --k) {
    if (magnitude_bits(values[k]) == largest) first = static_cast<unsigned>(lane + k * kWarp);
  }
  first = __reduce_min_sync(kAllLanes, first);
  double signal = 0.0, noise = 0.0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const float x = values[k];
    if (x == 0.0F) continue;
    counts.values += 1;
    counts.underflows += rounding.vanishes(x) ? 1 : 0;
    counts.saturated += rounding.saturates(x) ? 1 : 0;
    if (lane + k * kWarp == static_cast<int>(first)) continue;
    const double error = rounding.error(x);
    signal += static_cast<double>(x) * static_cast<double>(x);
    noise += error * error;
  }
  signal = warp_sum(signal);
  noise = warp_sum(noise);
  if (lane != 0 || !(signal > 0.0)) return;
  counts.rows += 1;
  counts.lost += rint(fmin(1.0, noise / signal) / kLostUnit);
}

template <class T>
__global__ void __launch_bounds__(kThreads) measure_kernel(const T* x, Blocks p, double* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t there = p.num_rows == nullptr ? p.rows : min(static_cast<int64_t>(*p.num_rows), p.rows);
  const int64_t down = ceil_div(there, p.height), across = ceil_div(p.cols, p.width);
  const int64_t count = p.matrices * down * across, stride = static_cast<int64_t>(gridDim.x) * kWarps;
  RoundingCounts counts;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < count; i += stride) {
    const int64_t matrix = i / across / down, row = i / across % down * p.height, col = i % across * p.width;
    const int rows = static_cast<int>(min(p.height, there - row)), cols = static_cast<int>(min(p.width, p.cols - col));
    const T* const block = x + (matrix * p.rows + row) * p.cols + col;
    float values[kPerLane];
    unsigned largest = 0;
    for (int r = 0; r < rows; ++r) {
      load_row(block + r * p.cols, cols, lane, values);
      largest = max(largest, largest_bits(values));
    }
    const float tensor_amax = p.amax == nullptr ? 0.0F : amax_of_bits(magnitude_bits(p.amax[matrix]));
    const auto rounding = BlockRounding::of(p.format, amax_of_bits(largest), tensor_amax);
    for (int r = 0; r < rows; ++r) {
      if (rows > 1) load_row(block + r * p.cols, cols, lane, values);
      count_row(rounding, values, lane, counts);
    }
  }
  const double parts[] = {warp_sum(counts.values), warp_sum(counts.underflows), warp_sum(counts.saturated), counts.rows,
                          counts.lost};
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < 5; ++i) atomicAdd(sums + i, parts[i]);
}

}  // namespace

void measure_rounding(Context& ctx, const MeasureRounding& args) {
  check_measure_rounding(args);
  ArenaScope scratch(ctx.scratch);
  const Tensor amax = claim(scratch, args);
  if (ctx.counting() || args.x.num_elements() == 0) return;
  if (amax.defined()) abs_max(ctx, {.x = args.x, .num_rows = args.num_rows, .amax = amax});
  const int64_t n = block_size(args.format), height = args.blocks == BlockShape::kTiles ? n : 1;
  const Blocks blocks{.format = args.format,
                      .matrices = args.x.dim(0),
                      .rows = args.x.dim(1),
                      .cols = args.x.dim(2),
                      .width = n,
                      .height = height,
                      .num_rows = args.num_rows.defined() ? args.num_rows.data<int32_t>() : nullptr,
                      .amax = amax.defined() ? amax.data<float>() : nullptr};
  const int64_t count = blocks.matrices * ceil_div(blocks.rows, height) * ceil_div(blocks.cols, n);
  const int64_t grid = std::min<int64_t>(ceil_div<int64_t>(count, kWarps), int64_t{kBlocksPerSm} * ctx.num_sms);
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    measure_kernel<<<grid_size(grid), kThreads, 0, ctx.stream>>>(args.x.data<T>(), blocks, args.counts.data<double>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
