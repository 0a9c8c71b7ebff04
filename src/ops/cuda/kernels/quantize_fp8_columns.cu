// Rounds BF16 to FP8 in blocks of 128 x 1, transposed: what sums over rows takes. Memory-bound: two bytes are read for
// each that is written, or for two, where rows' own codes are made beside.
//
// A thread block has 128 x 128 values in registers, eight columns of eight rows a thread. Their codes are turned over
// in shared memory, and leave as 16 KiB that lie in one piece.
#include "base/kinds.h"
#include "ops/cuda/kernels/quantize_fp8.h"
#include "ops/cuda/kernels/quantize_fp8_columns.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/fp8_tile.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = CodeTile::kThreads, kBlock = CodeTile::kSize;
constexpr int kRowLanes = kBlock / 8;  // threads of a row, with 8 values each
constexpr int kRowsAtOnce = kThreads / kRowLanes, kSteps = kBlock / kRowsAtOnce;
static_assert(kBlock == block_size(OperandFormat::kFp8));
static_assert(kWarp == 2 * kRowLanes, "a warp has two rows at once");

// Where values come from: load(row, col) gives eight of a row.
struct PickedRows {
  const __nv_bfloat16* x;
  const int32_t* index;  // null: row r is x's
  int64_t width;

  __device__ uint4 load(int row, int64_t col) const {
    const int64_t source = index == nullptr ? row : index[row];
    return *reinterpret_cast<const uint4*>(x + source * width + col);
  }
};
// What an activation makes of rows of pre-activations, as ActivationForward (contracts/activation.h) says.
template <Activation kKind>
struct ActivatedRows {
  const __nv_bfloat16* pre;
  const float* weights;  // null: 1
  int64_t width;         // of a row of h

  __device__ uint4 load(int row, int64_t col) const {
    constexpr int kParts = kKind == Activation::kSwiGlu ? 2 : 1;
    const __nv_bfloat16* const source = pre + row * kParts * width + col;
    const float weight = weights != nullptr ? weights[row] : 1.0F;
    float gate[8];
    load8(source, gate);
    if constexpr (kKind == Activation::kSwiGlu) {
      float up[8];
      load8(source + width, up);
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[j] = swiglu<__nv_bfloat16>(gate[j], up[j]) * weight;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[j] = relu(gate[j]) * relu(gate[j]) * weight;
    }
    return pack8(gate);
  }
};

struct Columns {
  const int32_t* offsets;
  int num_groups;
  int64_t cols;
  uint8_t* values;
  uint8_t* scales;
};

// The rows of a block.
struct BlockRows {
  int first, count;
};

// By all threads. None: no group has that block.
__device__ BlockRows find_rows(const Columns& p, int block) {
  __shared__ BlockRows found;
  if (threadIdx.x == 0) found.count = 0;
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < p.num_groups; group += kThreads) {
    const int begin = p.offsets[group], rows = p.offsets[group + 1] - begin;
    const int before = (block - begin / kBlock - group) * kBlock;
    if (before >= 0 && before < rows) found = {begin + before, min(kBlock, rows - before)};
  }
  __syncthreads();
  return found;
}

__device__ uint32_t word_of(const uint4& vector, int i) {
  return i == 0 ? vector.x : (i == 1 ? vector.y : (i == 2 ? vector.z : vector.w));
}

// Grid (blocks of rows, tiles of columns).
template <class Source>
__global__ void __launch_bounds__(kThreads) columns_kernel(Source source, Columns p) {
  __shared__ CodeTile tile;
  __shared__ uint4 largest_of[kThreads / kWarp][kRowLanes];  // by warps, of eight columns each
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const BlockRows rows = find_rows(p, block);
  if (rows.count == 0) return;
  const int own_row = thread / kRowLanes, own_col = thread % kRowLanes * 8;
  const int64_t first_col = static_cast<int64_t>(blockIdx.y) * kBlock, col = first_col + own_col;
  const bool col_exists = col < p.cols;
  uint4 vectors[kSteps];
  uint4 largest{};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int row = own_row + i * kRowsAtOnce;
    vectors[i] = make_uint4(0, 0, 0, 0);
    if (row < rows.count && col_exists) vectors[i] = source.load(rows.first + row, col);
  }
  const auto take_larger = [](uint4& to, const uint4& from) {
    to = make_uint4(__vmaxu2(to.x, from.x), __vmaxu2(to.y, from.y), __vmaxu2(to.z, from.z), __vmaxu2(to.w, from.w));
  };
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    constexpr uint32_t kMagnitudes = 0x7FFF7FFFU;
    const uint4 v = vectors[i];
    take_larger(largest, make_uint4(v.x & kMagnitudes, v.y & kMagnitudes, v.z & kMagnitudes, v.w & kMagnitudes));
  }
  const auto of_other_row = [](uint32_t bits) { return __shfl_xor_sync(kAllLanes, bits, kRowLanes); };
  take_larger(largest, make_uint4(of_other_row(largest.x), of_other_row(largest.y), of_other_row(largest.z),
                                  of_other_row(largest.w)));
  if (thread % kWarp < kRowLanes) largest_of[thread / kWarp][thread % kRowLanes] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) take_larger(largest, largest_of[warp][thread % kRowLanes]);
  float factors[8];
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = word_of(largest, i / 2);
    const uint8_t code = e8m0_scale(amax_of_bits(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U));
    factors[i] = e8m0_to_inverse(code);
    codes[i / 4] |= static_cast<uint32_t>(code) << (i % 4 * 8);
  }
  if (own_row == 0 && col_exists) {
    *reinterpret_cast<uint2*>(p.scales + block * p.cols + col) = make_uint2(codes[0], codes[1]);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = word_of(vectors[i], j);
      values[2 * j] = __uint_as_float(pair << 16) * factors[2 * j];
      values[2 * j + 1] = __uint_as_float(pair & 0xFFFF0000U) * factors[2 * j + 1];
    }
    tile.store(own_row + i * kRowsAtOnce, own_col,
               make_uint2(e4m3_four(values[0], values[1], values[2], values[3]),
                          e4m3_four(values[4], values[5], values[6], values[7])));
  }
  __syncthreads();
  uint8_t* const target = p.values + (block * p.cols + first_col) * kBlock;
  const int cols = static_cast<int>(min(int64_t{kBlock}, p.cols - first_col));
  tile.read_columns([&](int column, int first_row, const uint4& sixteen) {
    if (column < cols) *reinterpret_cast<uint4*>(target + column * kBlock + first_row) = sixteen;
  });
}

