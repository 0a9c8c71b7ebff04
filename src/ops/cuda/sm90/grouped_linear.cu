// Grouped products on Hopper: y_e = x_e w_e^T, dx_e = dy_e w_e, dw_e += dy_e^T x_e.
//
// A persistent, warp-specialised kernel: one block a multiprocessor works on tiles of 128 x 256 of C. The producer
// warpgroup has one warp at work, which asks the tile scheduler (tile_scheduler.cuh) for tiles and keeps a pipeline of
// stages (tma_pipeline.cuh), k in steps of 64, filled by TMA. Two consumer warpgroups multiply 64 x 256 each by wgmma.
// Of weights' gradients they write their sums (sum_boxes.cuh). Rows in BF16 they only leave in shared memory, and other
// warps, the writers, do the rest beside the next tile's products (tile_writer.cuh). The loads for the next tile are
// under way while a tile is written, since a tile's description travels with its first stage.
//
// One operand's rows may lie anywhere and be picked by an index: the tokens, instead of copies of them in the experts'
// order. All four warps of the producer warpgroup then copy their part of every stage (row_gather.cuh), and the first
// one tells the others which tiles come.
//
// Rows of a tile beyond the expert's belong to the next expert, or are what was in shared memory: they are multiplied
// and not stored. Where rows are what is summed over, those behind the expert's are made zeros in shared memory.
//
// With SwiGLU, a tile is 128 columns of gates and the 128 of what they gate. Backwards through SwiGLU, what a tile has
// is not stored: it meets the pre-activations of its rows and columns, and their gradients go where they were. A row
// weight's gradient is a sum over the row, of which a tile has a part; where there are several tiles a row, a second
// kernel adds them in order.
//
// A sum has one order, that of k, whatever the other rows are, and every value of C is written, or added to, once a
// launch.
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
#include "ops/cuda/sm90/row_gather.cuh"
#include "ops/cuda/sm90/sum_boxes.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tile_writer.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

enum class Form { kForward, kForwardSwiGlu, kInputGradient, kInputGradientSwiGlu, kWeightGradient };
enum class Gathered { kNone, kA, kB };  // the operand whose rows are picked by an index

constexpr int kTileRows = 128, kTileCols = 256;
constexpr int kStepK = kPanel;
constexpr int kPanelsA = kTileRows / kPanel, kPanelsB = kTileCols / kPanel;
constexpr int kConsumers = 2;  // warpgroups, each with a panel of A
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumerThreads / kWarp;
constexpr int kConsumerBarrier = 1, kProducerBarrier = 2;  // the named barriers of all consumers and all producers
constexpr int kSumThreads = 256;
using Boxes = SumBoxes<2>;

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
  int group;
};

// The last tile that the first producer warp told the others, and the one before, which one of them may still read.
constexpr int kTilesTold = 2;

// A tile in shared memory, for all lanes of a warp. The first lane alone reads it, which is the one that releases the
// stage: its read thus comes before the producer's next write by the barrier itself.
__device__ Tile read_by_warp(const Tile& shared) {
  Tile tile{};
  if (threadIdx.x % kWarp == 0) tile = shared;
  const auto of_first = [](auto value) { return __shfl_sync(kAllLanes, value, 0); };
  return {.num_rows = of_first(tile.num_rows),
          .num_cols = of_first(tile.num_cols),
          .depth = of_first(tile.depth),
          .a_i = of_first(tile.a_i),
          .a_k = of_first(tile.a_k),
          .b_i = of_first(tile.b_i),
          .b_k = of_first(tile.b_k),
          .c_col = of_first(tile.c_col),
          .c_row = of_first(tile.c_row),
          .group = of_first(tile.group)};
}

// A sum of nothing takes a step, of zeros.
__device__ int num_steps_of(const Tile& tile) { return max(1, ceil_div(tile.depth, kStepK)); }

