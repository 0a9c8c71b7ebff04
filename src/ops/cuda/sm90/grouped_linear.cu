// Grouped products on Hopper: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e.
//
// A persistent, warp-specialised kernel: one block a multiprocessor works on tiles of 128 x 256 of C. The producer
// warpgroup has one warp at work, which asks the tile scheduler (tile_scheduler.cuh) for tiles and keeps a pipeline of
// stages (tma_pipeline.cuh), k in steps of 64, filled by TMA. Two consumer warpgroups multiply 64 x 256 each by wgmma
// and write their rows (epilogue.cuh). The loads for the next tile are under way while a tile is written, since a
// tile's description travels with its first stage.
//
// Rows of a tile beyond the expert's belong to the next expert: they are multiplied and not stored. Where rows are what
// is summed over, those of the next expert are made zeros in shared memory.
//
// With SwiGLU, a tile is 128 columns of gates and the 128 of what they gate, so that one thread has both of a pair.
//
// Backwards through SwiGLU, what a tile has is not stored: the pre-activations of its rows and columns come while it is
// multiplied, and their gradients go where they were. A row weight's gradient is a sum over the row, of which a tile
// has a part; where there are several tiles a row, a second kernel adds them in order.
//
// A sum has one order, that of k, whatever the other rows are, and every value of C is written by one thread once.
//
// Bound by tensor cores: a tile's step moves 48 KiB from L2 for 4.2 MFLOP. On one H200 with even groups, a forward of
// 2,048 to 2,816 values reaches 700 TFLOP/s where a product of 8,192 cubed reaches 790; docs/log.md has the others.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/grouped_linear.h"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

enum class Form { kForward, kForwardSwiGlu, kInputGradient, kInputGradientSwiGlu, kWeightGradient };

constexpr int kTileRows = 128, kTileCols = 256;
constexpr int kStepK = kPanel;
constexpr int kPanelsA = kTileRows / kPanel, kPanelsB = kTileCols / kPanel;
constexpr int kConsumers = 2;  // warpgroups, each with a panel of A
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumerThreads / kWarp;
using Registers = WarpgroupRegisters<1, 40, kConsumers, 232>;
constexpr int kThreads = Registers::kThreads;
constexpr int kConsumerBarrier = 1;  // the named barrier of all consumers
constexpr int kSumThreads = 256;

static_assert(kTileRows == kConsumers * kPanel, "a consumer has one panel of A's rows");
static_assert(kPanel == 4 * kWarpRows, "a warp of the warpgroup has 16 rows");
static_assert(kTileCols == 256, "what wgmma_n256 computes; its half is wgmma_n128's");
static_assert(kStepK % kProductDepth == 0);
static_assert(kTileCols == kActivationTileCols, "scratch has a row of sums for every tile of columns");

// One tile of C, and where its operands lie: what the producer tells consumers with the tile's first stage.
struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int depth;               // negative: there are no more tiles
  int a_i, a_k, b_i, b_k;  // first coordinates in the operands
  int c_col;               // first column and row in C
  int64_t c_row;
};

// A sum of nothing takes a step, of zeros.
__device__ int num_steps_of(const Tile& tile) { return max(1, ceil_div(tile.depth, kStepK)); }

template <Form kForm>
struct Layout {
  static constexpr bool kRagged = kForm != Form::kWeightGradient;  // rows of C are the groups'
  static constexpr bool kAKMajor = kRagged;
  static constexpr bool kSwiGlu = kForm == Form::kForwardSwiGlu;
  static constexpr bool kSwiGluBackward = kForm == Form::kInputGradientSwiGlu;
  static constexpr bool kBKMajor = kForm == Form::kForward || kSwiGlu;
  static constexpr int kParts = kSwiGlu ? 2 : 1;
  static constexpr int kCols = kTileCols / kParts;  // of each part
  static_assert(kCols % kPanel == 0, "a part is whole panels of B");

  static constexpr int kStages = kRagged ? 3 : 4;
  using Pipeline = TmaPipeline<kStages, (kPanelsA + kPanelsB) * kPanelBytes, Tile>;
  using Scheduler = std::conditional_t<kRagged, StaticTileScheduler<kTileRows, kCols>,  //
                                       DynamicTileScheduler<kTileRows, kTileCols>>;

