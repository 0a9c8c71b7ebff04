// Grouped products of FP8 operands on Hopper: y_e = x_e w_e^T, with scales of 1 x 128 and 128 x 128.
//
// A persistent, warp-specialised kernel as in grouped_linear.cu: one block a multiprocessor, tiles of 256 x 128 of C,
// k in steps of 128 bytes, of which a stage has one. A consumer warpgroup has 128 rows, as two products of 64 x 128
// that share one set of sums: it multiplies 64 rows, adds their sums times both scales to what it keeps in fp32, and
// goes on with the other 64 while the other consumer has the tensor cores. Scales of rows are asked for a step ahead.
//
// A sum has one order: tensor cores add a block of 128 (wgmma_fp8.cuh says how), blocks are added in the order of k.
//
// Bound by tensor cores: a step moves 48 KiB from L2 for 8.4 MFLOP.
#include <algorithm>

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma_fp8.cuh"
#include "ops/cuda/vendor/tensor_map.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kTileRows = 256, kTileCols = 128, kBlockK = 128;
constexpr int kConsumers = 2, kHalves = 2;  // consumers of a tile, and products of 64 rows of a consumer
constexpr int kProductRows = 64;
constexpr int kConsumerRows = kHalves * kProductRows;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
constexpr int kBoxRows = 128;  // of a load
constexpr int kBoxBytes = kBoxRows * kBlockK;
constexpr int kBoxesA = kTileRows / kBoxRows;
constexpr int kProductBytes = kProductRows * kBlockK;
using Registers = WarpgroupRegisters<1, 40, kConsumers, 232>;
constexpr int kThreads = Registers::kThreads;
static_assert(kTileCols == kBoxRows && kTileRows == kConsumers * kConsumerRows);
static_assert(kBlockK == 128, "a row of shared memory is 128 bytes, and a scale's block");

struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int row, col;            // the first in x and y, and of the expert's C
  int group;               // negative: there are no more tiles
};

using Pipeline = TmaPipeline<4, (kBoxesA + 1) * kBoxBytes, Tile>;
using Staged = StagedRows<kTileCols>;
constexpr int kStageBytes = Pipeline::kStages * Pipeline::kStageBytes;
constexpr int kStagedBytes = kConsumerWarps * Staged::kWarpBytes;
constexpr int kSharedBytes = kStageBytes + kStagedBytes + Pipeline::kBarrierBytes;
static_assert(kSharedBytes <= kMaxSharedBytes && (kStageBytes + kStagedBytes) % alignof(Tile) == 0);

struct Product {
  CUtensorMap x, w;
  const uint8_t* x_scales;
  const uint8_t* w_scales;
  const int32_t* offsets;
  __nv_bfloat16* y;
  int num_experts, width;
  int k_blocks, col_blocks;  // of 128
};

__device__ void load_tiles(const Product& p, const Pipeline& pipeline) {
  const bool elected = threadIdx.x == 0;
  StaticTileScheduler<kTileRows, kTileCols> scheduler(p.offsets, p.num_experts, p.width);
  Pipeline::Position at;
  GroupTile next;
  while (scheduler.next(next)) {
    const Tile tile{next.group_rows - next.row, p.width - next.col, next.group_begin + next.row, next.col, next.group};
    const int boxes = min(ceil_div(tile.num_rows, kBoxRows), kBoxesA);
    for (int block = 0; block < p.k_blocks; ++block) {
      if (elected) {
        pipeline.acquire(at);
        if (block == 0) pipeline.header(at) = tile;
        pipeline.expect(at, (boxes + 1) * kBoxBytes);
        std::byte* const stage = pipeline.stage(at);
        for (int i = 0; i < boxes; ++i) {
          tma_load(p.x, block * kBlockK, tile.row + i * kBoxRows, stage + i * kBoxBytes, pipeline.full(at));
        }
        tma_load(p.w, block * kBlockK, tile.group * p.width + tile.col, stage + kBoxesA * kBoxBytes, pipeline.full(at));
      }
      at.advance();
    }
  }
  if (elected) {
    pipeline.acquire(at);
    pipeline.header(at).group = -1;
    pipeline.commit_header(at);
  }
}

// The scales of a thread's four rows at one block of k: of each product's upper and lower.
struct RowScales {
  uint8_t codes[kHalves][2];
};

// rows: of the consumer that exist; `scales` begins with its first row's.
__device__ RowScales load_scales(const uint8_t* scales, int rows, int k_blocks, int block) {
  const int first =
      static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * kWarpRows + static_cast<int>(threadIdx.x) % kWarp / 4;
  RowScales loaded;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int row = half * kProductRows + first + 8 * lower;
      loaded.codes[half][lower] = row < rows ? scales[static_cast<int64_t>(row) * k_blocks + block] : 0;
    }
  }
  return loaded;
}

