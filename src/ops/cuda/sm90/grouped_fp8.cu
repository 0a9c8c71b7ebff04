// Grouped products of FP8 operands on Hopper: y_e = x_e w_e^T, with scales of 1 x 128 and 128 x 128.
//
// A persistent, warp-specialised kernel as in grouped_linear.cu: one block a multiprocessor, tiles of 32,768 values of
// C, k in steps of 128 bytes, of which a stage has one. A consumer warpgroup multiplies 64 x 128 twice a step, with one
// set of sums: it adds the first product's sums times both scales to what it keeps in fp32, and goes on with the other
// while the other consumer has the tensor cores. A warp's rows are 32 in both products, so that a lane has a row's
// scale times the weight's, asked for two steps ahead, and the lanes that need it get it by a shuffle. A consumer whose
// rows end in the first product has a loop of its own: a branch between the products costs a tenth of the time.
//
//   rows    tiles of 256 x 128: a consumer has 128 rows, its two products are of 64 rows each
//           backwards through an activation, what a tile has becomes the gradients of pre-activations, as in
//           grouped_linear.cu
//           forwards with an activation of one part, as squared ReLU, it is behind each product
//   SwiGLU  tiles of 128 x (128 gates and the 128 that they gate): a consumer has 64 rows, its products are of both;
//           pre-activations leave as BF16, or as codes that wait for backward
//
// What becomes of a tile is its epilogue's: grouped_fp8_epilogues.cuh.
//
// A sum has one order: tensor cores add a block of 128 (wgmma_fp8.cuh says how), blocks are added in the order of k.
//
// Bound by tensor cores: a step moves 48 KiB from L2 for 8.4 MFLOP.
#include <algorithm>