  // Shared memory: the stages, staged rows of C, then the pipeline's headers and mbarriers.
  static constexpr int kStageBytes = kStages * Pipeline::kStageBytes;
  static constexpr int kWarpStagedBytes =
      kSwiGluBackward ? SwiGluRows::kWarpBytes : (kRagged ? StagedRows<kTileCols>::kWarpBytes : 0);
  static constexpr int kStagedBytes = kConsumerWarps * kWarpStagedBytes;
  static constexpr int kSharedBytes = kStageBytes + kStagedBytes + Pipeline::kBarrierBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert((kStageBytes + kStagedBytes) % alignof(Tile) == 0);
};

struct Product {
  CUtensorMap a, b;
  const int32_t* offsets;
  const int* order;  // of the experts; ragged: not used, nor is tiles_taken
  int* tiles_taken;
  void* c;
  int num_experts;
  int rows;                  // of an expert's C; ragged: not used
  int width;                 // of C; with SwiGLU: of the hidden units, half of C
  int depth;                 // ragged: k; else not used
  const float* row_weight;   // of C's rows; with SwiGLU only, as are
  __nv_bfloat16* hidden;     // = [R, width], forward
  const __nv_bfloat16* pre;  // [R, 2 width], backward; C is like it
  float* row_sums;           // = [tiles of width, capacity], backward: of the gradients of row weights
  int capacity;              // of rows
  bool accumulate;           // weights' gradients: whether C is added to
};

template <Form kForm>
__device__ typename Layout<kForm>::Scheduler make_scheduler(const Product& p) {
  if constexpr (Layout<kForm>::kRagged) {
    return {p.offsets, p.num_experts, p.width};
  } else {
    return {p.offsets, p.num_experts, p.order, p.tiles_taken, p.rows, p.width, /*skip_empty=*/p.accumulate};
  }
}

template <Form kForm>
__device__ Tile tile_of(const GroupTile& at, const Product& p) {
  using L = Layout<kForm>;
  Tile tile;
  tile.num_cols = p.width - at.col;
  tile.c_col = at.col;
  if constexpr (L::kRagged) {
    tile.num_rows = at.group_rows - at.row;
    tile.depth = p.depth;
    tile.a_i = at.group_begin + at.row;
    tile.a_k = 0;
    tile.b_i = L::kBKMajor ? at.group * L::kParts * p.width + at.col : at.col;
    tile.b_k = L::kBKMajor ? 0 : at.group * p.depth;
    tile.c_row = tile.a_i;
  } else {
    tile.num_rows = p.rows - at.row;
    tile.depth = at.group_rows;
    tile.a_i = at.row;
    tile.b_i = at.col;
    tile.a_k = tile.b_k = at.group_begin;
    tile.c_row = static_cast<int64_t>(at.group) * p.rows + at.row;
  }
  return tile;
}

template <bool kKMajor>
__device__ void load_panel(const CUtensorMap& map, int i, int k, void* panel, uint64_t* barrier) {
  if constexpr (kKMajor) {
    tma_load(map, k, i, panel, barrier);
  } else {
    tma_load(map, i, k, panel, barrier);
  }
}

// The producer: one warp, of which one thread loads.
template <Form kForm>
__device__ void load_tiles(const Product& p, const typename Layout<kForm>::Pipeline& pipeline) {
  using L = Layout<kForm>;
  const bool elected = threadIdx.x == 0;
  typename L::Scheduler scheduler = make_scheduler<kForm>(p);
  typename L::Pipeline::Position at;
  GroupTile group_tile;
  while (scheduler.next(group_tile)) {
    const Tile tile = tile_of<kForm>(group_tile, p);
    const int panels_a = min(ceil_div(tile.num_rows, kPanel), kPanelsA);
    const int panels_b = min(ceil_div(tile.num_cols, kPanel), kPanelsB / L::kParts);  // of each part
    const int num_steps = num_steps_of(tile);
    for (int step = 0; step < num_steps; ++step) {
      const int k = step * kStepK;
      if (elected) {
        pipeline.acquire(at);
        if (step == 0) pipeline.header(at) = tile;
        pipeline.expect(at, (panels_a + L::kParts * panels_b) * kPanelBytes);
        std::byte* const stage = pipeline.stage(at);
        for (int i = 0; i < panels_a; ++i) {
          load_panel<L::kAKMajor>(p.a, tile.a_i + i * kPanel, tile.a_k + k, stage + i * kPanelBytes, pipeline.full(at));
        }
#pragma unroll
        for (int part = 0; part < L::kParts; ++part) {
          for (int i = 0; i < panels_b; ++i) {
            load_panel<L::kBKMajor>(p.b, tile.b_i + part * p.width + i * kPanel, tile.b_k + k,
                                    stage + (kPanelsA + part * (kPanelsB / L::kParts) + i) * kPanelBytes,
                                    pipeline.full(at));
          }
        }
      }
      at.advance();
    }
  }
  if (elected) {
    pipeline.acquire(at);
    pipeline.header(at).depth = -1;
    pipeline.commit_header(at);
  }
}