// kIsScaled: sums are multiplied by a factor of their expert. Kernels of their own: a branch around it behind the
// products has ptxas wait after every wgmma (its note C7515).
template <Form kForm, Gathered kGathered, bool kIsScaled = false>
struct Layout {
  static constexpr bool kScaled = kIsScaled;
  static constexpr bool kRagged = kForm != Form::kWeightGradient;  // rows of C are the groups'
  static constexpr bool kAKMajor = kRagged;
  static constexpr bool kSwiGlu = kForm == Form::kForwardSwiGlu;
  static constexpr bool kSwiGluBackward = kForm == Form::kInputGradientSwiGlu;
  static constexpr bool kBKMajor = kForm == Form::kForward || kSwiGlu;
  static constexpr int kParts = kSwiGlu ? 2 : 1;
  static constexpr int kCols = kTileCols / kParts;  // of each part
  static_assert(kCols % kPanel == 0, "a part is whole panels of B");
  static constexpr bool kGathers = kGathered != Gathered::kNone;
  static constexpr bool kLoadsA = kGathered != Gathered::kA, kLoadsB = kGathered != Gathered::kB;  // by TMA
  static constexpr int kGatheredRows = kRagged ? kTileRows : kStepK;                               // of a stage
  static_assert(!kRagged || kGathered != Gathered::kB, "B is weights");

  static constexpr bool kWeighted = kSwiGlu || kSwiGluBackward;  // rows have weights
  static constexpr bool kHasWriters = kRagged;                   // or consumers write what they multiply
  // SwiGLU's tiles go through the stash whole, others by halves: what there is room for beside the stages.
  static constexpr bool kHalves = kHasWriters && !kWeighted;
  static constexpr int kStages = kWeighted ? 3 : 4;
  using Pipeline = TmaPipeline<kStages, (kPanelsA + kPanelsB) * kPanelBytes, Tile>;
  using Scheduler = std::conditional_t<kRagged, StaticTileScheduler<kTileRows, kCols>,  //
                                       DynamicTileScheduler<kTileRows, kTileCols>>;

  // Writers are the warps that the producer leaves of its warpgroup or, where it leaves none, a fourth warpgroup. With
  // that, threads have too few registers at the kernel's entry for products of 256 columns.
  static constexpr bool kWritersApart = kHasWriters && kGathers;
  static constexpr int kWriters = kWarpgroup / kWarp - (kWritersApart ? 0 : 1);
  using Stash = TileStash<kConsumers, kHalves ? kTileCols / 2 : kTileCols, kWriters, Tile>;
  using Ring = SwiGluRing<kWritersApart ? 4 : 5>;
  using Registers =
      std::conditional_t<kWritersApart, WarpgroupRegisters<1, 72, kConsumers, 160, 1, 120>,
                         std::conditional_t<kWeighted, WarpgroupRegisters<1, 136, kConsumers, 184>,
                                            std::conditional_t<kHalves, WarpgroupRegisters<1, 104, kConsumers, 200>,
                                                               WarpgroupRegisters<1, kGathers ? 56 : 40, kConsumers,
                                                                                  kGathers ? 224 : 232>>>>;

  // Shared memory: the stages, C on its way, the pipeline's headers and mbarriers, the stash's, then what
  // producers tell each other.
  static constexpr int kStageBytes = kStages * Pipeline::kStageBytes;
  static constexpr int kRingBytes = kSwiGluBackward ? kWriters * Ring::kBytes : 0;
  static constexpr int kStagedBytes = kHasWriters ? Stash::kBytes + kRingBytes : kConsumerWarps * Boxes::kWarpBytes;
  static constexpr int kStashControlBytes = kHasWriters ? Stash::kControlBytes : 0;
  static constexpr int kToldBytes = kGathers ? kTilesTold * static_cast<int>(sizeof(Tile)) : 0;
  static constexpr int kControlBytes = Pipeline::kBarrierBytes + kStashControlBytes;
  static constexpr int kSharedBytes = kStageBytes + kStagedBytes + kControlBytes + kToldBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert((kStageBytes + kStagedBytes) % alignof(Tile) == 0 && Pipeline::kBarrierBytes % alignof(Tile) == 0 &&
                kStashControlBytes % alignof(Tile) == 0);
};

