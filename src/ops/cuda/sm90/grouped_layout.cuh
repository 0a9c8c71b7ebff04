// What grouped products on Hopper (grouped_linear.cu) are made of: their operands, tiles of C, and for each kind, with
// its epilogue, the warps' roles, registers and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/contracts/pieces.h"
#include "ops/cuda/plans/grouped_linear.h"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/sum_boxes.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tile_writer.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/turns.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

// Rows by weights, summed over `in` or over `out`, and what rows sum up to: weights' gradients by the experts' first
// pieces of rows, or what later ones add.
enum class Operands { kForward, kInputGradient, kWeightGradient, kLaterPieces };
enum class Gathered { kNone, kA, kB };  // the operand whose rows are picked by an index

constexpr int kStepK = kPanel;
constexpr int kConsumers = 2;                    // warpgroups
constexpr int kStripRows = kConsumers * kPanel;  // of a tile: a panel of A for each of them
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumerThreads / kWarp;
constexpr int kConsumerBarrier = 1, kProducerBarrier = 2;  // the named barriers of all consumers and all producers
constexpr int kWideTileCols = 256, kNarrowTileCols = 192, kTallTileCols = 128;
using Boxes = SumBoxes<2>;

static_assert(kPanel == 4 * kWarpRows, "a warp of the warpgroup has 16 rows");
static_assert(kStepK % kProductDepth == 0);
static_assert(kPieceRows % kStepK == 0, "a piece begins where a step does");

// One tile of C, and where its operands lie: what the producer tells consumers with the tile's first stage.
struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int depth;               // negative: there are no more tiles
  int a_i, a_k, b_i, b_k;  // first coordinates in the operands
  int c_col;               // first column and row in C
  int64_t c_row;
  int group;
};
struct PieceTile : Tile {
  PieceTurn turn;
};

// The last tile that the first producer warp told the others, and the one before, which one of them may still read.
constexpr int kTilesTold = 2;