// Zeros for the rows of k from `first` on, of all panels of a stage, by all consumers together.
__device__ void clear_rows(std::byte* stage, int first) {
  constexpr int kVectorsPerRow = kPanel * 2 / 16;
  const int vectors = (kPanel - first) * kVectorsPerRow;
  for (int panel = 0; panel < kPanelsA + kPanelsB; ++panel) {
    auto* rows = reinterpret_cast<uint4*>(stage + panel * kPanelBytes) + first * kVectorsPerRow;
    for (int i = static_cast<int>(threadIdx.x) - kWarpgroup; i < vectors; i += kConsumerThreads) {
      rows[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async();
  named_barrier_sync(kConsumerBarrier, kConsumerThreads);
}

// k's 64 of a stage. kCols: 256, or 128 where a tile has no more.
template <Form kForm, int kCols>
__device__ void multiply_stage(const std::byte* stage, int consumer, bool accumulate, float (&c)[kTileCols / 2]) {
  using L = Layout<kForm>;
  const uint64_t a = wgmma_descriptor(stage + consumer * kPanelBytes);
  const uint64_t b = wgmma_descriptor(stage + kPanelsA * kPanelBytes);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStepK / kProductDepth; ++k) {
    const uint64_t a_k = a + k * wgmma_descriptor_step<L::kAKMajor>();
    const uint64_t b_k = b + k * wgmma_descriptor_step<L::kBKMajor>();
    if constexpr (kCols == kTileCols) {
      wgmma_n256<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    } else {
      wgmma_n128<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    }
  }
  wgmma_commit_group();
}

// The products of a tile's rows, which `consumer` has 64 of. A stage is released when its products are done, one step
// after they were issued.
template <Form kForm, int kCols>
__device__ void multiply_tile(const Tile& tile, const typename Layout<kForm>::Pipeline& pipeline, int consumer,
                              typename Layout<kForm>::Pipeline::Position& at, float (&c)[kTileCols / 2]) {
  using L = Layout<kForm>;
  const bool elected = threadIdx.x % kWarp == 0;
  int in_use = -1;  // the stage that is being read
  const int num_steps = num_steps_of(tile);
  for (int step = 0; step < num_steps; ++step) {
    const int k = step * kStepK;
    pipeline.wait(at);
    std::byte* const stage = pipeline.stage(at);
    if constexpr (!L::kRagged) {
      if (k + kStepK > tile.depth) clear_rows(stage, tile.depth - k);
    }
    multiply_stage<kForm, kCols>(stage, consumer, step > 0, c);
    wgmma_wait_group<1>();
    if (in_use >= 0 && elected) pipeline.release(in_use);
    in_use = at.stage;
    at.advance();
  }
  wgmma_wait_group<0>();
  if (elected) pipeline.release(in_use);
}

// The consumers: a warpgroup's 64 rows of every tile, of which each warp writes 16.
template <Form kForm>
__device__ void multiply_tiles(const Product& p, const typename Layout<kForm>::Pipeline& pipeline, std::byte* staging) {
  using L = Layout<kForm>;
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int warp_row = consumer * kPanel + warp * kWarpRows;
  std::byte* const staged = staging + (consumer * (kWarpgroup / kWarp) + warp) * L::kWarpStagedBytes;
  typename L::Pipeline::Position at;
  float c[kTileCols / 2];
  for (;;) {
    pipeline.wait(at);  // a tile comes with its first stage
    const Tile tile = pipeline.header(at);
    __syncwarp();  // all lanes have read it before one releases the stage
    if (tile.depth < 0) break;
    const int num_rows = tile.num_rows - warp_row;
    const int64_t first_row = tile.c_row + warp_row;
    RowWeights weights{0.0F, 0.0F};  // asked for ahead of their use
    if constexpr (L::kSwiGlu || L::kSwiGluBackward) {
      const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
      const float* const row_weight = p.row_weight + first_row;
      if (row < num_rows) weights.upper = row_weight[row];
      if (row + 8 < num_rows) weights.lower = row_weight[row + 8];
    }
    const SwiGluRows pre_rows{.pre = p.pre + first_row * 2 * p.width + tile.c_col,
                              .dpre = static_cast<__nv_bfloat16*>(p.c) + first_row * 2 * p.width + tile.c_col,
                              .hidden_width = p.width,
                              .num_rows = num_rows,
                              .num_cols = min(tile.num_cols, kTileCols),
                              .staged = staged};
    if constexpr (L::kSwiGluBackward) {
      pre_rows.fetch(0);
      pre_rows.fetch(1);
    }
    if (L::kSwiGlu || tile.num_cols > kTileCols / 2) {
      multiply_tile<kForm, kTileCols>(tile, pipeline, consumer, at, c);
    } else {
      multiply_tile<kForm, kTileCols / 2>(tile, pipeline, consumer, at, c);
    }
    if constexpr (L::kSwiGluBackward) {
      store_swiglu_gradients<kTileCols>(
          c, weights, pre_rows, p.row_sums + static_cast<int64_t>(tile.c_col / kTileCols) * p.capacity + first_row);
    } else if constexpr (L::kSwiGlu) {
      store_swiglu_rows<kTileCols>(c, weights, num_rows, tile.num_cols,
                                   static_cast<__nv_bfloat16*>(p.c) + first_row * 2 * p.width + tile.c_col,
                                   p.hidden + first_row * p.width + tile.c_col, p.width, staged);
    } else if constexpr (L::kRagged) {
      store_rows<kTileCols>(c, num_rows, tile.num_cols,
                            static_cast<__nv_bfloat16*>(p.c) + first_row * p.width + tile.c_col, p.width, staged);
    } else {
      float* const target = static_cast<float*>(p.c) + first_row * p.width + tile.c_col;
      if (p.accumulate) {
        store_sums<kTileCols, true>(c, num_rows, tile.num_cols, target, p.width);
      } else {
        store_sums<kTileCols, false>(c, num_rows, tile.num_cols, target, p.width);
      }
    }
  }
  tma_wait_group_read<0>();
}

template <Form kForm>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Product p) {
  using L = Layout<kForm>;
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + L::kStageBytes;
  const typename L::Pipeline pipeline(shared, staging + L::kStagedBytes);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.a);
    tma_prefetch_map(p.b);
    pipeline.init(/*num_releases=*/kConsumerWarps);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x < kWarp) load_tiles<kForm>(p, pipeline);
  } else {
    setmaxnreg_inc<Registers::kConsumer>();
    multiply_tiles<kForm>(p, pipeline, staging);
  }
}

