// y = x w^T with one order of summation for every number of rows, and the experts' or an MLP's first layer, whose
// activation is applied where the sums are.
//
// BF16 in whole 16 bytes: tensor cores, by mma.m16n8k16 with the weights as the matrix of 16 rows and the tokens as its
// columns, of which one does not touch another. What is summed over is cut into turns of 64, turns into eight
// consecutive parts; a part is one chain of instructions, and parts are added in their order. Which k goes to which of
// an instruction's places is free as long as both operands agree: a lane takes eight consecutive ones, 16 bytes.
//
// Two kernels do that. For few rows a part is a warp's, and weights go from memory to registers without a stop: those
// of a plain product are under way before the work in front has ended. Bound: reading the weights. For many rows all
// warps work off one part after another out of a ring of stages in shared memory, which tokens and weights share.
// Bound: reading shared memory, at about half of what tensor cores could do. Where tiles are too few to fill the
// device, a tile is a cluster's, whose blocks have a part each and add them up through each other's shared memory.
//
// Else, and in fp32: a warp for a value of up to eight tokens, lanes along k.
#include <cooperative_groups.h>

#include <algorithm>
#include <type_traits>

#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kParts = 8;  // that k is cut into: what the order of sums depends on, with kTurn
constexpr int kWarps = kParts;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTurn = 64;         // consecutive k
constexpr int kHalf = kTurn / 2;  // what four lanes take at once, eight each
constexpr int kTokens = 8;        // of a warp of the plain kernel

// What becomes of sums: they are stored, or an activation (primitives/activation.cuh) stores them rounded, and what it
// makes of these.
struct NoActivation {};

template <class T, class Out>
struct Product {
  const T* x;               // [rows, depth], x_stride apart
  const int32_t* index;     // [rows]: row r is x's row index[r]; null: row r
  const T* w;               // [width, depth], or one for each expert
  const Out* addend;        // [rows, width]; may be y, may be null
  const int32_t* offsets;   // [experts + 1]; null: one matrix for all rows
  Out* y;                   // [rows, width], y_stride apart
  const float* row_weight;  // [rows], of activations; null: 1
  Out* h;                   // [rows, hidden], of activations
  int64_t x_stride, y_stride;
  int64_t x_step, w_step, y_step;  // from a batch, blockIdx.z, to the next
  int num_rows, width, depth, num_experts, num_batches, hidden;
  bool vector;  // rows of x and w in whole 16 bytes
};

template <class T, class Out>
__device__ const T* row_of_x(const Product<T, Out>& p, int row) {
  return p.x + (p.index == nullptr ? row : p.index[row]) * p.x_stride;
}

// That of a block's batch.
template <class T, class Out>
__device__ Product<T, Out> own_batch(Product<T, Out> p) {
  p.x += blockIdx.z * p.x_step;
  p.w += blockIdx.z * p.w_step;
  p.y += blockIdx.z * p.y_step;
  return p;
}

// What a block works on. Of a plain product a tile of rows, which neighbours may share, and tiles of one slice of the
// weights are neighbours; of experts all rows of one: number blockIdx.y among those that have rows.
template <class T>
struct Work {
  int column_tile;
  int row_begin = 0, row_end = 0;
  const T* w = nullptr;
};
template <class T, class Out>
__device__ int column_tile(const Product<T, Out>& p) {
  return static_cast<int>(p.offsets == nullptr ? blockIdx.y : blockIdx.x);
}
template <class T, class Out>
__device__ Work<T> find_work(const Product<T, Out>& p, int tile_rows, int tile_blocks = 1) {
  const int tile = column_tile(p);
  if (p.offsets == nullptr) {
    const int begin = static_cast<int>(blockIdx.x) / tile_blocks * tile_rows;
    return {tile, begin, min(begin + tile_rows, p.num_rows), p.w};
  }
  // Lanes have consecutive experts each, so that all loads are under way at once.
  const int number = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = ceil_div(p.num_experts, kWarp), first = min(lane * each, p.num_experts);
  const int last = min(first + each, p.num_experts);
  int busy = 0;
#pragma unroll 8
  for (int expert = first; expert < last; ++expert) busy += p.offsets[expert + 1] > p.offsets[expert] ? 1 : 0;
  int through = busy;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += below;
  }
  const unsigned reached = __ballot_sync(kAllLanes, through > number);
  if (reached == 0) return {tile};
  const int source = __ffs(static_cast<int>(reached)) - 1;
  int found = first;
  if (lane == source) {
    for (int left = number - (through - busy); p.offsets[found + 1] == p.offsets[found] || left-- > 0;) ++found;
  }
  found = __shfl_sync(kAllLanes, found, source);
  return {tile, p.offsets[found], p.offsets[found + 1], p.w + static_cast<int64_t>(found) * p.width * p.depth};
}