__device__ void multiply_tiles(const Product& p, const Pipeline& pipeline, std::byte* staging) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  std::byte* const staged = staging + (consumer * (kWarpgroup / kWarp) + warp) * Staged::kWarpBytes;
  const bool elected = threadIdx.x % kWarp == 0;
  Pipeline::Position at;
  for (;;) {
    pipeline.wait(at);
    const Tile tile = pipeline.header(at);
    __syncwarp();  // all lanes have read it before one releases the stage
    if (tile.group < 0) break;
    const int num_rows = tile.num_rows - consumer * kConsumerRows;
    const int64_t first_row = static_cast<int64_t>(tile.row) + consumer * kConsumerRows;
    const uint8_t* const x_scales = p.x_scales + first_row * p.k_blocks;
    const uint8_t* const w_scales =
        p.w_scales + (static_cast<int64_t>(tile.group) * p.col_blocks + tile.col / kTileCols) * p.k_blocks;
    float total[kHalves][kTileCols / 2] = {};
    RowScales rows = load_scales(x_scales, num_rows, p.k_blocks, 0);
    uint8_t w_code = w_scales[0];
    for (int block = 0; block < p.k_blocks; ++block) {
      pipeline.wait(at);
      const RowScales rows_now = rows;
      const float w_scale = e8m0_to_float(w_code);
      if (block + 1 < p.k_blocks) {
        rows = load_scales(x_scales, num_rows, p.k_blocks, block + 1);
        w_code = w_scales[block + 1];
      }
      const std::byte* const stage = pipeline.stage(at);
      const uint64_t w = wgmma_descriptor(stage + kBoxesA * kBoxBytes);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (half * kProductRows >= num_rows) continue;  // the whole warpgroup
        const uint64_t x = wgmma_descriptor(stage + (consumer * kHalves + half) * kProductBytes);
        float sums[kTileCols / 2];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kBlockK / kFp8Depth; ++k) {
          wgmma_fp8_n128(sums, x + k * kFp8DescriptorStep, w + k * kFp8DescriptorStep, k > 0);
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();
        const float upper = e8m0_to_float(rows_now.codes[half][0]) * w_scale,
                    lower = e8m0_to_float(rows_now.codes[half][1]) * w_scale;
#pragma unroll
        for (int i = 0; i < kTileCols / 2; ++i) {
          total[half][i] = fmaf(sums[i], i % 4 < 2 ? upper : lower, total[half][i]);
        }
      }
      if (elected) pipeline.release(at.stage);
      at.advance();
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int warp_row = half * kProductRows + warp * kWarpRows;
      store_rows<kTileCols>(total[half], num_rows - warp_row, tile.num_cols,
                            p.y + (first_row + warp_row) * p.width + tile.col, p.width, staged);
    }
  }
  tma_wait_group_read<0>();
}

__global__ void __launch_bounds__(kThreads, 1) grouped_fp8_kernel(const __grid_constant__ Product p) {
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + kStageBytes;
  const Pipeline pipeline(shared, staging + kStagedBytes);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.x);
    tma_prefetch_map(p.w);
    pipeline.init(/*num_copiers=*/0, /*num_releases=*/kConsumerWarps);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x < kWarp) load_tiles(p, pipeline);
  } else {
    setmaxnreg_inc<Registers::kConsumer>();
    multiply_tiles(p, pipeline, staging);
  }
}

}  // namespace

void grouped_fp8(Context& ctx, const GroupedFp8& args) {
  const int64_t R = args.x.dim(0), K = args.x.dim(1), E = args.w.dim(0), N = args.w.dim(1);
  const int64_t k_blocks = ceil_div<int64_t>(K, kBlockK), col_blocks = ceil_div<int64_t>(N, kTileCols);
  NMOE_CHECK(R > 0 && N > 0 && K > 0 && K % 16 == 0 && N % 8 == 0 && args.w.dim(2) == K &&
                 args.y.shape() == Shape({R, N}) && args.x_scales.shape() == Shape({R, k_blocks}) &&
                 args.w_scales.shape() == Shape({E, col_blocks, k_blocks}),
             "FP8 rows {} with scales {}, weights {} with scales {}, results {}", args.x.shape(), args.x_scales.shape(),
             args.w.shape(), args.w_scales.shape(), args.y.shape());
  NMOE_CHECK(aligned16(args.x.raw()) && aligned16(args.w.raw()) && aligned16(args.y.raw()), "TMA wants 16 bytes");
  if (ctx.counting()) return;
  const Product product{.x = byte_map(args.x.raw(), R, K, kBoxRows),
                        .w = byte_map(args.w.raw(), E * N, K, kBoxRows),
                        .x_scales = args.x_scales.data<uint8_t>(),
                        .w_scales = args.w_scales.data<uint8_t>(),
                        .offsets = args.offsets.data<int32_t>(),
                        .y = args.y.data<__nv_bfloat16>(),
                        .num_experts = static_cast<int>(E),
                        .width = static_cast<int>(N),
                        .k_blocks = static_cast<int>(k_blocks),
                        .col_blocks = static_cast<int>(col_blocks)};
  // Every expert has at most one row tile that is not full.
  const int64_t tiles = (R / kTileRows + std::min(E, R)) * col_blocks;
  NMOE_CHECK(tiles <= INT32_MAX / 2, "a grouped product of {} tiles", tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_fp8_kernel, kSharedBytes);
  grouped_fp8_kernel<<<blocks, kThreads, kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
