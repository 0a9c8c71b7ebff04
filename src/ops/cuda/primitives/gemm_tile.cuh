// One tile of a matrix product, by one block: C[i, j] = sum over k of A[i, k] * B[j, k], accumulated in fp32.
//
//   BF16: 128 x 128 of C, k in steps of 32. Four stages of cp.async fill shared memory ahead of use; eight warps of
//         64 x 32 each feed mma.sync m16n8k16 by ldmatrix.
//   F32:  64 x 64 of C, k in steps of 16, fused multiply-adds on 4 x 4 values a thread.
//
// A sum has one order, that of k, whatever the other rows are. Operands lie in memory in either order, and any size is
// right: what is outside of an operand counts as zero, and `store` is told of it only by indices it has to check.
#pragma once

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

// A[i, k] is data[i * stride + k] when kKMajor and data[k * stride + i] otherwise.
template <class T, bool kKMajor>
struct GemmOperand {
  const T* data;
  int64_t stride;
  int size;  // values of i: those in [0, size) exist
  bool
      vectors;  // 16-byte accesses are possible: the stride and the contiguous size are multiples of 8, data is aligned
};

template <class T>
struct GemmTile;

// What a kernel that calls gemm_tile<T> is launched with. C's tile is kRows x kCols.
template <>
struct GemmTile<__nv_bfloat16> {
  static constexpr int kRows = 128, kCols = 128, kDepth = 32, kStages = 4;
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerSm = 2;

  static constexpr int kSide = 128;  // of both operands
  // Rows of shared memory are padded by 16 bytes: the eight rows that ldmatrix reads at once then fall in different
  // banks.
  static constexpr int kPad = 8;
  static constexpr int kKMajorStride = kDepth + kPad;  // [kSide][kDepth]
  static constexpr int kIMajorStride = kSide + kPad;   // [kDepth][kSide]
  static constexpr int kOperandElements =
      kSide * kKMajorStride > kDepth* kIMajorStride ? kSide* kKMajorStride : kDepth* kIMajorStride;
  static constexpr int kSharedBytes = 2 * kStages * kOperandElements * 2;

  static constexpr int kWarpRows = 64, kWarpCols = 32;
  static_assert(kRows / kWarpRows * (kCols / kWarpCols) * kWarp == kThreads && kRows == kSide && kCols == kSide);
  static_assert(kKMajorStride % 8 == 0 && kIMajorStride % 8 == 0 && kOperandElements % 8 == 0);
};
template <>
struct GemmTile<float> {
  static constexpr int kRows = 64, kCols = 64, kDepth = 16;
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kStride = 64 + 4;  // both operands lie as [kDepth][64]
  static constexpr int kSharedBytes = 2 * kDepth * kStride * 4;
};

namespace gemm {

using Bf16 = __nv_bfloat16;
using Bf16Tile = GemmTile<Bf16>;
using F32Tile = GemmTile<float>;

__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One stage of an operand: [i0, i0 + 128) x [k0, k0 + 32).
template <bool kKMajor>
__device__ void load_stage(Bf16* stage, const GemmOperand<Bf16, kKMajor>& x, int i0, int k0, int depth) {
  constexpr int kChunk = 8;
  constexpr int kChunksPerRow = (kKMajor ? Bf16Tile::kDepth : Bf16Tile::kSide) / kChunk;
  constexpr int kChunks = Bf16Tile::kSide * Bf16Tile::kDepth / kChunk;
  constexpr int kStride = kKMajor ? Bf16Tile::kKMajorStride : Bf16Tile::kIMajorStride;
#pragma unroll
  for (int first = 0; first < kChunks; first += Bf16Tile::kThreads) {
    const int chunk = first + static_cast<int>(threadIdx.x);
    const int row = chunk / kChunksPerRow, column = chunk % kChunksPerRow * kChunk;
    const int i = i0 + (kKMajor ? row : column), k = k0 + (kKMajor ? column : row);
    Bf16* target = stage + row * kStride + column;
    const int64_t index = kKMajor ? i * x.stride + k : k * x.stride + i;
    if (x.vectors) {
      const bool exists = i < x.size && k < depth;
      copy_async16(target, exists ? x.data + index : x.data, exists);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const bool exists = kKMajor ? i < x.size && k + j < depth : i + j < x.size && k < depth;
        target[j] = exists ? x.data[index + j] : from_float<Bf16>(0.0F);
      }
    }
  }
}

// The 16 x 16 of A at (i, k) of a stage, as mma wants it: rows i..i+7 and i+8..i+15 of k..k+7, then of k+8..k+15.
template <bool kKMajor>
__device__ void load_a(const Bf16* stage, int i, int k, unsigned (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, in_matrix = lane % 8, matrix = lane / 8;
  const int i_half = matrix % 2 * 8, k_half = matrix / 2 * 8;
  if constexpr (kKMajor) {
    load_matrices<false>(stage + (i + i_half + in_matrix) * Bf16Tile::kKMajorStride + k + k_half, a);
  } else {
    load_matrices<true>(stage + (k + k_half + in_matrix) * Bf16Tile::kIMajorStride + i + i_half, a);
  }
}

// The 16 x 16 of B at (j, k): columns j..j+7 of k..k+7 and of k+8..k+15, then columns j+8..j+15.
template <bool kKMajor>
__device__ void load_b(const Bf16* stage, int j, int k, unsigned (&b)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, in_matrix = lane % 8, matrix = lane / 8;
  const int j_half = matrix / 2 * 8, k_half = matrix % 2 * 8;
  if constexpr (kKMajor) {
    load_matrices<false>(stage + (j + j_half + in_matrix) * Bf16Tile::kKMajorStride + k + k_half, b);
  } else {
    load_matrices<true>(stage + (k + k_half + in_matrix) * Bf16Tile::kIMajorStride + j + j_half, b);
  }
}

// [i0, i0 + 64) x [k0, k0 + 16) of an operand, as [kDepth][kStride].
template <bool kKMajor>
__device__ void load_stage(float* stage, const GemmOperand<float, kKMajor>& x, int i0, int k0, int depth) {
  constexpr int kSide = F32Tile::kRows, kElements = kSide * F32Tile::kDepth;
#pragma unroll
  for (int first = 0; first < kElements; first += F32Tile::kThreads) {
    const int element = first + static_cast<int>(threadIdx.x);
    const int i = kKMajor ? element / F32Tile::kDepth : element % kSide;
    const int k = kKMajor ? element % F32Tile::kDepth : element / kSide;
    const bool exists = i0 + i < x.size && k0 + k < depth;
    const int64_t index = kKMajor ? (i0 + i) * x.stride + k0 + k : (k0 + k) * x.stride + i0 + i;
    stage[k * F32Tile::kStride + i] = exists ? x.data[index] : 0.0F;
  }
}

}  // namespace gemm