#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/cuda/sm90/grouped_fp8_epilogues.cuh"
#include "ops/cuda/sm90/grouped_fp8_layout.cuh"
#include "ops/cuda/sm90/grouped_linear.h"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma_fp8.cuh"
#include "ops/cuda/vendor/tensor_map.h"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm90 {
namespace fp8 {
namespace {

static_assert(kFp8ActivationCols == kTileCols);

// --- the epilogues of activations that plans fuse (plans/grouped_linear.h); those to codes leave what an activation
// makes, or the gradient of what it is made of, as FP8 alone
template <class A>
using Forward = Activate<A, StorePre, StorePreCodes, StoreHidden, StoreHiddenCodes>;
template <class A>
using ForwardToCodes = Activate<A, StorePre, StoreHiddenCodes, StoreHiddenColumns>;

template <class L>
__device__ void load_tiles(const Product& p, const typename L::Pipeline& pipeline) {
  const bool elected = threadIdx.x == 0;
  StaticTileScheduler<L::kTileRows, kTileCols> scheduler(p.bounds, p.num_groups, p.width);
  typename L::Pipeline::Position at;
  GroupTile next;
  while (scheduler.next(next)) {
    const Tile tile{next.group_rows - next.row,    p.width - next.col,
                    next.group_begin + next.row,   next.col,
                    p.one_weight ? 0 : next.group, next.group_begin / kFp8Cols + next.group + next.row / kFp8Cols};
    const int boxes_x = min(ceil_div(tile.num_rows, kBoxRows), L::kBoxesX);
    const int first_w = tile.group * L::kBoxesW * p.width + tile.col;  // the gates' rows are before the others
    for (int block = 0; block < p.k_blocks; ++block) {
      if (elected) {
        pipeline.acquire(at);
        if (block == 0) pipeline.header(at) = tile;
        pipeline.expect(at, (boxes_x + L::kBoxesW) * kBoxBytes);
        std::byte* const stage = pipeline.stage(at);
        for (int i = 0; i < boxes_x; ++i) {
          tma_load(p.x, block * kBlockK, tile.row + i * kBoxRows, stage + i * kBoxBytes, pipeline.full(at));
        }
        for (int i = 0; i < L::kBoxesW; ++i) {
          tma_load(p.w, block * kBlockK, first_w + i * p.width, stage + (L::kBoxesX + i) * kBoxBytes,
                   pipeline.full(at));
        }
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

// What a warp's rows are multiplied by at a block of k. A lane has it of one row of one product: a row's scale times
// the weight's.
template <class L>
class LaneScales {
 public:
  // Of the first block. num_rows: of the consumer that exist, at least one, the first of which is `first_row`.
  __device__ LaneScales(const Product& p, const Tile& tile, int first_row, int num_rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, product = lane / kWarpRows;
    const int warp_row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * kWarpRows + lane % kWarpRows;
    const int row = (L::kParts > 1 ? 0 : product) * kProductRows + warp_row;
    const int col = tile.col / kTileCols + (L::kParts > 1 ? product * (p.col_blocks / L::kBoxesW) : 0);
    row_ = (first_row + min(row, num_rows - 1)) * p.k_blocks;
    col_ = (tile.group * p.col_blocks + col) * p.k_blocks;
    load(p, 0);
    advance(p, 0);
  }

  // From the block before `block` to that.
  __device__ void advance(const Product& p, int block) {
    now_ = e8m0_to_float(row_scale_) * e8m0_to_float(col_scale_);
    load(p, min(block + 1, p.k_blocks - 1));
  }
  __device__ float upper(int product) const { return of(product, 0); }
  __device__ float lower(int product) const { return of(product, 8); }

 private:
  __device__ void load(const Product& p, int block) {
    row_scale_ = p.x_scales[row_ + block];
    col_scale_ = p.w_scales[col_ + block];
  }
  // Of the thread's first row, or of that 8 below.
  __device__ float of(int product, int below) const {
    return __shfl_sync(kAllLanes, now_, product * kWarpRows + below + static_cast<int>(threadIdx.x) % kWarp / 4);
  }

  int row_, col_;                  // where the scales of its row and of its columns begin
  uint8_t row_scale_, col_scale_;  // of the block behind that of now_
  float now_;
};

// total += the tile's products, of which the first kCount have rows; releases the tile's stages.
template <class L, int kCount>
__device__ __forceinline__ void multiply_blocks(const Product& p, const typename L::Pipeline& pipeline,
                                                typename L::Pipeline::Position& at, const Tile& tile, int first_row,
                                                int num_rows, float (&total)[kProducts][kTileCols / 2]) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const bool elected = threadIdx.x % kWarp == 0;
  LaneScales<L> scales(p, tile, first_row, num_rows);
  for (int block = 0; block < p.k_blocks; ++block) {
    pipeline.wait(at);
    const std::byte* const stage = pipeline.stage(at);
#pragma unroll
    for (int product = 0; product < kCount; ++product) {
      const int rows = L::kParts > 1 ? 0 : product, cols = L::kParts > 1 ? product : 0;
      const uint64_t x = wgmma_descriptor(stage + (consumer * L::kRowProducts + rows) * kProductBytes);
      const uint64_t w = wgmma_descriptor(stage + (L::kBoxesX + cols) * kBoxBytes);
      float sums[kTileCols / 2];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kBlockK / kFp8Depth; ++k) {
        wgmma_fp8_n128(sums, x + k * kFp8DescriptorStep, w + k * kFp8DescriptorStep, k > 0);
      }
      wgmma_commit_group();
      const float upper = scales.upper(product), lower = scales.lower(product);
      if (product + 1 == kCount) scales.advance(p, block + 1);  // while tensor cores are at work
      wgmma_wait_group<0>();
      if (product + 1 == kCount && elected) pipeline.release(at.stage);
#pragma unroll
      for (int i = 0; i < kTileCols / 2; ++i) {
        total[product][i] = fmaf(sums[i], i % 4 < 2 ? upper : lower, total[product][i]);
      }
    }
    at.advance();
  }
}

template <class L>
__device__ void multiply_tiles(const Product& p, const typename L::Pipeline& pipeline, std::byte* staging) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  std::byte* const staged = staging + (consumer * (kWarpgroup / kWarp) + warp) * L::kWarpStagedBytes;
  typename L::Pipeline::Position at;
  for (;;) {
    pipeline.wait(at);
    const Tile tile = pipeline.header(at);
    __syncwarp();  // all lanes have read it before one releases the stage
    if (tile.group < 0) break;
    const int num_rows = tile.num_rows - consumer * L::kConsumerRows;
    const int64_t first_row = static_cast<int64_t>(tile.row) + consumer * L::kConsumerRows;
    const WarpTile<L> warp_tile{.p = p,
                                .tile = tile,
                                .consumer = consumer,
                                .warp = warp,
                                .num_rows = num_rows,
                                .first_row = first_row,
                                .staged = staged,
                                .staging = staging};
    float total[kProducts][kTileCols / 2] = {};
    const typename L::Epilogue::template OfTile<L> epilogue(warp_tile);
    epilogue.start(total);
    if (num_rows <= 0) {
      for (int block = 0; block < p.k_blocks; ++block) {
        pipeline.wait(at);
        __syncwarp();  // all lanes have seen that it is full
        if (threadIdx.x % kWarp == 0) pipeline.release(at.stage);
        at.advance();
      }
      if constexpr (!L::kColumns || L::kColumnGroups > 1) continue;
    } else if (L::kRowProducts == 1 || num_rows > kProductRows) {
      multiply_blocks<L, kProducts>(p, pipeline, at, tile, static_cast<int>(first_row), num_rows, total);
    } else {
      multiply_blocks<L, 1>(p, pipeline, at, tile, static_cast<int>(first_row), num_rows, total);
    }
    epilogue.finish(total);
  }
}

template <class L>
__global__ void __launch_bounds__(kThreads, 1) grouped_fp8_kernel(const __grid_constant__ Product p) {
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + L::kStageBytes;
  const typename L::Pipeline pipeline(shared, staging + L::kStagedBytes);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.x);
    tma_prefetch_map(p.w);
    pipeline.init(/*num_copiers=*/0, /*num_releases=*/kConsumerWarps);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x < kWarp) load_tiles<L>(p, pipeline);
  } else {
    setmaxnreg_inc<Registers::kConsumer>();
    multiply_tiles<L>(p, pipeline, staging);
  }
}

