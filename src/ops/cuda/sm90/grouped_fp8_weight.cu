// Gradients of experts' weights from FP8 operands on Hopper: dw_e = or += dy_e^T x_e, both in blocks of 128 rows,
// transposed.
//
// A persistent, warp-specialised kernel as in grouped_fp8.cu: tiles of 256 x 128 of dw, the rows that are summed over
// in steps of a block. A consumer warpgroup has 128 of the tile's rows, as two products of 64 that share x. Here a
// scale belongs to a column of dy and one to a column of x, so that each sum has a factor of its own: the producer's
// warp leaves the block's 256 + 128 scales as numbers beside the stage, and consumers take them from there.
//
// A sum has one order: tensor cores add a block of 128 (wgmma_fp8.cuh says how), blocks are added in their order, and
// so are pieces of a group's rows (kPieceRows): a second launch adds those behind the first, by turns (turns.cuh).
//
// Bound by tensor cores, of which factors take a part: a consumer multiplies and adds 128 numbers a step and thread.
#include <algorithm>

#include "ops/cuda/plans/grouped_linear.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/grouped_fp8_weight.h"
#include "ops/cuda/sm90/sum_boxes.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma_fp8.cuh"
#include "ops/cuda/vendor/tensor_map.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kFp8));  // rows of a step
constexpr int kConsumers = 2, kProducts = 2;                               // consumers of a tile, and their products
constexpr int kProductRows = 64, kConsumerRows = kProducts * kProductRows;
constexpr int kTileRows = kConsumers * kConsumerRows, kTileCols = 128;
constexpr int kBoxRows = 128, kBoxBytes = kBoxRows * kBlock;  // of a load
constexpr int kBoxesDy = kTileRows / kBoxRows, kBoxes = kBoxesDy + 1;
constexpr int kProductBytes = kProductRows * kBlock;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
using Registers = WarpgroupRegisters<1, 56, kConsumers, 224>;
constexpr int kThreads = Registers::kThreads;
static_assert(kTileCols == kBoxRows && kConsumerRows == kBoxRows);
static_assert(kFp8GradientTile == GradientTile{kTileRows, kTileCols}, "scratch has turns for every tile");
static_assert(kPieceRows % kBlock == 0, "a piece begins where a block does");

struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int row, col;            // the first, of the group's dw
  int num_blocks;
  int group;       // negative: there are no more tiles
  PieceTurn turn;  // later pieces
};

using Pipeline = TmaPipeline<4, kBoxes * kBoxBytes, Tile>;
constexpr int kScales = kTileRows + kTileCols;  // of a stage, as numbers: dy's, then x's
constexpr int kStageBytes = Pipeline::kStages * Pipeline::kStageBytes;
constexpr int kScaleBytes = Pipeline::kStages * kScales * static_cast<int>(sizeof(float));
using Boxes = SumBoxes<1>;
constexpr int kBoxesBytes = kConsumerWarps * Boxes::kWarpBytes;  // behind the stages
constexpr int kSharedBytes = kStageBytes + kBoxesBytes + kScaleBytes + Pipeline::kBarrierBytes;
static_assert(kSharedBytes <= kMaxSharedBytes && (kStageBytes + kBoxesBytes + kScaleBytes) % alignof(Tile) == 0);

struct Product {
  CUtensorMap dy, x;  // [blocks * columns, 128]
  CUtensorMap sums;   // of dw
  const uint8_t* dy_scales;
  const uint8_t* x_scales;
  const int32_t* offsets;
  const int* order;  // of the groups
  int* tiles_taken;
  int num_groups, rows, cols;  // of a group's dw
  bool accumulate;
  double* squares;  // = [num_groups, square_parts]; null: not wanted
  const float* dw;
  int max_later_pieces;  // later pieces only, as are
  int32_t* turns;        // [tiles of a group, max_later_pieces]
};

template <bool kLaterPieces>
using Scheduler = std::conditional_t<kLaterPieces, LaterPieceScheduler<kTileRows, kTileCols>,
                                     DynamicTileScheduler<kTileRows, kTileCols>>;

template <bool kLaterPieces>
__device__ Scheduler<kLaterPieces> make_scheduler(const Product& p) {
  const GroupQueue queue{p.offsets, p.num_groups, p.order, p.tiles_taken, p.rows, p.cols};
  if constexpr (kLaterPieces) {
    return {queue, p.max_later_pieces};
  } else {
    return {queue, /*skip_empty=*/p.accumulate};
  }
}