struct Product {
  CUtensorMap a, b;  // but of the operand that is gathered; ragged: b has a matrix for each expert
  CUtensorMap sums;  // of C, weights' gradients: [experts, rows, width]
  GatheredRows gathered;
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
  double* squares;           // = [num_experts, square_parts], of those; null: not wanted
  const float* scale;        // [num_experts], what sums are multiplied by; kScaled only
};

template <class L>
__device__ typename L::Scheduler make_scheduler(const Product& p) {
  if constexpr (L::kRagged) {
    return {p.offsets, p.num_experts, p.width};
  } else {
    return {p.offsets, p.num_experts, p.order, p.tiles_taken, p.rows, p.width, /*skip_empty=*/p.accumulate};
  }
}

template <class L>
__device__ Tile tile_of(const GroupTile& at, const Product& p) {
  Tile tile;
  tile.num_cols = p.width - at.col;
  tile.c_col = at.col;
  tile.group = at.group;
  if constexpr (L::kRagged) {
    tile.num_rows = at.group_rows - at.row;
    tile.depth = p.depth;
    tile.a_i = at.group_begin + at.row;
    tile.a_k = 0;
    tile.b_i = at.col;
    tile.b_k = 0;
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

// `matrix`: the number of one of several, of a map of those.
template <bool kKMajor, class... Matrix>
__device__ void load_panel(const CUtensorMap& map, int i, int k, Matrix... matrix, void* panel, uint64_t* barrier) {
  tma_load(map, kKMajor ? k : i, kKMajor ? i : k, matrix..., panel, barrier);
}

// A stage's part that comes by TMA, of k from `k` on. By one thread or, where rows are gathered, by the first of each
// warp, which have the panels in turn: starting a load takes a thread some 100 cycles.
template <class L>
__device__ void load_stage(const Product& p, const Tile& tile, int k, const typename L::Pipeline& pipeline,
                           const typename L::Pipeline::Position& at, int warp) {
  constexpr int kPartPanels = kPanelsB / L::kParts, kWarps = kWarpgroup / kWarp;
  const auto is_own = [&](int panel) { return !L::kGathers || panel % kWarps == warp; };
  const int panels_a = L::kLoadsA ? min(ceil_div(tile.num_rows, kPanel), kPanelsA) : 0;
  const int panels_b = L::kLoadsB ? min(ceil_div(tile.num_cols, kPanel), kPartPanels) : 0;  // of each part
  std::byte* const stage = pipeline.stage(at);
  if (is_own(0)) pipeline.expect(at, (panels_a + L::kParts * panels_b) * kPanelBytes);
  for (int i = 0; i < panels_a; ++i) {
    if (!is_own(i)) continue;
    load_panel<L::kAKMajor>(p.a, tile.a_i + i * kPanel, tile.a_k + k, stage + i * kPanelBytes, pipeline.full(at));
  }
#pragma unroll
  for (int part = 0; part < L::kParts; ++part) {
    for (int i = 0; i < panels_b; ++i) {
      if (!is_own(part * kPartPanels + i)) continue;
      const int b_i = tile.b_i + part * p.width + i * kPanel;
      std::byte* const panel = stage + (kPanelsA + part * kPartPanels + i) * kPanelBytes;
      if constexpr (L::kRagged) {
        load_panel<L::kBKMajor, int>(p.b, b_i, tile.b_k + k, tile.group, panel, pipeline.full(at));
      } else {
        load_panel<L::kBKMajor>(p.b, b_i, tile.b_k + k, panel, pipeline.full(at));
      }
    }
  }
}

// A stage's part that is gathered. By all producers. Which rows it needs was found before, and here for the next stage.
template <class L>
__device__ void gather_stage(const Product& p, const Tile& tile, int k, RowGather<L::kGatheredRows>& rows,
                             std::byte* stage) {
  if constexpr (L::kRagged) {
    rows.template copy<1>(p.gathered, k, stage);  // the same rows in all stages of a tile
  } else {
    if constexpr (L::kLoadsB) {
      rows.template copy<kPanelsA>(p.gathered, tile.a_i, stage);
    } else {
      rows.template copy<kPanelsB>(p.gathered, tile.b_i, stage + kPanelsA * kPanelBytes);
    }
    rows.find(p.gathered, tile.a_k + k + kStepK, tile.depth - k - kStepK);
  }
}

// The producers: one warp, of which one thread loads, or the warpgroup, where rows are gathered.
template <class L>
__device__ void load_tiles(const Product& p, const typename L::Pipeline& pipeline, Tile* told) {
  // Which of the warps that gather; known to be alike in all lanes.
  const int warp = L::kGathers ? __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0) : 0;
  const bool elected = threadIdx.x == 0, fills = elected || L::kGathers,
             loads = L::kGathers ? threadIdx.x % kWarp == 0 : elected;
  typename L::Scheduler scheduler = make_scheduler<L>(p);
  typename L::Pipeline::Position at;
  for (int count = 0;; ++count) {
    Tile tile;
    GroupTile group_tile;
    if (threadIdx.x < kWarp && scheduler.next(group_tile)) {
      tile = tile_of<L>(group_tile, p);
    } else {
      tile.depth = -1;
    }
    if constexpr (L::kGathers) {
      Tile& shared = told[count % kTilesTold];
      if (elected) shared = tile;
      named_barrier_sync(kProducerBarrier, kWarpgroup);
      tile = shared;
    }
    if (tile.depth < 0) break;
    RowGather<L::kGatheredRows> rows;
    if constexpr (L::kGathers) {
      rows.find(p.gathered, L::kRagged ? tile.a_i : tile.a_k, L::kRagged ? tile.num_rows : tile.depth);
    }
    const int num_steps = num_steps_of(tile);
    for (int step = 0; step < num_steps; ++step) {
      const int k = step * kStepK;
      if (fills) pipeline.acquire(at);
      if (loads) {
        if (step == 0 && (!L::kGathers || warp == 0)) pipeline.header(at) = tile;
        load_stage<L>(p, tile, k, pipeline, at, warp);
      }
      if constexpr (L::kGathers) {
        gather_stage<L>(p, tile, k, rows, pipeline.stage(at));
        pipeline.commit_copies(at);
      }
      at.advance();
    }
  }
  if (fills) pipeline.acquire(at);
  if (elected) {
    pipeline.header(at).depth = -1;
    pipeline.commit_header(at);
  }
  if constexpr (L::kGathers) pipeline.commit_copies(at);
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

// The sums of a tile's first or second half of columns.
template <int kHalf>
__device__ auto half_of(float (&c)[kTileCols / 2]) -> float (&)[kTileCols / 4] {
  return *reinterpret_cast<float(*)[kTileCols / 4]>(&c[kHalf * kTileCols / 4]);
}

// k's 64 of a stage. kCols: 256, or 128 where a tile has no more.
template <class L, int kCols>
__device__ void multiply_stage(const std::byte* stage, int consumer, bool accumulate, float (&c)[kTileCols / 2]) {
  const uint64_t a = wgmma_descriptor(stage + consumer * kPanelBytes);
  const uint64_t b = wgmma_descriptor(stage + kPanelsA * kPanelBytes);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStepK / kProductDepth; ++k) {
    const uint64_t a_k = a + k * wgmma_descriptor_step<L::kAKMajor>();
    const uint64_t b_k = b + k * wgmma_descriptor_step<L::kBKMajor>();
    if constexpr (kCols == kTileCols && L::kWritersApart) {
      const uint64_t b_next = b_k + kTileCols / 2 / kPanel * kPanelBytes / 16;
      wgmma_n128<!L::kAKMajor, !L::kBKMajor>(half_of<0>(c), a_k, b_k, accumulate || k > 0);
      wgmma_n128<!L::kAKMajor, !L::kBKMajor>(half_of<1>(c), a_k, b_next, accumulate || k > 0);
    } else if constexpr (kCols == kTileCols) {
      wgmma_n256<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    } else {
      wgmma_n128<!L::kAKMajor, !L::kBKMajor>(c, a_k, b_k, accumulate || k > 0);
    }
  }
  wgmma_commit_group();
}

// The products of a tile's rows, which `consumer` has 64 of. A stage is released when its products are done: once the
// next one's were issued, or before if that one has not come. beside(): called while a stage's products are under way.
template <class L, int kCols, class Fn>
__device__ void multiply_tile(const Product& p, const Tile& tile, const typename L::Pipeline& pipeline, int consumer,
                              typename L::Pipeline::Position& at, float (&c)[kTileCols / 2], const Fn& beside) {
  const bool elected = threadIdx.x % kWarp == 0;
  int in_use = -1;  // the stage that is being read
  const int num_steps = num_steps_of(tile);
  for (int step = 0; step < num_steps; ++step) {
    const int k = step * kStepK;
    if (step > 0 && !__any_sync(kAllLanes, pipeline.is_full(at))) {  // late: so that one more is under way meanwhile
      wgmma_wait_group<0>();
      if (in_use >= 0 && elected) pipeline.release(in_use);
      in_use = -1;
    }
    pipeline.wait(at);
    if constexpr (L::kGathers) fence_proxy_async();
    std::byte* const stage = pipeline.stage(at);
    if constexpr (!L::kRagged) {
      if (k + kStepK > tile.depth) clear_rows(stage, tile.depth - k);
    }
    multiply_stage<L, kCols>(stage, consumer, step > 0, c);
    beside();
    wgmma_wait_group<1>();
    if (in_use >= 0 && elected) pipeline.release(in_use);
    in_use = at.stage;
    at.advance();
  }
  wgmma_wait_group<0>();
  if (elected) pipeline.release(in_use);
  if constexpr (L::kScaled) {  // here, of those columns that were multiplied: else ptxas waits after every wgmma, too
    const float scale = p.scale[tile.group];
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) c[i] *= scale;
  }
}