// Rows of one weight are taken in groups of this many, so that all columns of some rows are made before others are
// read: together with the weight they stay in L2.
constexpr int kGroupRows = 4096;

Product product_of(const RowCodes& x, Tensor w, Tensor w_scales, Tensor offsets, int64_t width) {
  const int64_t R = x.values.dim(0), K = x.values.dim(1), E = w.dim(0), N = w.dim(1);
  const int64_t k_blocks = ceil_div<int64_t>(K, kBlockK), col_blocks = ceil_div<int64_t>(N, kTileCols);
  NMOE_CHECK(R > 0 && N > 0 && K > 0 && K % 16 == 0 && N % 8 == 0 && w.dim(2) == K &&
                 x.scales.shape() == Shape({R, k_blocks}) && w_scales.shape() == Shape({E, col_blocks, k_blocks}) &&
                 (offsets.defined() ? offsets.shape() == Shape({E + 1}) : E == 1),
             "FP8 rows {} with scales {}, weights {} with scales {}, offsets {}", x.values.shape(), x.scales.shape(),
             w.shape(), w_scales.shape(), offsets.shape());
  NMOE_CHECK(R <= INT32_MAX - kGroupRows && E * N <= INT32_MAX && R * k_blocks <= INT32_MAX &&
                 E * col_blocks * k_blocks <= INT32_MAX,
             "an FP8 product of {} rows and {} of weights, {} of k", R, E * N, K);
  NMOE_CHECK(aligned16(x.values.raw()) && aligned16(w.raw()), "TMA wants 16 bytes");
  const bool ragged = offsets.defined();
  return {.x = byte_map(x.values.raw(), R, K, kBoxRows),
          .w = byte_map(w.raw(), E * N, K, kBoxRows),
          .x_scales = x.scales.data<uint8_t>(),
          .w_scales = w_scales.data<uint8_t>(),
          .bounds = ragged ? GroupBounds(offsets.data<int32_t>()) : GroupBounds(static_cast<int>(R), kGroupRows),
          .one_weight = !ragged,
          .y = nullptr,
          .addend = nullptr,
          .num_groups = static_cast<int>(ragged ? E : ceil_div<int64_t>(R, kGroupRows)),
          .width = static_cast<int>(width),
          .k_blocks = static_cast<int>(k_blocks),
          .col_blocks = static_cast<int>(col_blocks),
          .row_weight = nullptr,
          .h = nullptr,
          .pre = nullptr,
          .pre_codes = {},
          .codes = {},
          .columns = nullptr,
          .column_scales = nullptr,
          .row_sums = nullptr,
          .capacity = static_cast<int>(R)};
}