// A tile in shared memory, for all lanes of a warp. The first lane alone reads it, which is the one that releases the
// stage: its read thus comes before the producer's next write by the barrier itself.
__device__ inline Tile read_by_warp(const Tile& shared) {
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
__device__ inline int num_steps_of(const Tile& tile) { return max(1, ceil_div(tile.depth, kStepK)); }

// kIsScaled: sums are multiplied by a factor of their expert. Kernels of their own: a branch around it behind the
// products has ptxas wait after every wgmma (its note C7515). kCols: of a tile.
template <Operands kOperands, Gathered kGathered, class E, bool kIsScaled = false, int kCols = kWideTileCols>
struct Layout {
  using Epilogue = E;
  static constexpr bool kScaled = kIsScaled;
  static constexpr bool kLaterPieces = kOperands == Operands::kLaterPieces;                 // of weights' gradients
  static constexpr bool kRagged = kOperands != Operands::kWeightGradient && !kLaterPieces;  // rows of C are the groups'
  static constexpr bool kAKMajor = kRagged;
  static constexpr bool kReadsPre = E::kPreParts > 0;
  static constexpr bool kBKMajor = kOperands == Operands::kForward;
  static constexpr bool kGathers = kGathered != Gathered::kNone;
  // Backwards through an activation there is most to write. Narrower tiles leave registers for two warpgroups that do.
  static constexpr bool kNarrow = kCols == kNarrowTileCols;
  // Of weights' gradients, where that loads less (gradient_tile() in plans/grouped_linear.h): two strips of rows, half
  // the columns.
  static constexpr bool kTall = kCols == kTallTileCols;
  static_assert(kNarrow ? kReadsPre : kTall ? !kRagged : kCols == kWideTileCols);
  static constexpr int kStrips = kTall ? 2 : 1;
  static constexpr int kTileRows = kStrips * kStripRows, kPanelsA = kTileRows / kPanel;
  static constexpr int kTileCols = kCols, kPanelsB = kTileCols / kPanel;
  static_assert(!kReadsPre || kTileCols >= kLeastActivationTileCols,
                "scratch has a row of sums for every tile of columns");
  static_assert(kRagged || GradientTile{kTileRows, kTileCols} == (kTall ? kTallGradientTile : kWideGradientTile),
                "scratch has turns for every tile");
  using Sums = float[kStrips][kTileCols / 2];  // a consumer's, of its 64 rows of each strip
  static constexpr int kFewCols = 128;         // of one strip, that are multiplied where a tile has no more
  __device__ static bool has_few(const Tile& tile) {
    return E::kParts == 1 && (kTall ? tile.num_rows <= kStripRows : tile.num_cols <= kFewCols);
  }
  static constexpr int kParts = E::kParts;
  static constexpr int kPartCols = kTileCols / kParts;
  static_assert(kPartCols % kPanel == 0, "a part is whole panels of B");
  static constexpr bool kLoadsA = kGathered != Gathered::kA, kLoadsB = kGathered != Gathered::kB;  // by TMA
  static constexpr int kGatheredRows = kRagged ? kTileRows : kStepK;                               // of a stage
  static_assert(!kRagged || kGathered != Gathered::kB, "B is weights");

  static constexpr bool kWeighted = E::kWeighted;  // rows have weights
  static constexpr bool kHasWriters = kRagged;     // or consumers write what they multiply
  // Tiles with an activation go through the stash whole, others by halves: what there is room for beside the stages.
  static constexpr bool kHalves = kHasWriters && !kWeighted;
  static constexpr int kStages = kWeighted && !kNarrow ? 3 : 4;
  using StagedTile = std::conditional_t<kLaterPieces, PieceTile, Tile>;
  using Pipeline = TmaPipeline<kStages, (kPanelsA + kPanelsB) * kPanelBytes, StagedTile>;
  using Scheduler = std::conditional_t<kRagged, StaticTileScheduler<kTileRows, kPartCols>,
                                       std::conditional_t<kLaterPieces, LaterPieceScheduler<kTileRows, kTileCols>,
                                                          DynamicTileScheduler<kTileRows, kTileCols>>>;

  // Writers are the warps that the producer leaves of its warpgroup or, where it leaves none or too few, warpgroups of
  // their own. With those, threads have too few registers at the kernel's entry for products of 256 columns.
  static constexpr bool kWritersApart = kHasWriters && (kGathers || kNarrow);
  static constexpr int kWriterGroups = kNarrow ? 2 : 1;
  static constexpr int kWriters = kWritersApart ? kWriterGroups * kWarpgroup / kWarp : kWarpgroup / kWarp - 1;
  using Stash = TileStash<kConsumers, kHalves ? kTileCols / 2 : kTileCols, kWriters, Tile>;
  using Ring = PreRing<E::kPreParts, kNarrow ? 2 : (kWritersApart ? 4 : 5)>;
  using Registers = std::conditional_t<
      kNarrow, WarpgroupRegisters<1, 80, kConsumers, 128, kWriterGroups, 72>,
      std::conditional_t<kWritersApart, WarpgroupRegisters<1, 72, kConsumers, 160, kWriterGroups, 120>,
                         std::conditional_t<kWeighted, WarpgroupRegisters<1, 136, kConsumers, 184>,
                                            std::conditional_t<kHalves, WarpgroupRegisters<1, 104, kConsumers, 200>,
                                                               WarpgroupRegisters<1, 56, kConsumers, 224>>>>>;

  // Shared memory: the stages, C on its way, the pipeline's headers and mbarriers, the stash's, then what
  // producers tell each other.
  static constexpr int kStageBytes = kStages * Pipeline::kStageBytes;
  static constexpr int kRingBytes = kWriters * Ring::kBytes;
  static constexpr int kStagedBytes = kHasWriters ? Stash::kBytes + kRingBytes : kConsumerWarps * Boxes::kWarpBytes;
  static constexpr int kStashControlBytes = kHasWriters ? Stash::kControlBytes : 0;
  static constexpr int kToldBytes = kGathers ? kTilesTold * static_cast<int>(sizeof(StagedTile)) : 0;
  static constexpr int kControlBytes = Pipeline::kBarrierBytes + kStashControlBytes;
  static constexpr int kSharedBytes = kStageBytes + kStagedBytes + kControlBytes + kToldBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert((kStageBytes + kStagedBytes) % alignof(Tile) == 0 && Pipeline::kBarrierBytes % alignof(Tile) == 0 &&
                kStashControlBytes % alignof(Tile) == 0);
};

}  // namespace nmoe::cuda::sm90