template <Form kForm>
void launch(Context& ctx, const Product& product, int64_t max_tiles) {
  using L = Layout<kForm>;
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "grouped linear of {} tiles", max_tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_kernel<kForm>, L::kSharedBytes);
  grouped_kernel<kForm><<<blocks, kThreads, L::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// What SwiGLU has beside C.
struct SwiGluOperands {
  const float* row_weight = nullptr;
  __nv_bfloat16* hidden = nullptr;
  const __nv_bfloat16* pre = nullptr;
  float* row_sums = nullptr;
};

// C [R, parts of `width`] = the product of x [R, depth] with the experts' weights.
template <Form kForm>
void rows_product(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor c, int64_t width,
                  const SwiGluOperands& swiglu = {}) {
  const int64_t num_experts = w.dim(0), R = x.dim(0), depth = x.dim(1);
  const Product product{.a = panel_map(x.raw(), R, depth),
                        .b = panel_map(w.raw(), num_experts * w.dim(1), w.dim(2)),
                        .offsets = offsets.data<int32_t>(),
                        .order = nullptr,
                        .tiles_taken = nullptr,
                        .c = c.raw(),
                        .num_experts = static_cast<int>(num_experts),
                        .rows = 0,
                        .width = static_cast<int>(width),
                        .depth = static_cast<int>(depth),
                        .row_weight = swiglu.row_weight,
                        .hidden = swiglu.hidden,
                        .pre = swiglu.pre,
                        .row_sums = swiglu.row_sums,
                        .capacity = static_cast<int>(R),
                        .accumulate = false};
  // Every expert has at most one row tile that is not full.
  const int64_t row_tiles = R / kTileRows + std::min(num_experts, R);
  launch<kForm>(ctx, product, row_tiles * ceil_div<int64_t>(width, Layout<kForm>::kCols));
}