template <class E>
void launch(Context& ctx, const Product& product) {
  using L = Layout<E>;
  const int64_t num_rows = product.capacity;
  // Every group has at most one row tile that is not full.
  const int64_t row_tiles = num_rows / L::kTileRows + std::min<int64_t>(product.num_groups, num_rows);
  const int64_t tiles = row_tiles * ceil_div(product.width, kTileCols);
  NMOE_CHECK(tiles <= INT32_MAX / 2, "a grouped product of {} tiles", tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_fp8_kernel<L>, L::kSharedBytes);
  grouped_fp8_kernel<L><<<blocks, kThreads, L::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// Where codes of rows [R, width] are; null: not wanted.
CodeRows code_rows(const RowCodes& codes, int64_t R, int64_t width) {
  if (!codes.defined()) return {};
  NMOE_CHECK(codes.values.shape() == Shape({R, width}) && codes.scales.shape() == Shape({R, width / kTileCols}) &&
                 aligned16(codes.values.raw()),
             "codes {} and scales {} of {} rows of {}", codes.values.shape(), codes.scales.shape(), R, width);
  return {.values = codes.values.data<uint8_t>(), .scales = codes.scales.data<uint8_t>(), .width = width};
}
// The same of columns, of rows [R, width] in groups, which begin at offsets [E + 1].
void set_columns(Product& product, const ColumnCodes& columns, int64_t R, int64_t width, const Tensor& offsets) {
  NMOE_CHECK(offsets.defined(), "codes of columns of rows that are not in groups");
  const int64_t blocks = R / kFp8Cols + offsets.dim(0) - 1;
  NMOE_CHECK(columns.values.shape() == Shape({blocks, width, kFp8Cols}) &&
                 columns.scales.shape() == Shape({blocks, width}) && aligned16(columns.values.raw()) &&
                 product.codes.values != nullptr,
             "columns {} with scales {} of {} rows of {}", columns.values.shape(), columns.scales.shape(), R, width);
  product.columns = columns.values.data<uint8_t>();
  product.column_scales = columns.scales.data<uint8_t>();
}

}  // namespace
}  // namespace fp8

void grouped_fp8(Context& ctx, const GroupedFp8& args) {
  const int64_t R = args.x.values.dim(0), N = args.w.dim(1);
  NMOE_CHECK(args.y.shape() == Shape({R, N}) && aligned16(args.y.raw()) &&
                 (!args.addend.defined() || args.addend.shape() == args.y.shape()),
             "FP8 rows {} and weights {} into {}, {} added", args.x.values.shape(), args.w.shape(), args.y.shape(),
             args.addend.shape());
  fp8::Product product = fp8::product_of(args.x, args.w, args.w_scales, args.offsets, N);
  product.y = args.y.data<__nv_bfloat16>();
  if (args.addend.defined()) product.addend = args.addend.data<__nv_bfloat16>();
  fp8::launch<fp8::StoreRows>(ctx, product);
}

