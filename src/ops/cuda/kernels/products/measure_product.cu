// How much of a sample of a product's outputs rounding loses (contracts/measure_product.h): the arithmetic of
// tensor/block_rounding.h, which the CPU runs too, in fp64 from there on.
//
// A thread block has one of the tiles of outputs, and goes through what is summed over in chunks of 128, which are
// whole blocks of every format: largest magnitudes, then values as they are and rounded in shared memory, then
// products.
#include "ops/cuda/kernels/low_precision/expert_amax.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/block_rounding.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = static_cast<int>(kSampledRun);
constexpr int kChunk = static_cast<int>(block_size(OperandFormat::kFp8));  // of what is summed over
constexpr int kMostBlocks = kChunk / static_cast<int>(block_size(OperandFormat::kNvFp4));
constexpr int kThreadsPerOutput = kThreads / (kRun * kRun);
static_assert(kThreads == kRun * kWarp && kThreads % (kRun * kRun) == 0, "a warp rounds a row");

struct Product {
  OperandFormat format;
  int width;                                 // of a block
  const int32_t* index;                      // null: row r is x's
  const int32_t* offsets;                    // null: one matrix, all rows
  const float *x_amax, *w_amax;              // NVFP4
  int64_t num_rows;                          // without offsets
  int64_t depth, cols;                       // of what is summed over, of outputs
  int64_t matrix, col_stride, depth_stride;  // of w, in elements
};

// Values of a run's rows, or columns, in a chunk.
struct Chunk {
  double exact[kRun][kChunk], rounded[kRun][kChunk];
};

template <class T>
__global__ void __launch_bounds__(kThreads) product_kernel(const T* x, const T* w, Product p, double* sums) {
  __shared__ Chunk xs;
  __shared__ double ws[2][kRun][kChunk + 1];       // as they are, rounded
  __shared__ unsigned largest[kRun][kMostBlocks];  // of w's blocks: of tiles in the first row
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t expert = blockIdx.z;
  const int64_t first = p.offsets == nullptr ? 0 : p.offsets[expert],
                last = p.offsets == nullptr ? p.num_rows : p.offsets[expert + 1];
  if (last <= first) return;
  const int64_t row = first + sampled_row(blockIdx.x, last - first),
                col = sampled_col((blockIdx.x + blockIdx.y) % kSampledRuns, p.cols);
  const int rows = static_cast<int>(min(int64_t{kRun}, last - row)),
            cols = static_cast<int>(min(int64_t{kRun}, p.cols - col));
  const T* const matrix = w + expert * p.matrix;
  const float x_amax = p.x_amax == nullptr ? 0.0F : amax_of_bits(magnitude_bits(p.x_amax[expert])),
              w_amax = p.w_amax == nullptr ? 0.0F : amax_of_bits(magnitude_bits(p.w_amax[expert]));
  const int width = p.width;
  const bool tiles = p.format != OperandFormat::kMxFp8;
  // The rows of w's blocks here: those of a tile, or the run's own.
  const int64_t first_col = tiles ? col / width * width : col;
  const int block_cols = static_cast<int>(min(static_cast<int64_t>(tiles ? width : cols), p.cols - first_col));
  const T* const source = warp < rows ? x + (p.index == nullptr ? row + warp : p.index[row + warp]) * p.depth : nullptr;

  const int output = thread / kThreadsPerOutput, part = thread % kThreadsPerOutput;
  double exact = 0.0, rounded = 0.0;
  for (int64_t begin = 0; begin < p.depth; begin += kChunk) {
    const int depth = static_cast<int>(min(int64_t{kChunk}, p.depth - begin));
    __syncthreads();  // the products of the chunk before
    if (thread < kRun * kMostBlocks) largest[thread / kMostBlocks][thread % kMostBlocks] = 0;

    // A warp has a row of x: four neighbours a lane, blocks are neighbouring lanes.
    float own[4];
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = lane * 4 + j;
      own[j] = source != nullptr && k < depth ? to_float(source[begin + k]) : 0.0F;
      bits = max(bits, magnitude_bits(own[j]));
    }
    for (int offset = width / 8; offset > 0; offset /= 2) bits = max(bits, __shfl_xor_sync(kAllLanes, bits, offset));
    const auto of_row = BlockRounding::of(p.format, amax_of_bits(bits), x_amax);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      xs.exact[warp][lane * 4 + j] = own[j];
      xs.rounded[warp][lane * 4 + j] = of_row.rounded(own[j]);
    }
    __syncthreads();

    // What lies one behind the other is on neighbouring threads.
    const bool deep = p.depth_stride == 1, one_block = tiles && width == kChunk;
    bits = 0;
    for (int i = thread; i < block_cols * kChunk; i += kThreads) {
      const int j = deep ? i / kChunk : i % block_cols, k = deep ? i % kChunk : i / block_cols;
      if (k >= depth) continue;
      const T value = matrix[(first_col + j) * p.col_stride + (begin + k) * p.depth_stride];
      if (one_block) {
        bits = max(bits, magnitude_bits(to_float(value)));
      } else {
        atomicMax(&largest[tiles ? 0 : j][k / width], magnitude_bits(to_float(value)));
      }
    }
    if (one_block) {
      bits = __reduce_max_sync(kAllLanes, bits);
      if (lane == 0) atomicMax(&largest[0][0], bits);
    }
    __syncthreads();
    for (int i = thread; i < kRun * kChunk; i += kThreads) {
      const int j = deep ? i / kChunk : i % kRun, k = deep ? i % kChunk : i / kRun;
      float value = 0.0F;
      if (j < cols && k < depth) {
        value = to_float(matrix[(col + j) * p.col_stride + (begin + k) * p.depth_stride]);
      }
      const auto rounding = BlockRounding::of(p.format, amax_of_bits(largest[tiles ? 0 : j][k / width]), w_amax);
      ws[0][j][k] = value;
      ws[1][j][k] = value == 0.0F ? 0.0 : static_cast<double>(rounding.rounded(value));
    }
    __syncthreads();
    const int i = output / kRun, j = output % kRun;
    for (int k = part; k < kChunk; k += kThreadsPerOutput) {
      exact += xs.exact[i][k] * ws[0][j][k];
      rounded += xs.rounded[i][k] * ws[1][j][k];
    }
  }