// A lane's scales of a step: eight of dy's and four of x's.
struct LaneScales {
  uint2 dy;
  uint32_t x;

  // Those that do not exist are the least there is.
  __device__ LaneScales(const Product& p, const Tile& tile, int block) : dy{}, x(0) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int64_t row = tile.row + 8 * lane, col = tile.col + 4 * lane;
    if (row < p.rows) dy = *reinterpret_cast<const uint2*>(p.dy_scales + static_cast<int64_t>(block) * p.rows + row);
    if (col < p.cols) x = *reinterpret_cast<const uint32_t*>(p.x_scales + static_cast<int64_t>(block) * p.cols + col);
  }
  __device__ void store(float* scales) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    auto* const of_dy = reinterpret_cast<float4*>(scales) + 2 * lane;
    of_dy[0] = numbers(dy.x);
    of_dy[1] = numbers(dy.y);
    reinterpret_cast<float4*>(scales + kTileRows)[lane] = numbers(x);
  }

 private:
  __device__ static float4 numbers(uint32_t codes) {
    const auto number = [codes](int i) { return e8m0_to_float(static_cast<uint8_t>(codes >> (8 * i))); };
    return make_float4(number(0), number(1), number(2), number(3));
  }
};

// By one warp.
template <bool kLaterPieces>
__device__ void load_tiles(const Product& p, const Pipeline& pipeline, float* scales) {
  const bool elected = threadIdx.x == 0;
  Scheduler<kLaterPieces> scheduler = make_scheduler<kLaterPieces>(p);
  Pipeline::Position at;
  GroupTile next;
  while (scheduler.next(next)) {
    const Tile tile{.num_rows = p.rows - next.row,
                    .num_cols = p.cols - next.col,
                    .row = next.row,
                    .col = next.col,
                    .num_blocks = ceil_div(kLaterPieces ? next.group_rows : first_piece_rows(next.group_rows), kBlock),
                    .group = next.group,
                    .turn = next.turn};
    if (tile.num_blocks == 0) {  // a stage that is nothing but its header
      pipeline.acquire(at);
      if (elected) {
        pipeline.header(at) = tile;
        pipeline.commit_header(at);
      }
      at.advance();
      continue;
    }
    const int first = next.group_begin / kBlock + next.group, boxes = min(ceil_div(tile.num_rows, kBoxRows), kBoxesDy);
    LaneScales ahead(p, tile, first);
    for (int i = 0; i < tile.num_blocks; ++i) {
      const int block = first + i;
      pipeline.acquire(at);
      ahead.store(scales + at.stage * kScales);
      if (i + 1 < tile.num_blocks) ahead = LaneScales(p, tile, block + 1);
      __syncwarp();  // all scales are there before one lane says so
      if (elected) {
        if (i == 0) pipeline.header(at) = tile;
        pipeline.expect(at, (boxes + 1) * kBoxBytes);
        std::byte* const stage = pipeline.stage(at);
        for (int box = 0; box < boxes; ++box) {
          tma_load(p.dy, 0, block * p.rows + tile.row + box * kBoxRows, stage + box * kBoxBytes, pipeline.full(at));
        }
        tma_load(p.x, 0, block * p.cols + tile.col, stage + kBoxesDy * kBoxBytes, pipeline.full(at));
      }
      at.advance();
    }
  }
  pipeline.acquire(at);
  if (elected) {
    pipeline.header(at).group = -1;
    pipeline.commit_header(at);
  }
}

// total += sums, times the scales of their rows and columns. `rows`: of the thread's first row, with that of 8 below at
// [8]; `cols`: of its first two columns.
__device__ __forceinline__ void add_scaled(const float (&sums)[kTileCols / 2], const float* rows, const float* cols,
                                           float (&total)[kTileCols / 2]) {
  const float upper = rows[0], lower = rows[8];
#pragma unroll
  for (int j = 0; j < kTileCols / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(cols + 8 * j);
    total[4 * j] = fmaf(sums[4 * j], upper * pair.x, total[4 * j]);
    total[4 * j + 1] = fmaf(sums[4 * j + 1], upper * pair.y, total[4 * j + 1]);
    total[4 * j + 2] = fmaf(sums[4 * j + 2], lower * pair.x, total[4 * j + 2]);
    total[4 * j + 3] = fmaf(sums[4 * j + 3], lower * pair.y, total[4 * j + 3]);
  }
}