template <class T, class Out>
__device__ void store(const Product<T, Out>& p, int row, int column, float sum) {
  const int64_t at = row * p.y_stride + column;
  if (p.addend != nullptr) sum += to_float(p.addend[at]);
  p.y[at] = from_float<Out>(sum);
}

// A tile's 16 rows of weights, of the `tile`th 16: number r < 16, or the width where there is none. An activation's are
// as many hidden units of each of its parts.
template <class A, class Out>
__device__ int weight_row(const Product<Bf16, Out>& p, int tile, int r) {
  if constexpr (std::is_same_v<A, NoActivation>) {
    return min(tile * 16 + r, p.width);
  } else {
    constexpr int kUnits = 16 / A::kParts;
    const int unit = tile * kUnits + r % kUnits;
    return unit < p.hidden ? unit + r / kUnits * p.hidden : p.width;
  }
}

// The sums of tile `tile`'s weight rows r and r + 8, r < 8, with one row of x: two parts of a hidden unit, or two
// units.
template <class A, class Out>
__device__ void store_pair(const Product<Bf16, Out>& p, int row, int tile, int r, float low, float high) {
  if constexpr (std::is_same_v<A, NoActivation>) {
    if (const int column = tile * 16 + r; column < p.width) store(p, row, column, low);
    if (const int column = tile * 16 + r + 8; column < p.width) store(p, row, column, high);
  } else {
    static_assert(A::kParts <= 2);
    const float weight = p.row_weight != nullptr ? p.row_weight[row] : 1.0F, sums[2] = {low, high};
    Out* const pre = p.y + row * p.y_stride;
    Out* const h = p.h + static_cast<int64_t>(row) * p.hidden;
#pragma unroll
    for (int i = 0; i < 2 / A::kParts; ++i) {
      const int unit = tile * (16 / A::kParts) + r + i * 8;
      if (unit >= p.hidden) continue;
      float parts[A::kParts];
#pragma unroll
      for (int part = 0; part < A::kParts; ++part) {
        const Out value = from_float<Out>(sums[i + part]);
        pre[part * p.hidden + unit] = value;
        parts[part] = to_float(value);
      }
      h[unit] = from_float<Out>(A::template forward<Out>(parts) * weight);
    }
  }
}

// NOTE: not __ldg: tokens may be written while a kernel that started early is there already. It reads weights too.
__device__ uint4 load16(const Bf16* row, int k, bool is_there) {
  return is_there ? *reinterpret_cast<const uint4*>(row + k) : make_uint4(0, 0, 0, 0);
}

// A lane's part of 32 k: 16 weight rows of which it has two, and a token.
__device__ void multiply_half(float (&sums)[4], uint4 low, uint4 high, uint4 token) {
  const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
  gemm::multiply_add(sums, first, token.x, token.y);
  gemm::multiply_add(sums, second, token.z, token.w);
}