// The consumers: a warpgroup's 64 rows of every tile, of which each warp writes 16, or leaves them to the writers.
template <class L>
__device__ void multiply_tiles(const Product& p, const typename L::Pipeline& pipeline, std::byte* staging,
                               const typename L::Stash& stash) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int warp_row = consumer * kPanel + warp * kWarpRows;
  std::byte* const staged = staging + (consumer * (kWarpgroup / kWarp) + warp) * Boxes::kWarpBytes;  // sums
  typename L::Pipeline::Position at;
  int parity = 0;  // of the stash, where whole tiles go through it
  float c[kTileCols / 2];
  HalfStasher<typename L::Stash> stasher(stash, consumer, warp_row);
  const auto beside = [&] {
    if constexpr (L::kHalves) stasher.try_flush();
  };
  for (;;) {
    pipeline.wait(at);  // a tile comes with its first stage
    const Tile tile = read_by_warp(pipeline.header(at));
    if (tile.depth < 0) break;
    const int num_rows = tile.num_rows - warp_row;
    const int64_t first_row = tile.c_row + warp_row;
    float row_weight = 0.0F;  // of a row for each of the warp's first lanes; asked for ahead of its use
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (L::kWeighted && lane < min(num_rows, kWarpRows)) row_weight = p.row_weight[first_row + lane];
    if (L::kSwiGlu || tile.num_cols > kTileCols / 2) {
      multiply_tile<L, kTileCols>(p, tile, pipeline, consumer, at, c, beside);
    } else {
      multiply_tile<L, kTileCols / 2>(p, tile, pipeline, consumer, at, c, beside);
    }
    if constexpr (L::kHalves) {
      stasher.leave(c, tile);
    } else if constexpr (L::kWeighted) {
      stash.acquire(consumer, parity);
      if (threadIdx.x == kWarpgroup) stash.header() = tile;
      stage_columns<kTileCols, 0, kTileCols>(c, L::kSwiGlu ? kTileCols : tile.num_cols, stash.row(warp_row));
      if (lane < kWarpRows) stash.row_weight(warp_row + lane) = row_weight;
      stash.commit(consumer);
      parity ^= 1;
    } else {
      const Boxes boxes{.map = &p.sums,
                        .col = tile.c_col,
                        .row = static_cast<int>(first_row - static_cast<int64_t>(tile.group) * p.rows),
                        .group = tile.group,
                        .num_rows = num_rows,
                        .num_cols = tile.num_cols,
                        .staged = staged};
      if (p.squares != nullptr) boxes.store_squares<kTileCols>(c, p.squares, p.rows, p.width);
      if (p.accumulate) {
        boxes.store<kTileCols, true>(c);
      } else {
        boxes.store<kTileCols, false>(c);
      }
    }
  }
  if constexpr (!L::kRagged) Boxes::finish();
  if constexpr (L::kHalves) {
    stasher.flush();
    parity = stasher.parity();
  }
  if constexpr (L::kHasWriters) {
    if (consumer == 0) {
      stash.acquire(consumer, parity);
      if (threadIdx.x == kWarpgroup) stash.header().depth = -1;
      stash.commit(consumer);
    }
  }
}