// total += the tile's products, of which the first kCount have rows; releases the tile's stages.
template <int kCount>
__device__ __forceinline__ void multiply_blocks(const Pipeline& pipeline, Pipeline::Position& at, int num_blocks,
                                                const float* scales, float (&total)[kProducts][kTileCols / 2]) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const float* const rows = scales + consumer * kConsumerRows + warp * kWarpRows + lane / 4;
  const float* const cols = scales + kTileRows + lane % 4 * 2;
  for (int block = 0; block < num_blocks; ++block) {
    pipeline.wait(at);
    const std::byte* const stage = pipeline.stage(at);
    const uint64_t x = wgmma_descriptor(stage + kBoxesDy * kBoxBytes);
#pragma unroll
    for (int product = 0; product < kCount; ++product) {
      const uint64_t dy = wgmma_descriptor(stage + (consumer * kProducts + product) * kProductBytes);
      float sums[kTileCols / 2];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kBlock / kFp8Depth; ++k) {
        wgmma_fp8_n128(sums, dy + k * kFp8DescriptorStep, x + k * kFp8DescriptorStep, k > 0);
      }
      wgmma_commit_group();
      wgmma_wait_group<0>();
      add_scaled(sums, rows + at.stage * kScales + product * kProductRows, cols + at.stage * kScales, total[product]);
    }
    __syncwarp();  // all lanes have read the scales
    if (lane == 0) pipeline.release(at.stage);
    at.advance();
  }
}

template <bool kLaterPieces>
__device__ void multiply_tiles(const Product& p, const Pipeline& pipeline, const float* scales, std::byte* staging) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp_row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * kWarpRows;
  const bool elected = threadIdx.x % kWarp == 0;
  const int any_warp = (static_cast<int>(threadIdx.x) - kWarpgroup) / kWarp;
  std::byte* const staged = staging + any_warp * Boxes::kWarpBytes;
  Pipeline::Position at;
  for (;;) {
    pipeline.wait(at);
    const Tile tile = pipeline.header(at);
    __syncwarp();  // all lanes have read it before one releases the stage
    if (tile.group < 0) break;
    const int num_rows = tile.num_rows - consumer * kConsumerRows;
    float total[kProducts][kTileCols / 2] = {};
    if (num_rows <= 0 || tile.num_blocks == 0) {
      for (int stage = 0; stage < max(tile.num_blocks, 1); ++stage) {
        pipeline.wait(at);
        if (elected) pipeline.release(at.stage);
        at.advance();
      }
    } else if (num_rows > kProductRows) {
      multiply_blocks<kProducts>(pipeline, at, tile.num_blocks, scales, total);
    } else {
      multiply_blocks<1>(pipeline, at, tile.num_blocks, scales, total);
    }
    const auto boxes_of = [&](int product) {
      const int row = warp_row + product * kProductRows;
      return Boxes{.map = &p.sums,
                   .col = tile.col,
                   .row = tile.row + consumer * kConsumerRows + row,
                   .group = tile.group,
                   .num_rows = num_rows - row,
                   .num_cols = tile.num_cols,
                   .staged = staged};
    };
    const auto store = [&]<bool kAccumulate>() {
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const Boxes boxes = boxes_of(product);
        if (!kLaterPieces && p.squares != nullptr) {
          boxes.store_squares<kTileCols>(total[product], p.squares, p.rows, p.cols);
        }
        boxes.store<kTileCols, kAccumulate>(total[product]);
      }
    };
    if constexpr (kLaterPieces) {
      if (elected) tile.turn.wait(p.turns, any_warp);
      store.template operator()<true>();
      if (elected) tile.turn.pass(p.turns, any_warp);
      __syncwarp();
      for (int product = 0; product < kProducts && p.squares != nullptr && tile.turn.is_last != 0; ++product) {
        boxes_of(product).store_squares_of<kTileCols>(p.dw, p.squares, p.rows, p.cols);
      }
    } else if (p.accumulate) {
      store.template operator()<true>();
    } else {
      store.template operator()<false>();
    }
  }
  Boxes::finish();
}

