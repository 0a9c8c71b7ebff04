// Rounds BF16 to FP8: rows in blocks of 1 x 128, tiles of 128 x 128. Memory-bound: two bytes are read for each that is
// written.
//
// Rows: eight lanes have a block, 16 values each. Tiles: a thread block has one in registers; what is written
// transposed goes through shared memory.
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/fp8_tile.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kFp8));
constexpr int kPerLane = 16, kBlockLanes = kBlock / kPerLane;
constexpr int kBlocksOfRows = kThreads / kBlockLanes;  // that a thread block has
constexpr int kTileVectors = kBlock / 8;               // across a tile, of 8 values
constexpr int kTileRowsAtOnce = kThreads / kTileVectors;
constexpr int kTileSteps = kBlock / kTileRowsAtOnce;
constexpr int kStripVectors = 4;  // that a lane has of a strip of codes, of kPerLane codes each
constexpr int kStripBlocks = kStripVectors * kWarp * kPerLane / kBlock;
static_assert(kStripBlocks <= kWarp, "a lane has a scale");
static_assert(kThreads == CodeTile::kThreads && kBlock == CodeTile::kSize);

struct Rows {
  const __nv_bfloat16* x;
  const int32_t* index;             // null: row r is x's
  const int32_t* num_rows;          // null: capacity
  unsigned capacity, cols, across;  // across: blocks of a row
  uint8_t* values;
  uint8_t* scales;
};