// The writers: all rows of every tile that consumers leave in the stash.
template <class L>
__device__ void write_tiles(const Product& p, const typename L::Stash& stash, std::byte* rings) {
  constexpr int kFirst = L::kWritersApart ? (1 + kConsumers) * kWarpgroup / kWarp : 1;  // of the block's warps
  const int writer = static_cast<int>(threadIdx.x) / kWarp - kFirst;
  for (int parity = 0;; parity ^= 1) {
    stash.wait(0, parity);
    const Tile tile = read_by_warp(stash.header());
    if (tile.depth < 0) break;
    const int64_t first = tile.c_row * (L::kWeighted ? 2 : 1) * p.width + tile.c_col;
    const int num_rows = min(tile.num_rows, kTileRows);
    if constexpr (L::kSwiGluBackward) {
      write_swiglu_gradients(
          stash, writer, parity, typename L::Ring{rings + writer * L::Ring::kBytes},
          SwiGluTile{.pre = p.pre + first,
                     .dpre = static_cast<__nv_bfloat16*>(p.c) + first,
                     .dweight = p.row_sums + static_cast<int64_t>(tile.c_col / kTileCols) * p.capacity + tile.c_row,
                     .hidden_width = p.width,
                     .num_rows = num_rows,
                     .num_cols = min(tile.num_cols, kTileCols)});
    } else if constexpr (L::kSwiGlu) {
      write_swiglu<kTileCols>(stash, writer, parity,
                              SwiGluTargets{.pre = static_cast<__nv_bfloat16*>(p.c) + first,
                                            .hidden = p.hidden + tile.c_row * p.width + tile.c_col,
                                            .hidden_width = p.width,
                                            .num_rows = num_rows,
                                            .num_cols = tile.num_cols});
    } else {
      write_tile(stash, writer, parity,
                 TileTarget{.c = static_cast<__nv_bfloat16*>(p.c) + first,
                            .width = p.width,
                            .num_rows = num_rows,
                            .num_cols = tile.num_cols});
    }
  }
}

