// Grouped products of FP8 operands on Hopper (grouped_fp8.cu): tiles, the kernel's arguments, and for each epilogue the
// shared memory.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/fp8_epilogue.cuh"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/tile_scheduler.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/tma_pipeline.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"

namespace nmoe::cuda::sm90::fp8 {

constexpr int kTileCols = 128, kBlockK = 128;
constexpr int kConsumers = 2, kProducts = 2;  // consumers of a tile, and products of a consumer
constexpr int kProductRows = 64;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
constexpr int kBoxRows = 128;  // of a load
constexpr int kBoxBytes = kBoxRows * kBlockK;
constexpr int kBoxes = 3;  // of a stage: those of x, then those of w
constexpr int kProductBytes = kProductRows * kBlockK;
constexpr int kColumnsBarrier = 1;  // and the next
using Registers = WarpgroupRegisters<1, 40, kConsumers, 232>;
constexpr int kThreads = Registers::kThreads;
static_assert(kTileCols == kBoxRows);
static_assert(kBlockK == 128, "a row of shared memory is 128 bytes, and a scale's block");

struct alignas(16) Tile {
  int num_rows, num_cols;  // that exist, from the tile's first on: may be more than the tile has
  int row, col;            // the first in x and y, and of the expert's C
  int group;               // negative: there are no more tiles
  int block;               // of columns' codes, that of the first row
};

using Staged = StagedRows<kTileCols>;
static_assert(kTileCols == kFp8Cols && kWarpRows * kStagedCodeBytes <= Staged::kWarpBytes);

// Of an epilogue (grouped_fp8_epilogues.cuh).
template <class E>
struct Layout {
  using Epilogue = E;
  static constexpr int kParts = E::kParts;  // of pre-activations, that a consumer's products are of; 1: of rows
  static_assert(kParts == 1 || kParts == kProducts);
  static constexpr int kConsumerRows = kProducts / kParts * kProductRows;
  static constexpr int kTileRows = kConsumers * kConsumerRows;
  static constexpr int kBoxesX = kTileRows / kBoxRows, kBoxesW = kBoxes - kBoxesX;
  static constexpr int kRowProducts = kConsumerRows / kProductRows;  // products with rows of their own
  static constexpr bool kReadsPre = E::kPreParts > 0;
  using Pre = PreRows<kReadsPre ? E::kPreParts : 1>;
  using Pipeline = TmaPipeline<kReadsPre ? 3 : 4, kBoxes * kBoxBytes, Tile>;
  static constexpr int kWarpStagedBytes = kReadsPre ? Pre::kWarpBytes : Staged::kWarpBytes;
  static constexpr int kStageBytes = Pipeline::kStages * Pipeline::kStageBytes;
  static constexpr int kStagedBytes = kConsumerWarps * kWarpStagedBytes;
  static constexpr int kSharedBytes = kStageBytes + kStagedBytes + Pipeline::kBarrierBytes;
  // Columns' codes, whose blocks are 128 rows: of a tile, by both consumers, or of a consumer's rows.
  static constexpr bool kColumns = E::kColumns;
  static constexpr int kColumnGroups = kRowProducts == 1 ? 1 : kConsumers;  // that work on columns by themselves
  using Columns = ColumnsEpilogue<kRowProducts, kReadsPre ? E::kPreParts : 1, kConsumerWarps / kColumnGroups>;
  static_assert(!kColumns || Columns::kBytes * kColumnGroups <= kStagedBytes);
  static_assert(kStagedBytes / kColumnGroups % 128 == 0);
  static_assert(kSharedBytes <= kMaxSharedBytes && (kStageBytes + kStagedBytes) % alignof(Tile) == 0);
};

struct Product {
  CUtensorMap x, w;
  const uint8_t* x_scales;
  const uint8_t* w_scales;
  GroupBounds bounds;
  bool one_weight;  // which all groups share
  __nv_bfloat16* y;
  const __nv_bfloat16* addend;  // or null
  int num_groups, width;        // width: of y, or of h
  int k_blocks, col_blocks;     // of 128; of one weight
  // With an activation; y is pre, or its gradient, or null.
  const float* row_weight;
  __nv_bfloat16* h;  // or null
  const __nv_bfloat16* pre;
  CodeRows pre_codes;  // instead of y, or of pre, or null
  CodeRows codes;      // of h or of the gradient; or null
  uint8_t* columns;    // the same of their columns
  uint8_t* column_scales;
  float* row_sums;  // [tiles of columns, capacity]
  int capacity;
};

// A thread's first row of a product, of which it has another 8 below; and its first column of each 8.
__device__ inline int product_row() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * kWarpRows + static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int product_col() { return static_cast<int>(threadIdx.x) % 4 * 2; }

}  // namespace nmoe::cuda::sm90::fp8