__global__ void __launch_bounds__(kThreads) rows_kernel(Rows p) {
  const unsigned number = blockIdx.x * kBlocksOfRows + threadIdx.x / kBlockLanes;  // of the block
  const unsigned row = number / p.across, lane = threadIdx.x % kBlockLanes;
  const unsigned col = (number - row * p.across) * kBlock + lane * kPerLane;
  const unsigned there = p.num_rows == nullptr ? p.capacity : min(static_cast<unsigned>(*p.num_rows), p.capacity);
  const bool is_there = row < there && col < p.cols;
  uint4 first{}, second{};
  if (is_there) {
    const int64_t source = p.index == nullptr ? row : p.index[row];
    const auto* const vectors = reinterpret_cast<const uint4*>(p.x + source * p.cols + col);
    first = vectors[0], second = vectors[1];
  }
  uint32_t largest = larger_magnitudes(larger_magnitudes(0, first), second);
#pragma unroll
  for (int offset = kBlockLanes / 2; offset > 0; offset /= 2) {
    largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  if (!is_there) return;
  const uint8_t scale = e8m0_scale(amax_of_bits(larger_magnitude(largest)));
  const float factor = e8m0_to_inverse(scale);
  if (lane == 0) p.scales[number] = scale;
  const uint2 low = e4m3_eight(first, factor), high = e4m3_eight(second, factor);
  *reinterpret_cast<uint4*>(p.values + static_cast<int64_t>(row) * p.cols + col) =
      make_uint4(low.x, low.y, high.x, high.y);
}

struct SpreadCodes {
  const uint8_t* values;  // [N, 16 * vectors]
  const uint8_t* scales;  // [N, across]
  const int32_t* row_of;  // [N, copies]
  int64_t num_rows;       // N
  int copies, vectors, across;
  uint8_t* to_values;
  uint8_t* to_scales;
};

// A warp has a strip of a row: it reads it once, and writes it to each of the row's copies. Grid (rows, strips).
__global__ void __launch_bounds__(kThreads) spread_codes_kernel(SpreadCodes p) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (row >= p.num_rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, strip = static_cast<int>(blockIdx.y);
  const int first = strip * kStripVectors * kWarp + lane, block = strip * kStripBlocks + lane;
  const bool has_scale = lane < kStripBlocks && block < p.across;
  const auto* const from = reinterpret_cast<const uint4*>(p.values) + row * p.vectors;
  uint4 vectors[kStripVectors];
#pragma unroll
  for (int i = 0; i < kStripVectors; ++i) {
    if (first + i * kWarp < p.vectors) vectors[i] = __ldcs(from + first + i * kWarp);
  }
  const uint8_t scale = has_scale ? p.scales[row * p.across + block] : uint8_t{0};
  int rows = -1;  // of kWarp copies, one a lane
  for (int copy = 0; copy < p.copies; ++copy) {
    if (copy % kWarp == 0) rows = copy + lane < p.copies ? p.row_of[row * p.copies + copy + lane] : -1;
    const int64_t to_row = __shfl_sync(kAllLanes, rows, copy % kWarp);
    if (to_row < 0) continue;
    auto* const to = reinterpret_cast<uint4*>(p.to_values) + to_row * p.vectors;
#pragma unroll
    for (int i = 0; i < kStripVectors; ++i) {
      if (first + i * kWarp < p.vectors) __stcs(to + first + i * kWarp, vectors[i]);
    }
    if (has_scale) p.to_scales[to_row * p.across + block] = scale;
  }
}

struct Tiles {
  const __nv_bfloat16* x;
  int64_t rows, cols;  // of a matrix
  uint8_t* values;
  uint8_t* scales;
  uint8_t* transposed_values;  // null: not wanted
  uint8_t* transposed_scales;
};

// A block has a tile; they go across, then down, so that those which run at a time have whole rows.
__global__ void __launch_bounds__(kThreads) tiles_kernel(Tiles p) {
  __shared__ unsigned largest;
  __shared__ CodeTile tile;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const auto down = static_cast<unsigned>(ceil_div(p.rows, int64_t{kBlock})),
             across = static_cast<unsigned>(ceil_div(p.cols, int64_t{kBlock}));
  const unsigned of_all = blockIdx.x / across;
  const int64_t matrix = of_all / down, down_idx = of_all % down, across_idx = blockIdx.x % across;
  const int64_t row = down_idx * kBlock, col = across_idx * kBlock;
  const int rows = static_cast<int>(min(int64_t{kBlock}, p.rows - row)),
            cols = static_cast<int>(min(int64_t{kBlock}, p.cols - col));
  const int thread = static_cast<int>(threadIdx.x);
  const int own_row = thread / kTileVectors, own_col = thread % kTileVectors * 8;
  const int64_t origin = (matrix * p.rows + row) * p.cols + col;
  uint4 vectors[kTileSteps];
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kTileSteps; ++i) {
    const int at = own_row + i * kTileRowsAtOnce;
    vectors[i] = make_uint4(0, 0, 0, 0);
    if (at < rows && own_col < cols) {
      vectors[i] = *reinterpret_cast<const uint4*>(p.x + origin + at * p.cols + own_col);
    }
    bits = larger_magnitudes(bits, vectors[i]);
  }
  const unsigned in_warp = __reduce_max_sync(kAllLanes, larger_magnitude(bits));
  if (thread % kWarp == 0) atomicMax(&largest, in_warp);
  __syncthreads();
  const uint8_t scale = e8m0_scale(amax_of_bits(largest));
  const float factor = e8m0_to_inverse(scale);
  const bool transposes = p.transposed_values != nullptr;
  if (thread == 0) {
    p.scales[blockIdx.x] = scale;
    if (transposes) p.transposed_scales[(matrix * across + across_idx) * down + down_idx] = scale;
  }
#pragma unroll
  for (int i = 0; i < kTileSteps; ++i) {
    const int at = own_row + i * kTileRowsAtOnce;
    if (at >= rows || own_col >= cols) continue;
    const uint2 codes = e4m3_eight(vectors[i], factor);
    *reinterpret_cast<uint2*>(p.values + origin + at * p.cols + own_col) = codes;
    tile.store(at, own_col, codes);
  }
  if (!transposes) return;
  __syncthreads();
  uint8_t* const target = p.transposed_values + (matrix * p.cols + col) * p.rows + row;
  tile.read_columns([&](int column, int first_row, const uint4& codes) {
    if (column < cols && first_row < rows) *reinterpret_cast<uint4*>(target + column * p.rows + first_row) = codes;
  });
}

}  // namespace

bool takes_fp8(Tensor x, Tensor values) {
  return x.dtype() == DType::kBF16 && x.dim(-1) % kPerLane == 0 && aligned16(x.raw()) && aligned16(values.raw());
}