#pragma unroll
  for (int offset = kThreadsPerOutput / 2; offset > 0; offset /= 2) {
    exact += __shfl_xor_sync(kAllLanes, exact, offset);
    rounded += __shfl_xor_sync(kAllLanes, rounded, offset);
  }
  const double error = rounded - exact;
  const bool counts = part == 0;
  const double values = block_sum(counts && exact != 0.0 ? 1.0 : 0.0);
  const double signal = block_sum(counts ? exact * exact : 0.0), noise = block_sum(counts ? error * error : 0.0);
  if (thread != 0 || !(signal > 0.0)) return;
  atomicAdd(sums, values);
  atomicAdd(sums + 3, 1.0);
  atomicAdd(sums + 4, rint(fmin(1.0, noise / signal) / kLostUnit));
}

}  // namespace

void measure_product(Context& ctx, const MeasureProduct& args, const ProductMagnitudes& amax) {
  const Tensor &x = args.x.source, &w = args.w;
  const int64_t E = w.dim(0), out = w.dim(1), in = w.dim(2);
  if (args.x.num_rows() == 0 || w.num_elements() == 0) return;
  if (amax.x.defined()) {
    if (args.offsets.defined()) {
      expert_abs_max(ctx, args.x, args.offsets, amax.x);
    } else {
      abs_max(ctx, {.x = x.reshape({1, x.dim(0), x.dim(1)}), .amax = amax.x});
    }
    abs_max(ctx, {.x = w, .amax = amax.w});
  }
  const Product product{.format = args.format,
                        .width = static_cast<int>(block_size(args.format)),
                        .index = args.x.index.data_or_null<int32_t>(),
                        .offsets = args.offsets.data_or_null<int32_t>(),
                        .x_amax = amax.x.data_or_null<float>(),
                        .w_amax = amax.w.data_or_null<float>(),
                        .num_rows = args.x.num_rows(),
                        .depth = args.x.width(),
                        .cols = args.over_out ? in : out,
                        .matrix = out * in,
                        .col_stride = args.over_out ? 1 : in,
                        .depth_stride = args.over_out ? in : 1};
  const dim3 grid(static_cast<unsigned>(kSampledRuns), short_grid_size(sampled_runs_of_columns(args.offsets.defined())),
                  short_grid_size(E));
  dispatch_act(w.dtype(), [&](auto element) {
    using T = decltype(element);
    product_kernel<<<grid, kThreads, 0, ctx.stream>>>(x.data<T>(), w.data<T>(), product, args.counts.data<double>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