template <class L>
__global__ void __launch_bounds__(L::Registers::kThreads, 1) grouped_kernel(const __grid_constant__ Product p) {
  extern __shared__ __align__(kPanelAlignment) std::byte shared[];
  std::byte* const staging = shared + L::kStageBytes;
  std::byte* const control = staging + L::kStagedBytes;
  const typename L::Pipeline pipeline(shared, control);
  const typename L::Stash stash(staging, control + L::Pipeline::kBarrierBytes);
  if (threadIdx.x == 0) {
    if constexpr (L::kLoadsA) tma_prefetch_map(p.a);
    if constexpr (L::kLoadsB) tma_prefetch_map(p.b);
    if constexpr (!L::kRagged) tma_prefetch_map(p.sums);
    pipeline.init(/*num_copiers=*/L::kGathers ? kWarpgroup : 0, /*num_releases=*/kConsumerWarps);
    if constexpr (L::kHasWriters) stash.init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == 0) {
    setmaxnreg_dec<L::Registers::kProducer>();
    if (L::kGathers || threadIdx.x < kWarp) {
      load_tiles<L>(p, pipeline, reinterpret_cast<Tile*>(control + L::kControlBytes));
    } else if constexpr (L::kHasWriters && !L::kWritersApart) {
      write_tiles<L>(p, stash, staging + L::Stash::kBytes);
    }
  } else if (!L::kWritersApart || warpgroup <= kConsumers) {
    setmaxnreg_inc<L::Registers::kConsumer>();
    multiply_tiles<L>(p, pipeline, staging, stash);
  } else {
    if constexpr (L::kWritersApart) {
      L::Registers::enter_writer();
      write_tiles<L>(p, stash, staging + L::Stash::kBytes);
    }
  }
}