// total [capacity] = the sums of the rows of `sums` [tiles, capacity], in order, for the first *num_rows.
__global__ void __launch_bounds__(kSumThreads)
    add_row_sums_kernel(const float* sums, int num_tiles, const int32_t* num_rows, int64_t capacity, float* total) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (row >= *num_rows) return;
  float sum = sums[row];
#pragma unroll 8  // that many loads at once
  for (int tile = 1; tile < num_tiles; ++tile) sum += sums[tile * capacity + row];
  total[row] = sum;
}

}  // namespace

bool grouped_takes(Tensor rows, Tensor w, Tensor other_rows) {
  const bool aligned =
      aligned16(rows.raw()) && aligned16(other_rows.raw()) && (w.dtype() != DType::kBF16 || aligned16(w.raw()));
  return sm90_shapes(rows, other_rows) && aligned;
}

void grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y) {
  rows_product<Form::kForward>(ctx, x, w, offsets, y, y.dim(1));
}

void grouped_swiglu(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor row_weight, Tensor pre, Tensor h) {
  rows_product<Form::kForwardSwiGlu>(
      ctx, x, w, offsets, pre, h.dim(1),
      {.row_weight = row_weight.data<float>(), .hidden = h.data<__nv_bfloat16>(), .pre = nullptr, .row_sums = nullptr});
}

void grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx) {
  rows_product<Form::kInputGradient>(ctx, dy, w, offsets, dx, dx.dim(1));
}

void grouped_swiglu_backward(Context& ctx, const GroupedActivationBackward& args, Tensor row_sums) {
  const int64_t num_tiles = row_sums.dim(0), R = row_sums.dim(1), num_experts = args.w.dim(0);
  float* const dweights = args.drow_weight.data<float>();
  rows_product<Form::kInputGradientSwiGlu>(ctx, args.dy, args.w, args.offsets, args.dpre, args.w.dim(2),
                                           {.row_weight = args.row_weight.data<float>(),
                                            .hidden = nullptr,
                                            .pre = args.pre.data<__nv_bfloat16>(),
                                            .row_sums = num_tiles > 1 ? row_sums.data<float>() : dweights});
  if (num_tiles == 1) return;
  add_row_sums_kernel<<<grid_size(ceil_div<int64_t>(R, kSumThreads)), kSumThreads, 0, ctx.stream>>>(
      row_sums.data<float>(), static_cast<int>(num_tiles), args.offsets.data<int32_t>() + num_experts, R, dweights);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate) {
  const int64_t num_experts = dw.dim(0), rows = dw.dim(1), cols = dw.dim(2);
  ArenaScope scope(ctx.scratch);
  const auto [order, tiles_taken] = claim_grouped_weight(scope, num_experts);
  if (ctx.counting()) return;
  order_longest_first(ctx, offsets, order, tiles_taken);
  const Product product{.a = panel_map(dy.raw(), dy.dim(0), rows),
                        .b = panel_map(x.raw(), x.dim(0), cols),
                        .offsets = offsets.data<int32_t>(),
                        .order = order.data<int32_t>(),
                        .tiles_taken = tiles_taken.data<int32_t>(),
                        .c = dw.raw(),
                        .num_experts = static_cast<int>(num_experts),
                        .rows = static_cast<int>(rows),
                        .width = static_cast<int>(cols),
                        .depth = 0,
                        .row_weight = nullptr,
                        .hidden = nullptr,
                        .pre = nullptr,
                        .row_sums = nullptr,
                        .capacity = 0,
                        .accumulate = accumulate};
  const int64_t tiles = ceil_div<int64_t>(rows, kTileRows) * ceil_div<int64_t>(cols, kTileCols);
  launch<Form::kWeightGradient>(ctx, product, num_experts * tiles);
}

}  // namespace nmoe::cuda::sm90