void quantize_fp8_rows(Context& ctx, const OperandRows& x, Tensor num_rows, const RowCodes& codes) {
  const int64_t R = x.num_rows(), C = x.width(), across = ceil_div<int64_t>(C, kBlock);
  NMOE_CHECK(takes_fp8(x.source, codes.values) && codes.values.shape() == Shape({R, C}) &&
                 codes.scales.shape() == Shape({R, across}) && R * across <= INT32_MAX,
             "FP8 codes {} and scales {} of {} rows of {} {}", codes.values.shape(), codes.scales.shape(), R,
             dtype_name(x.source.dtype()), x.source.shape());
  if (R * C == 0) return;
  const Rows rows{.x = x.source.data<__nv_bfloat16>(),
                  .index = x.index.data_or_null<int32_t>(),
                  .num_rows = num_rows.data_or_null<int32_t>(),
                  .capacity = static_cast<unsigned>(R),
                  .cols = static_cast<unsigned>(C),
                  .across = static_cast<unsigned>(across),
                  .values = codes.values.data<uint8_t>(),
                  .scales = codes.scales.data<uint8_t>()};
  rows_kernel<<<grid_size(ceil_div<int64_t>(R * across, kBlocksOfRows)), kThreads, 0, ctx.stream>>>(rows);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void quantize_fp8_tiles(Context& ctx, const Quantize& args) {
  const int64_t G = args.x.dim(0), N = args.x.dim(1), C = args.x.dim(2);
  const bool transposes = args.transposed_values.defined();
  NMOE_CHECK(
      takes_fp8(args.x, args.values) && (!transposes || (N % kPerLane == 0 && aligned16(args.transposed_values.raw()))),
      "FP8 codes of {} {}", dtype_name(args.x.dtype()), args.x.shape());
  if (G * N * C == 0) return;
  const Tiles tiles{.x = args.x.data<__nv_bfloat16>(),
                    .rows = N,
                    .cols = C,
                    .values = args.values.data<uint8_t>(),
                    .scales = args.scales.data<uint8_t>(),
                    .transposed_values = transposes ? args.transposed_values.data<uint8_t>() : nullptr,
                    .transposed_scales = transposes ? args.transposed_scales.data<uint8_t>() : nullptr};
  const unsigned num_tiles = grid_size(G * ceil_div<int64_t>(N, kBlock) * ceil_div<int64_t>(C, kBlock));
  tiles_kernel<<<num_tiles, kThreads, 0, ctx.stream>>>(tiles);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

namespace {

// room's row row_of[n, k] = the codes of row n, of all that there are.
void spread_codes(Context& ctx, const RowCodes& codes, Tensor row_of, const RowCodes& room) {
  const int64_t N = codes.values.dim(0), C = codes.values.dim(1), across = codes.scales.dim(1), R = room.values.dim(0);
  NMOE_CHECK(room.values.shape() == Shape({R, C}) && room.scales.shape() == Shape({R, across}) &&
                 row_of.shape().rank() == 2 && row_of.dim(1) <= INT32_MAX && C % kPerLane == 0 &&
                 aligned16(codes.values.raw()) && aligned16(room.values.raw()),
             "codes {} and scales {} into {} and {} by row_of {}", codes.values.shape(), codes.scales.shape(),
             room.values.shape(), room.scales.shape(), row_of.shape());
  if (N * C == 0) return;
  const dim3 grid(grid_size(ceil_div<int64_t>(N, kThreads / kWarp)),
                  short_grid_size(ceil_div<int64_t>(across, kStripBlocks)));
  spread_codes_kernel<<<grid, kThreads, 0, ctx.stream>>>({.values = codes.values.data<uint8_t>(),
                                                          .scales = codes.scales.data<uint8_t>(),
                                                          .row_of = row_of.data<int32_t>(),
                                                          .num_rows = N,
                                                          .copies = static_cast<int>(row_of.dim(1)),
                                                          .vectors = static_cast<int>(C / kPerLane),
                                                          .across = static_cast<int>(across),
                                                          .to_values = room.values.data<uint8_t>(),
                                                          .to_scales = room.scales.data<uint8_t>()});
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

RowCodes product_codes(Context& ctx, const OperandRounding& rounding, const OperandRows& x, Tensor num_rows,
                       const RowCodes& room) {
  if (!rounding.rows.defined()) {
    quantize_fp8_rows(ctx, x, num_rows, room);
    return room;
  }
  if (!x.index.defined()) return rounding.rows;
  spread_codes(ctx, rounding.rows, x.row_of, room);
  return room;
}

}  // namespace nmoe::cuda