// Tiles of 16 kColumnTiles rows of weights and 8 kRowTiles of x. kTurns: turns of a warp whose loads are under way at
// once.
template <int kColumnTiles, int kRowTiles, int kTurns, class A, class Out>
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(Product<Bf16, Out> all) {
  const Product<Bf16, Out> p = own_batch(all);
  constexpr int kColumns = 16 * kColumnTiles, kRows = 8 * kRowTiles, kPitch = kColumns + 4;
  __shared__ float warp_sums[kWarps][kRows][kPitch];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;  // as the instruction numbers rows and columns
  const int part_turns = ceil_div(ceil_div(p.depth, kTurn), kParts);
  const int part_begin = warp * part_turns * kTurn, part_end = min(p.depth, part_begin + part_turns * kTurn);
  const int first_tile = column_tile(p) * kColumnTiles;

  uint4 a[kTurns][2][kColumnTiles][2];
  const auto load_weights = [&](const Bf16* w, int begin) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = begin + t * kTurn + half * kHalf + q * 8;
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
          for (int high = 0; high < 2; ++high) {
            const int row = weight_row<A>(p, first_tile + i, high * 8 + g);
            a[t][half][i][high] = load16(w + static_cast<int64_t>(row) * p.depth, k, k < part_end && row < p.width);
          }
        }
      }
    }
  };
  let_next_start();
  bool loaded = p.offsets == nullptr;  // nobody writes weights, and these are known
  if (loaded) load_weights(p.w, part_begin);
  wait_for_work_before();
  const Work<Bf16> work = find_work(p, kRows);

  for (int tile = work.row_begin; tile < work.row_end; tile += kRows) {
    const Bf16* x[kRowTiles];  // null: there is no such row
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = tile + j * 8 + g;
      x[j] = row < work.row_end ? row_of_x(p, row) : nullptr;
    }
    float sums[kColumnTiles][kRowTiles][4] = {};
    for (int begin = part_begin; begin < part_end; begin += kTurns * kTurn) {
      if (!loaded) load_weights(work.w, begin);
      loaded = false;
      uint4 b[kTurns][2][kRowTiles];
#pragma unroll
      for (int t = 0; t < kTurns; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = begin + t * kTurn + half * kHalf + q * 8;
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) b[t][half][j] = load16(x[j], k, k < part_end && x[j] != nullptr);
        }
      }
#pragma unroll
      for (int t = 0; t < kTurns; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              multiply_half(sums[i][j], a[t][half][i][0], a[t][half][i][1], b[t][half][j]);
            }
          }
        }
      }
    }
    __syncthreads();  // what was there has been read
#pragma unroll
    for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          warp_sums[warp][j * 8 + q * 2 + c % 2][i * 16 + g + c / 2 * 8] = sums[i][j][c];
        }
      }
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kColumns / 2; at += kThreads) {
      const int row = at / (kColumns / 2), i = at % (kColumns / 2) / 8, r = at % 8;
      if (tile + row >= work.row_end) continue;
      float low = warp_sums[0][row][i * 16 + r], high = warp_sums[0][row][i * 16 + r + 8];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        low += warp_sums[w][row][i * 16 + r];
        high += warp_sums[w][row][i * 16 + r + 8];
      }
      store_pair<A>(p, tile + row, first_tile + i, r, low, high);
    }
  }
}

// Many rows: tiles of kColumns rows of weights and kRows of x, kColumnWarps x kRowWarps warps, each with 16
// kColumnTiles x 8 kRowTiles of it. By parts, a tile is a cluster's of kParts blocks.
template <int kColumnWarps, int kRowWarps, int kColumnTiles, int kRowTiles, bool kByParts>
struct Tile {
  static constexpr int kColumns = kColumnWarps * kColumnTiles * 16, kRows = kRowWarps * kRowTiles * 8;
  static constexpr int kBlocks = kByParts ? kParts : 1;
  static constexpr int kStages = 4;
  static constexpr int kStageElements = (kColumns + kRows) * kTurn;
  static constexpr int kSharedBytes = kStages * kStageElements * static_cast<int>(sizeof(Bf16));
  static constexpr int kPitch = kColumns + 4;  // of a part's sums, which lie where the stages were
  static_assert(kColumnWarps * kRowWarps == kWarps && kRows % kParts == 0);
  static_assert(kRows * kPitch * static_cast<int>(sizeof(float)) <= kSharedBytes);
};