template <class L>
void launch(Context& ctx, const Product& product, int64_t max_tiles) {
  NMOE_CHECK(max_tiles <= INT32_MAX / 2, "grouped linear of {} tiles", max_tiles);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(max_tiles, ctx.num_sms));
  allow_dynamic_shared(grouped_kernel<L>, L::kSharedBytes);
  grouped_kernel<L><<<blocks, L::Registers::kThreads, L::kSharedBytes, ctx.stream>>>(product);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// What SwiGLU has beside C.
struct SwiGluOperands {
  const float* row_weight = nullptr;
  __nv_bfloat16* hidden = nullptr;
  const __nv_bfloat16* pre = nullptr;
  float* row_sums = nullptr;
};

const float* scale_of(const OperandRounding& rounding) {
  return rounding.product_scale.defined() ? rounding.product_scale.data<float>() : nullptr;
}

GatheredRows gathered_rows(const OperandRows& rows) {
  return {.rows = rows.source.data<__nv_bfloat16>(),
          .index = rows.index.data<int32_t>(),
          .width = static_cast<int>(rows.width())};
}

template <class L>
void launch_rows_product(Context& ctx, const Product& product) {
  // Every expert has at most one row tile that is not full.
  const int64_t row_tiles = product.capacity / kTileRows + std::min(product.num_experts, product.capacity);
  launch<L>(ctx, product, row_tiles * ceil_div<int64_t>(product.width, L::kCols));
}