template <bool kLaterPieces>
__global__ void __launch_bounds__(kThreads, 1) grouped_fp8_weight_kernel(const __grid_constant__ Product p) {
  if constexpr (kLaterPieces) {
    if (!Scheduler<true>::has_work(p.offsets, p.order)) return;
  }
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + kStageBytes;
  auto* const scales = reinterpret_cast<float*>(staging + kBoxesBytes);
  const Pipeline pipeline(shared, staging + kBoxesBytes + kScaleBytes);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.dy);
    tma_prefetch_map(p.x);
    tma_prefetch_map(p.sums);
    pipeline.init(/*num_copiers=*/0, /*num_releases=*/kConsumerWarps);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x < kWarp) load_tiles<kLaterPieces>(p, pipeline, scales);
  } else {
    setmaxnreg_inc<Registers::kConsumer>();
    multiply_tiles<kLaterPieces>(p, pipeline, scales, staging);
  }
}

template <bool kLaterPieces>
void launch(Context& ctx, const Product& product, int64_t max_tiles) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_fp8_weight_kernel<kLaterPieces>, kSharedBytes);
  grouped_fp8_weight_kernel<kLaterPieces><<<blocks, kThreads, kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// The codes as rows of 128 bytes.
CUtensorMap columns_map(const ColumnCodes& columns) {
  return byte_map(columns.values.raw(), columns.values.dim(0) * columns.values.dim(1), kBlock, kBoxRows);
}

}  // namespace

void grouped_fp8_weight(Context& ctx, const GroupedFp8Weight& args) {
  const Tensor dw = args.dw, offsets = args.offsets;
  const int64_t E = dw.dim(0), out = dw.dim(1), in = dw.dim(2), blocks = args.num_rows / kBlock + E;
  NMOE_CHECK(out % 16 == 0 && in % 16 == 0 && dw.dtype() == DType::kF32 &&
                 args.dy.values.shape() == Shape({blocks, out, kBlock}) &&
                 args.x.values.shape() == Shape({blocks, in, kBlock}) &&
                 args.dy.scales.shape() == Shape({blocks, out}) && args.x.scales.shape() == Shape({blocks, in}) &&
                 offsets.shape() == Shape({E + 1}) && args.order.order.shape() == Shape({E}),
             "gradients {} of {} rows from FP8 columns {} and {}, offsets {}", dw.shape(), args.num_rows,
             args.dy.values.shape(), args.x.values.shape(), offsets.shape());
  NMOE_CHECK(blocks * std::max(out, in) <= INT32_MAX && aligned16(args.dy.values.raw()) &&
                 aligned16(args.x.values.raw()) && aligned16(args.dy.scales.raw()) && aligned16(args.x.scales.raw()) &&
                 aligned16(dw.raw()),
             "a gradient of {} blocks of {} and {} columns", blocks, out, in);
  const int64_t tiles = kFp8GradientTile.count(out, in), later_pieces = max_later_pieces(args.num_rows),
                num_counters = args.order.counters.num_elements();
  NMOE_CHECK(
      std::max(E, later_pieces) * tiles <= INT32_MAX / 4 && num_counters >= num_piece_counters(later_pieces, tiles),
      "a gradient of {} and {} times {} tiles, with {} counters", E, later_pieces, tiles, num_counters);
  if (dw.num_elements() == 0) return;
  order_longest_first(ctx, offsets, args.order);
  Product product{.dy = columns_map(args.dy),
                  .x = columns_map(args.x),
                  .sums = sum_map(dw.raw(), E, out, in, kSumBoxRows),
                  .dy_scales = args.dy.scales.data<uint8_t>(),
                  .x_scales = args.x.scales.data<uint8_t>(),
                  .offsets = offsets.data<int32_t>(),
                  .order = args.order.order.data<int32_t>(),
                  .tiles_taken = first_pieces_taken(args.order),
                  .num_groups = static_cast<int>(E),
                  .rows = static_cast<int>(out),
                  .cols = static_cast<int>(in),
                  .accumulate = args.accumulate,
                  .squares = args.squares.data_or_null<double>(),
                  .dw = dw.data<float>(),
                  .max_later_pieces = static_cast<int>(later_pieces),
                  .turns = nullptr};
  launch</*kLaterPieces=*/false>(ctx, product, E * tiles);
  if (later_pieces == 0) return;
  product.tiles_taken = later_pieces_taken(args.order);
  product.turns = later_pieces_turns(args.order);
  launch</*kLaterPieces=*/true>(ctx, product, later_pieces * tiles);
}

}  // namespace nmoe::cuda::sm90