// The tile of C whose first row is i0 and first column j0. Every thread of the block calls it; store(i, j, c0, c1) gets
// C[i, j] and C[i, j + 1], j even, for all of the tile, also beyond the operands. `shared`: kSharedBytes, aligned
// to 16.
template <bool kAKMajor, bool kBKMajor, class Store>
__device__ void gemm_tile(const GemmOperand<__nv_bfloat16, kAKMajor>& a, const GemmOperand<__nv_bfloat16, kBKMajor>& b,
                          int depth, int i0, int j0, void* shared, Store&& store) {
  using Tile = GemmTile<__nv_bfloat16>;
  constexpr int kRowTiles = Tile::kWarpRows / 16, kColTiles = Tile::kWarpCols / 8;
  auto* stages_a = static_cast<__nv_bfloat16*>(shared);
  auto* stages_b = stages_a + Tile::kStages * Tile::kOperandElements;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_i = warp / (Tile::kCols / Tile::kWarpCols) * Tile::kWarpRows;
  const int warp_j = warp % (Tile::kCols / Tile::kWarpCols) * Tile::kWarpCols;
  const int num_steps = ceil_div(depth, Tile::kDepth);

  // A group is committed for every step, be it empty, so that counting groups counts steps.
  const auto load = [&](int step) {
    if (step < num_steps) {
      const int stage = step % Tile::kStages;
      gemm::load_stage(stages_a + stage * Tile::kOperandElements, a, i0, step * Tile::kDepth, depth);
      gemm::load_stage(stages_b + stage * Tile::kOperandElements, b, j0, step * Tile::kDepth, depth);
    }
    commit_copies();
  };

  float c[kRowTiles][kColTiles][4] = {};
  for (int step = 0; step < Tile::kStages - 1; ++step) load(step);
  for (int step = 0; step < num_steps; ++step) {
    wait_copies<Tile::kStages - 2>();
    __syncthreads();  // this step's stage is there for all, and nobody reads the one before it any more
    load(step + Tile::kStages - 1);
    const __nv_bfloat16* stage_a = stages_a + step % Tile::kStages * Tile::kOperandElements;
    const __nv_bfloat16* stage_b = stages_b + step % Tile::kStages * Tile::kOperandElements;
#pragma unroll
    for (int k = 0; k < Tile::kDepth; k += 16) {
      unsigned fragments_a[kRowTiles][4], fragments_b[kColTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) gemm::load_a<kAKMajor>(stage_a, warp_i + 16 * i, k, fragments_a[i]);
#pragma unroll
      for (int j = 0; j < kColTiles / 2; ++j) gemm::load_b<kBKMajor>(stage_b, warp_j + 16 * j, k, fragments_b[j]);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
          gemm::multiply_add(c[i][j], fragments_a[i], fragments_b[j / 2][j % 2 * 2], fragments_b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  __syncthreads();  // the next tile's loads overwrite the stages

#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColTiles; ++j) {
      const int row = i0 + warp_i + 16 * i + lane / 4, column = j0 + warp_j + 8 * j + lane % 4 * 2;
      store(row, column, c[i][j][0], c[i][j][1]);
      store(row + 8, column, c[i][j][2], c[i][j][3]);
    }
  }
}

template <bool kAKMajor, bool kBKMajor, class Store>
__device__ void gemm_tile(const GemmOperand<float, kAKMajor>& a, const GemmOperand<float, kBKMajor>& b, int depth,
                          int i0, int j0, void* shared, Store&& store) {
  using Tile = GemmTile<float>;
  auto* stage_a = static_cast<float*>(shared);
  auto* stage_b = stage_a + Tile::kDepth * Tile::kStride;
  const int thread_i = static_cast<int>(threadIdx.x) / 16 * 4, thread_j = static_cast<int>(threadIdx.x) % 16 * 4;
  float c[4][4] = {};
  for (int k0 = 0; k0 < depth; k0 += Tile::kDepth) {
    gemm::load_stage(stage_a, a, i0, k0, depth);
    gemm::load_stage(stage_b, b, j0, k0, depth);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Tile::kDepth; ++k) {
      const float4 a4 = *reinterpret_cast<const float4*>(stage_a + k * Tile::kStride + thread_i);
      const float4 b4 = *reinterpret_cast<const float4*>(stage_b + k * Tile::kStride + thread_j);
      const float a_values[4] = {a4.x, a4.y, a4.z, a4.w}, b_values[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) c[i][j] = fmaf(a_values[i], b_values[j], c[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) store(i0 + thread_i + i, j0 + thread_j + j, c[i][j], c[i][j + 1]);
  }
}

}  // namespace nmoe::cuda