// C [R, parts of `width`] = the product of x [R, depth] with the experts' weights. Where kGathers, x's rows may be
// picked.
template <Form kForm, bool kGathers = false>
void rows_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor c, int64_t width,
                  const float* scale, const SwiGluOperands& swiglu = {}) {
  const int64_t num_experts = w.dim(0), R = x.num_rows(), depth = x.width();
  const bool gathers = x.index.defined();
  NMOE_CHECK(kGathers || !gathers, "rows that are picked in a product that does not gather");
  const Product product{.a = gathers ? CUtensorMap{} : panel_map(x.source.raw(), R, depth),
                        .b = panels_map(w.raw(), num_experts, w.dim(1), w.dim(2)),
                        .sums = CUtensorMap{},
                        .gathered = gathers ? gathered_rows(x) : GatheredRows{},
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
                        .accumulate = false,
                        .squares = nullptr,
                        .scale = scale};
  if constexpr (kGathers) {
    if (gathers) {
      NMOE_CHECK(scale == nullptr, "rows that are picked, and sums that are scaled");
      return launch_rows_product<Layout<kForm, Gathered::kA>>(ctx, product);
    }
  }
  if (scale != nullptr) return launch_rows_product<Layout<kForm, Gathered::kNone, /*kIsScaled=*/true>>(ctx, product);
  launch_rows_product<Layout<kForm, Gathered::kNone>>(ctx, product);
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

void add_row_sums(Context& ctx, Tensor sums, Tensor num_rows, Tensor total) {
  const int64_t num_tiles = sums.dim(0), R = sums.dim(1);
  add_row_sums_kernel<<<grid_size(ceil_div<int64_t>(R, kSumThreads)), kSumThreads, 0, ctx.stream>>>(
      sums.data<float>(), static_cast<int>(num_tiles), num_rows.data<int32_t>(), R, total.data<float>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

bool grouped_takes(Tensor rows, Tensor w, Tensor other_rows) {
  return sm90_shapes(rows, other_rows) && aligned16(rows.raw()) && aligned16(other_rows.raw()) && aligned16(w.raw());
}

void grouped_forward(Context& ctx, const GroupedLinearForward& args) {
  rows_product<Form::kForward>(ctx, args.x, args.w, args.offsets, args.y, args.y.dim(1), scale_of(args.rounding));
}

void grouped_swiglu(Context& ctx, const GroupedActivationForward& args) {
  rows_product<Form::kForwardSwiGlu, /*kGathers=*/true>(ctx, args.x, args.w, args.offsets, args.pre, args.h.dim(1),
                                                        scale_of(args.rounding),
                                                        {.row_weight = args.row_weight.data<float>(),
                                                         .hidden = args.h.data<__nv_bfloat16>(),
                                                         .pre = nullptr,
                                                         .row_sums = nullptr});
}

void grouped_backward_input(Context& ctx, const GroupedLinearBackwardInput& args) {
  rows_product<Form::kInputGradient>(ctx, args.dy, args.w, args.offsets, args.dx, args.dx.dim(1),
                                     scale_of(args.rounding));
}

void grouped_swiglu_backward(Context& ctx, const GroupedActivationBackward& args, Tensor row_sums) {
  const int64_t num_tiles = row_sums.dim(0), num_experts = args.w.dim(0);
  float* const dweights = args.drow_weight.data<float>();
  rows_product<Form::kInputGradientSwiGlu, /*kGathers=*/true>(
      ctx, args.dy, args.w, args.offsets, args.dpre, args.w.dim(2), scale_of(args.rounding),
      {.row_weight = args.row_weight.data<float>(),
       .hidden = nullptr,
       .pre = args.pre.data<__nv_bfloat16>(),
       .row_sums = num_tiles > 1 ? row_sums.data<float>() : dweights});
  if (num_tiles > 1) add_row_sums(ctx, row_sums, args.offsets.rows(num_experts, num_experts + 1), args.drow_weight);
}

void grouped_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args,
                             const GroupedWeightScratch& scratch) {
  const OperandRows &x = args.x, &dy = args.dy;
  const int64_t num_experts = args.dw.dim(0), rows = args.dw.dim(1), cols = args.dw.dim(2);
  order_longest_first(ctx, args.offsets, scratch.order.order, scratch.order.tiles_taken);
  const bool gathers_a = dy.index.defined(), gathers_b = x.index.defined();
  const Product product{.a = gathers_a ? CUtensorMap{} : panel_map(dy.source.raw(), dy.num_rows(), rows),
                        .b = gathers_b ? CUtensorMap{} : panel_map(x.source.raw(), x.num_rows(), cols),
                        .sums = sum_map(args.dw.raw(), num_experts, rows, cols, kSumBoxRows),
                        .gathered = gathers_a ? gathered_rows(dy) : (gathers_b ? gathered_rows(x) : GatheredRows{}),
                        .offsets = args.offsets.data<int32_t>(),
                        .order = scratch.order.order.data<int32_t>(),
                        .tiles_taken = scratch.order.tiles_taken.data<int32_t>(),
                        .c = args.dw.raw(),
                        .num_experts = static_cast<int>(num_experts),
                        .rows = static_cast<int>(rows),
                        .width = static_cast<int>(cols),
                        .depth = 0,
                        .row_weight = nullptr,
                        .hidden = nullptr,
                        .pre = nullptr,
                        .row_sums = nullptr,
                        .capacity = 0,
                        .accumulate = args.accumulate,
                        .squares = args.squares.defined() ? args.squares.data<double>() : nullptr,
                        .scale = scale_of(args.rounding)};
  const int64_t tiles = num_experts * ceil_div<int64_t>(rows, kTileRows) * ceil_div<int64_t>(cols, kTileCols);
  NMOE_CHECK(product.scale == nullptr || !(gathers_a || gathers_b), "rows that are picked, and sums that are scaled");
  if (gathers_a) {
    launch<Layout<Form::kWeightGradient, Gathered::kA>>(ctx, product, tiles);
  } else if (gathers_b) {
    launch<Layout<Form::kWeightGradient, Gathered::kB>>(ctx, product, tiles);
  } else if (product.scale != nullptr) {
    launch<Layout<Form::kWeightGradient, Gathered::kNone, /*kIsScaled=*/true>>(ctx, product, tiles);
  } else {
    launch<Layout<Form::kWeightGradient, Gathered::kNone>>(ctx, product, tiles);
  }
}

}  // namespace nmoe::cuda::sm90