void check_columns(const ColumnCodes& columns, int64_t num_rows, int64_t width, int64_t num_groups) {
  const int64_t blocks = num_rows / kBlock + num_groups;
  NMOE_CHECK(columns.values.shape() == Shape({blocks, width, kBlock}) &&
                 columns.scales.shape() == Shape({blocks, width}) && width % 16 == 0 &&
                 num_rows <= INT32_MAX - kBlock && blocks <= INT32_MAX && aligned16(columns.values.raw()) &&
                 aligned16(columns.scales.raw()),
             "FP8 columns {} and scales {} of {} rows of {} in {} groups", columns.values.shape(),
             columns.scales.shape(), num_rows, width, num_groups);
}

template <class Source>
void launch(Context& ctx, const Source& source, Tensor offsets, const ColumnCodes& columns) {
  const int64_t cols = columns.values.dim(1);
  const Columns args{.offsets = offsets.data<int32_t>(),
                     .num_groups = static_cast<int>(offsets.dim(0)) - 1,
                     .cols = cols,
                     .values = columns.values.data<uint8_t>(),
                     .scales = columns.scales.data<uint8_t>()};
  const dim3 grid(grid_size(columns.values.dim(0)), short_grid_size(ceil_div<int64_t>(cols, kBlock)));
  columns_kernel<<<grid, kThreads, 0, ctx.stream>>>(source, args);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void quantize_fp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, const ColumnCodes& columns) {
  const int64_t R = x.num_rows(), C = x.width();
  check_columns(columns, R, C, offsets.dim(0) - 1);
  NMOE_CHECK(takes_fp8(x.source, columns.values), "FP8 columns of {} {}", dtype_name(x.source.dtype()),
             x.source.shape());
  if (ctx.counting() || R * C == 0) return;
  const PickedRows source{
      .x = x.source.data<__nv_bfloat16>(), .index = x.index.defined() ? x.index.data<int32_t>() : nullptr, .width = C};
  launch(ctx, source, offsets, columns);
}

void activation_fp8_columns(Context& ctx, const ActivationForward& args) {
  const Tensor pre = args.pre, row_weight = args.row_weight;
  const int64_t R = pre.dim(0), width = args.h_columns.values.dim(1);
  const bool is_swiglu = args.kind == Activation::kSwiGlu;
  check_columns(args.h_columns, R, width, args.offsets.dim(0) - 1);
  NMOE_CHECK(pre.dim(1) == (is_swiglu ? 2 : 1) * width && pre.dtype() == DType::kBF16 && aligned16(pre.raw()) &&
                 (!row_weight.defined() || row_weight.dim(0) == R) && !args.h_codes.defined(),
             "FP8 columns {} of an activation of {} {} with weights {}", args.h_columns.values.shape(),
             dtype_name(pre.dtype()), pre.shape(), row_weight.shape());
  if (ctx.counting() || R * width == 0) return;
  const auto run = [&]<Activation kKind>() {
    const ActivatedRows<kKind> source{.pre = pre.data<__nv_bfloat16>(),
                                      .weights = row_weight.defined() ? row_weight.data<float>() : nullptr,
                                      .width = width};
    launch(ctx, source, args.offsets, args.h_columns);
  };
  if (is_swiglu) {
    run.template operator()<Activation::kSwiGlu>();
  } else {
    run.template operator()<Activation::kReluSquared>();
  }
}

}  // namespace nmoe::cuda