// Where the `chunk`th 16 bytes of a row of a turn lie in a stage: rows take turns with the two halves, so that eight
// lanes which read four of each of two rows meet no bank twice.
__device__ int staged(int row, int chunk) { return row * kTurn + (chunk ^ (row % 2 * 4)) * 8; }

// The sum of a tile's parts, of which each block of a cluster has one: [kRows][kPitch]. Blocks have some rows each.
template <class Block, class A, class Out>
__device__ void store_parts(const Product<Bf16, Out>& p, const Work<Bf16>& work, float* part_sums, int first_tile) {
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const float* parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] = cluster.map_shared_rank(part_sums, static_cast<unsigned>(part));
  }
  constexpr int kOwnRows = Block::kRows / kParts, kPairs = Block::kColumns / 2;
  const int first_row = static_cast<int>(cluster.block_rank()) * kOwnRows;
  for (int at = static_cast<int>(threadIdx.x); at < kOwnRows * kPairs; at += kThreads) {
    const int row = first_row + at / kPairs, i = at % kPairs / 8, r = at % 8;
    if (work.row_begin + row >= work.row_end) continue;
    float low[kParts], high[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float* const sum = parts[part] + row * Block::kPitch + i * 16 + r;
      low[part] = sum[0], high[part] = sum[8];
    }
#pragma unroll
    for (int part = 1; part < kParts; ++part) low[0] += low[part], high[0] += high[part];
    store_pair<A>(p, work.row_begin + row, first_tile + i, r, low[0], high[0]);
  }
  cluster.sync();  // a block's shared memory is there until all have read it
}