void grouped_fp8_activation(Context& ctx, const GroupedFp8Activation& args) {
  const int64_t R = args.x.values.dim(0), W = args.w.dim(1), F = W / activation_parts(args.kind);
  const bool has_columns = args.h_columns.defined(), has_pre_codes = args.pre_codes.defined();
  NMOE_CHECK(
      F % kFp8ActivationCols == 0 && W == activation_parts(args.kind) * F && args.row_weight.shape() == Shape({R}) &&
          (has_pre_codes ? !has_columns : args.pre.shape() == Shape({R, W}) && aligned16(args.pre.raw())) &&
          (args.h.defined() ? args.h.shape() == Shape({R, F}) && aligned16(args.h.raw()) : args.h_codes.defined()),
      "FP8 rows {} and weights {} into {} and {}, weights of rows {}", args.x.values.shape(), args.w.shape(),
      args.pre.shape(), args.h.shape(), args.row_weight.shape());
  fp8::Product product = fp8::product_of(args.x, args.w, args.w_scales, args.offsets, F);
  product.row_weight = args.row_weight.data<float>();
  product.codes = fp8::code_rows(args.h_codes, R, F);
  product.pre_codes = fp8::code_rows(args.pre_codes, R, W);
  if (!has_pre_codes) product.y = args.pre.data<__nv_bfloat16>();
  if (has_columns) fp8::set_columns(product, args.h_columns, R, F, args.offsets);
  if (!has_columns && args.h.defined()) product.h = args.h.data<__nv_bfloat16>();
  dispatch_fused_activation(args.kind, [&]<class A>(A) {
    has_columns ? fp8::launch<fp8::ForwardToCodes<A>>(ctx, product) : fp8::launch<fp8::Forward<A>>(ctx, product);
  });
}

void grouped_fp8_activation_backward(Context& ctx, const GroupedFp8ActivationBackward& args) {
  const int64_t R = args.x.values.dim(0), F = args.w.dim(1), num_tiles = F / kFp8ActivationCols, E = args.w.dim(0);
  const int64_t W = activation_parts(args.kind) * F;
  const bool codes_alone = args.dpre_columns.defined();
  const bool reads_codes = args.pre_codes.defined();
  NMOE_CHECK(F % kFp8ActivationCols == 0 && (!reads_codes || codes_alone) &&
                 (reads_codes || (args.pre.shape() == Shape({R, W}) && aligned16(args.pre.raw()))) &&
                 (codes_alone || (args.dpre.shape() == args.pre.shape() && aligned16(args.dpre.raw()))) &&
                 args.row_weight.shape() == Shape({R}) && args.drow_weight.shape() == Shape({R}) &&
                 args.row_sums.shape() == Shape({num_tiles, R}),
             "FP8 rows {} and weights {} into gradients {} of {}, of rows {} and {}", args.x.values.shape(),
             args.w.shape(), args.dpre.shape(), args.pre.shape(), args.drow_weight.shape(), args.row_sums.shape());
  fp8::Product product = fp8::product_of(args.x, args.w, args.w_scales, args.offsets, F);
  product.row_weight = args.row_weight.data<float>();
  product.pre_codes = fp8::code_rows(args.pre_codes, R, W);
  if (!reads_codes) product.pre = args.pre.data<__nv_bfloat16>();
  product.row_sums = num_tiles > 1 ? args.row_sums.data<float>() : args.drow_weight.data<float>();
  product.codes = fp8::code_rows(args.dpre_codes, R, W);
  if (codes_alone) fp8::set_columns(product, args.dpre_columns, R, W, args.offsets);
  if (!codes_alone) product.y = args.dpre.data<__nv_bfloat16>();
  dispatch_fused_activation(args.kind, [&]<class A>(A) {
    using fp8::ActivateBackward, fp8::ActivateBackwardToCodes;
    if (!codes_alone) return fp8::launch<ActivateBackward<A>>(ctx, product);
    reads_codes ? fp8::launch<ActivateBackwardToCodes<A, fp8::PreInCodes>>(ctx, product)
                : fp8::launch<ActivateBackwardToCodes<A, fp8::PreInRows>>(ctx, product);
  });
  if (num_tiles > 1) add_row_sums(ctx, args.row_sums, args.offsets.rows(E, E + 1), args.drow_weight);
}

}  // namespace nmoe::cuda::sm90