template <int kColumnWarps, int kRowWarps, int kColumnTiles, int kRowTiles, bool kByParts, class A, class Out>
__global__ void __launch_bounds__(kThreads, kRowTiles > 4 ? 1 : 2) many_rows_kernel(Product<Bf16, Out> all) {
  const Product<Bf16, Out> p = own_batch(all);
  using Block = Tile<kColumnWarps, kRowWarps, kColumnTiles, kRowTiles, kByParts>;
  constexpr int kStages = Block::kStages, kChunks = kTurn / 8, kLoadRows = kThreads / kChunks;  // rows of one round
  constexpr int kWeightLoads = Block::kColumns / kLoadRows, kLoads = kWeightLoads + Block::kRows / kLoadRows;
  static_assert(Block::kColumns % kLoadRows == 0 && Block::kRows % kLoadRows == 0 && kLoadRows % 2 == 0);
  extern __shared__ uint4 shared[];
  auto* const stages = reinterpret_cast<Bf16*>(shared);
  begin_behind_work_before();
  const Work<Bf16> work = find_work(p, Block::kRows, Block::kBlocks);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;
  const int warp_column = warp % kColumnWarps * kColumnTiles, warp_row = warp / kColumnWarps * kRowTiles;  // in tiles
  const int first_tile = work.column_tile * (Block::kColumns / 16);
  const int all_turns = ceil_div(p.depth, kTurn), part_turns = ceil_div(all_turns, kParts);
  const int part = static_cast<int>(blockIdx.x) % Block::kBlocks;
  const int first_turn = min(part * part_turns, all_turns);
  const int num_turns = kByParts ? min(part_turns, all_turns - first_turn) : all_turns;

  // A thread loads the same 16 bytes of every kLoadRows-th row of a stage.
  const int load_row = static_cast<int>(threadIdx.x) / kChunks, load_chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int load_begin = first_turn * kTurn + load_chunk * 8;
  const uint32_t load_target = shared_address(stages + staged(load_row, load_chunk));
  const Bf16* sources[kLoads];
  unsigned there = 0;  // a bit for each
#pragma unroll
  for (int i = 0; i < kWeightLoads; ++i) {
    const int local = i * kLoadRows + load_row, row = weight_row<A>(p, first_tile + local / 16, local % 16);
    sources[i] = work.w + (row < p.width ? static_cast<int64_t>(row) * p.depth : 0) + load_begin;
    there |= row < p.width ? 1U << i : 0;
  }
  // A lane's 16 bytes of either half of a turn, in its warp's rows of weights and of x.
  const Bf16 *own_weights[2], *own_x[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    own_weights[half] = stages + staged(warp_column * 16 + g, half * 4 + q);
    own_x[half] = stages + staged(Block::kColumns + warp_row * 8 + g, half * 4 + q);
  }

  const auto stage_of = [](int turn) { return static_cast<unsigned>(turn) % kStages * Block::kStageElements; };

  for (int tile = work.row_begin; tile < work.row_end; tile += Block::kRows) {
    there &= (1U << kWeightLoads) - 1;
#pragma unroll
    for (int i = kWeightLoads; i < kLoads; ++i) {
      const int row = tile + (i - kWeightLoads) * kLoadRows + load_row;
      sources[i] = (row < work.row_end ? row_of_x(p, row) : p.x) + load_begin;
      there |= row < work.row_end ? 1U << i : 0;
    }
    const auto load_turn = [&](int turn) {
      const int k = turn * kTurn;
      const unsigned wanted = load_begin + k < p.depth ? there : 0;
      const uint32_t target = load_target + stage_of(turn) * sizeof(Bf16);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint32_t own_target = target + i * kLoadRows * kTurn * sizeof(Bf16);
        if (i < kWeightLoads) {
          copy_async16_ahead(own_target, sources[i] + k, (wanted >> i & 1) != 0);
        } else {
          copy_async16(own_target, sources[i] + k, (wanted >> i & 1) != 0);
        }
      }
    };

    float sums[kColumnTiles][kRowTiles][4] = {}, totals[kColumnTiles][kRowTiles][4] = {};
#pragma unroll
    for (int turn = 0; turn < kStages - 1; ++turn) {
      if (turn < num_turns) load_turn(turn);
      commit_copies();
    }
    int left = part_turns;  // of the part that is worked on
    for (int turn = 0; turn < num_turns; ++turn) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the turn is there for all, and the one before it has been read
      if (turn + kStages - 1 < num_turns) load_turn(turn + kStages - 1);
      commit_copies();
      const unsigned stage = stage_of(turn);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto read = [&](const Bf16* own, int row) {
          return *reinterpret_cast<const uint4*>(own + stage + row * kTurn);
        };
        uint4 a[kColumnTiles][2], b[kRowTiles];
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
          a[i][0] = read(own_weights[half], i * 16);
          a[i][1] = read(own_weights[half], i * 16 + 8);
        }
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) b[j] = read(own_x[half], j * 8);
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) multiply_half(sums[i][j], a[i][0], a[i][1], b[j]);
        }
      }
      if (kByParts || (--left > 0 && turn + 1 < num_turns)) continue;
      left = part_turns;
#pragma unroll
      for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            totals[i][j][c] += sums[i][j][c];
            sums[i][j][c] = 0.0F;
          }
        }
      }
    }
    wait_copies<0>();
    __syncthreads();  // the stages are overwritten
    if constexpr (kByParts) {
      auto* const part_sums = reinterpret_cast<float*>(shared);
#pragma unroll
      for (int i = 0; i < kColumnTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int row = (warp_row + j) * 8 + q * 2 + c % 2, column = (warp_column + i) * 16 + g + c / 2 * 8;
            part_sums[row * Block::kPitch + column] = sums[i][j][c];
          }
        }
      }
      return store_parts<Block, A>(p, work, part_sums, first_tile);
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = tile + (warp_row + j) * 8 + q * 2 + c;
        if (row >= work.row_end) continue;
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
          store_pair<A>(p, row, first_tile + warp_column + i, g, totals[i][j][c], totals[i][j][c + 2]);
        }
      }
    }
  }
}

template <class T, class Out>
__global__ void __launch_bounds__(kThreads) plain_kernel(Product<T, Out> all) {
  const Product<T, Out> p = own_batch(all);
  begin_behind_work_before();
  const Work<T> work = find_work(p, kTokens);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = work.column_tile * kWarps + warp;
  if (column >= p.width) return;
  const T* w = work.w + static_cast<int64_t>(column) * p.depth;
  for (int tile = work.row_begin; tile < work.row_end; tile += kTokens) {
    float sums[kTokens] = {};
    for (int k = lane * 8; k < p.depth; k += kWarp * 8) {
      float weights[8];
      load8(w, k, p.depth, p.vector, weights);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (tile + t >= work.row_end) continue;
        float values[8];
        load8(row_of_x(p, tile + t), k, p.depth, p.vector, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t] += values[i] * weights[i];
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[t]);
      if (lane == 0 && tile + t < work.row_end) store(p, tile + t, column, sum);
    }
  }
}

// A block, or so many, for each slice of `columns` rows of weights and, of a plain product, each tile of `rows`; of
// experts there are at most as many with rows as there are rows.
template <class T, class Out>
dim3 grid_of(const Product<T, Out>& p, int columns, int rows, int tile_blocks = 1) {
  const int64_t slices = ceil_div<int64_t>(p.width, columns);
  if (p.offsets == nullptr) {
    return {grid_size(int64_t{tile_blocks} * ceil_div(p.num_rows, rows)), short_grid_size(slices),
            short_grid_size(p.num_batches)};
  }
  return {grid_size(slices), short_grid_size(std::min(p.num_experts, p.num_rows)), 1};
}

template <class A, class Out>
void run_mma(Context& ctx, const Product<Bf16, Out>& p) {
  const auto few = [&]<int kColumnTiles, int kRowTiles, int kTurns>() {
    launch_early(ctx, few_rows_kernel<kColumnTiles, kRowTiles, kTurns, A, Out>,
                 grid_of(p, 16 * kColumnTiles, 8 * kRowTiles), kThreads, 0, p);
  };
  const auto many = [&]<int kColumnWarps, int kRowWarps, int kColumnTiles, int kRowTiles, bool kByParts>() {
    using Block = Tile<kColumnWarps, kRowWarps, kColumnTiles, kRowTiles, kByParts>;
    const auto kernel = many_rows_kernel<kColumnWarps, kRowWarps, kColumnTiles, kRowTiles, kByParts, A, Out>;
    allow_dynamic_shared(kernel, Block::kSharedBytes);
    launch_clusters(ctx, kernel, grid_of(p, Block::kColumns, Block::kRows, Block::kBlocks), kThreads, Block::kBlocks,
                    Block::kSharedBytes, p);
  };
  // Of experts, by how many rows one has on average: it may have more.
  const int rows = ceil_div(p.num_rows, p.num_experts);
  const bool grouped = p.offsets != nullptr;
  if (rows <= (grouped ? 4 : 8)) return few.template operator()<1, 1, 4>();
  if (!grouped && rows <= 32) return few.template operator()<2, 4, 1>();
  if (rows <= 32) return many.template operator()<8, 1, 1, 4, false>();
  if (grouped) return many.template operator()<4, 2, 2, 4, false>();
  // By parts while blocks are done in some four turns of the device; larger tiles read less, where there are enough.
  const int64_t blocks = int64_t{kParts} * p.num_batches * ceil_div(p.width, 128) * ceil_div(rows, 64);
  if (blocks <= 8 * ctx.num_sms) return many.template operator()<4, 2, 2, 4, true>();
  if (rows <= 64) return many.template operator()<4, 2, 2, 4, false>();
  return many.template operator()<4, 2, 2, 8, false>();
}

template <class T, class Out>
Product<T, Out> product_of(const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  const int64_t num_rows = x.num_rows(), width = y.dim(1), depth = x.width();
  NMOE_CHECK(num_rows <= INT32_MAX && width <= INT32_MAX / 2 && depth <= INT32_MAX / 2, "a product of {} and {}",
             x.source.shape(), w.shape());
  return {.x = x.source.data<T>(),
          .index = x.index.defined() ? x.index.data<int32_t>() : nullptr,
          .w = w.data<T>(),
          .addend = addend.defined() ? addend.data<Out>() : nullptr,
          .offsets = offsets.defined() ? offsets.data<int32_t>() : nullptr,
          .y = y.data<Out>(),
          .row_weight = nullptr,
          .h = nullptr,
          .x_stride = depth,
          .y_stride = width,
          .x_step = 0,
          .w_step = 0,
          .y_step = 0,
          .num_rows = static_cast<int>(num_rows),
          .width = static_cast<int>(width),
          .depth = static_cast<int>(depth),
          .num_experts = offsets.defined() ? static_cast<int>(w.dim(0)) : 1,
          .num_batches = 1,
          .hidden = 0,
          .vector = can_vectorise(depth, x.source, w)};
}

template <class T, class Out>
void run_product(Context& ctx, const Product<T, Out>& product) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (product.vector) return run_mma<NoActivation>(ctx, product);
  }
  launch_early(ctx, plain_kernel<T, Out>, grid_of(product, kWarps, kTokens), kThreads, 0, product);
}

void dispatch(Context& ctx, const OperandRows& x, Tensor w, Tensor addend, Tensor offsets, Tensor y) {
  NMOE_CHECK(w.dtype() == x.source.dtype() && (y.dtype() == w.dtype() || y.dtype() == DType::kF32),
             "product of {} and {} into {}", dtype_name(x.source.dtype()), dtype_name(w.dtype()),
             dtype_name(y.dtype()));
  const auto run = [&]<class T, class Out>() { run_product(ctx, product_of<T, Out>(x, w, addend, offsets, y)); };
  dispatch_act(w.dtype(), [&](auto element) {
    using T = decltype(element);
    if (y.dtype() == DType::kF32) {
      run.template operator()<T, float>();
    } else {
      run.template operator()<T, T>();
    }
  });
}

}  // namespace

void invariant_product(Context& ctx, Tensor x, Tensor w, Tensor addend, Tensor y) {
  dispatch(ctx, x, w, addend, {}, y);
}

void invariant_grouped_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor y) {
  dispatch(ctx, x, w, {}, offsets, y);
}

void invariant_batched_product(Context& ctx, Tensor x, Tensor w, Tensor y) {
  const int64_t rows = x.dim(0), batches = x.dim(1), depth = x.dim(2), width = y.dim(2);
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    run_product(ctx, Product<T, T>{.x = x.data<T>(),
                                   .index = nullptr,
                                   .w = w.rows_data<T>(),
                                   .addend = nullptr,
                                   .offsets = nullptr,
                                   .y = y.data<T>(),
                                   .row_weight = nullptr,
                                   .h = nullptr,
                                   .x_stride = batches * depth,
                                   .y_stride = batches * width,
                                   .x_step = depth,
                                   .w_step = w.stride(),
                                   .y_step = width,
                                   .num_rows = static_cast<int>(rows),
                                   .width = static_cast<int>(width),
                                   .depth = static_cast<int>(depth),
                                   .num_experts = 1,
                                   .num_batches = static_cast<int>(batches),
                                   .hidden = 0,
                                   .vector = can_vectorise(depth, x, w)});
  });
}

void invariant_activation(Context& ctx, const GroupedActivationForward& args) {
  const int64_t hidden = args.h.dim(1);
  if (args.w.dtype() == DType::kBF16 && args.pre.dtype() == DType::kBF16) {
    auto product = product_of<Bf16, Bf16>(args.x, args.w, {}, args.offsets, args.pre);
    if (product.vector) {
      product.row_weight = args.row_weight.defined() ? args.row_weight.data<float>() : nullptr;
      product.h = args.h.data<Bf16>();
      product.hidden = static_cast<int>(hidden);
      return dispatch_activation(args.kind, [&]<class A>(A) { run_mma<A>(ctx, product); });
    }
  }
  dispatch(ctx, args.x, args.w, {}, args.offsets, args.pre);
  const bool grouped = args.offsets.defined();
  const int64_t num_experts = grouped ? args.w.dim(0) : 0;  // the last offset is the number of rows
  activation_forward(ctx, {.kind = args.kind,
                           .pre = args.pre,
                           .row_weight = args.row_weight,
                           .h = args.h,
                           .num_rows = grouped ? args.offsets.rows(num_experts, num_experts + 1) : Tensor()});
}

}  // namespace nmoe::cuda
