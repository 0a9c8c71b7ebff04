// Products of tiles of 64 x 64 in shared memory, of which recurrences' kernels for any sizes consist: D[i, j] += sum
// over k of A[i, k] B[j, k], by a block of eight warps, 16 x 32 of D each. What is beyond a matrix is zero in its tile.
//
// BF16: mma.m16n8k16, 16 consecutive k an instruction, ascending. F32: fused multiply-adds, k ascending. Sums go on
// from what D has, so that a sum over several tiles is one chain.
#pragma once

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda::tiles {

constexpr int kSide = 64;
constexpr int kThreads = 256;

// A tile's rows, padded by 16 bytes: the eight rows that ldmatrix reads at once then fall in different banks.
template <class T>
constexpr int kStride = kSide + 16 / static_cast<int>(sizeof(T));
template <class T>
constexpr int kTileBytes = kSide* kStride<T>* static_cast<int>(sizeof(T));

// A matrix in memory, of which a tile is loaded: data[i * stride + j] for i < rows, j < columns.
template <class T>
struct Matrix {
  const T* data;
  int64_t stride;
  int rows, columns;
  bool vector;  // its rows from every eighth column on are aligned to 16 bytes, and columns is a multiple of 8

  // From (i, j) on.
  __device__ Matrix from(int i, int j) const { return {data + i * stride + j, stride, rows - i, columns - j, vector}; }
};

// tile[i, j] = factor(i) x[i, j], rounded to T.
template <class T, class Source, class Factor>
__device__ void load_tile(T* tile, const Matrix<Source>& x, const Factor& factor) {
  constexpr int kChunks = kSide / 8;
#pragma unroll
  for (int first = 0; first < kSide * kChunks; first += kThreads) {
    const int chunk = first + static_cast<int>(threadIdx.x), i = chunk / kChunks, j = chunk % kChunks * 8;
    float v[8] = {};
    if (i < x.rows && j < x.columns) {
      load8(x.data + i * x.stride, j, x.columns, x.vector, v);
      const float scale = factor(i);
#pragma unroll
      for (float& value : v) value *= scale;
    }
    T* const target = tile + i * kStride<T> + j;
    if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<uint4*>(target) = pack8(v);
    } else {
      store8(target, v);
    }
  }
}
// tile = x. Copies are under way at return, in no group yet.
template <class T>
__device__ void copy_tile(T* tile, const Matrix<T>& x) {
  if constexpr (sizeof(T) == 2) {
    if (x.vector) {
      constexpr int kChunks = kSide / 8;
#pragma unroll
      for (int first = 0; first < kSide * kChunks; first += kThreads) {
        const int chunk = first + static_cast<int>(threadIdx.x), i = chunk / kChunks, j = chunk % kChunks * 8;
        const bool exists = i < x.rows && j < x.columns;
        copy_async16(tile + i * kStride<T> + j, exists ? x.data + i * x.stride + j : x.data, exists);
      }
      return;
    }
  }
  load_tile(tile, x, [](int) { return 1.0F; });
}
template <class T>
__device__ void load_tile(T* tile, const Matrix<T>& x) {
  copy_tile(tile, x);
  commit_copies();
}

// A thread's part of D: d[n][2 h + c] is (row(h), column(n) + c).
struct Sums {
  float d[4][4] = {};

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int row(int h) { return warp() / 2 * 16 + lane() / 4 + 8 * h; }
  __device__ static int column(int n) { return warp() % 2 * 32 + 8 * n + lane() % 4 * 2; }

  // fn(i, j, d[i, j])
  template <class Fn>
  __device__ void each(const Fn& fn) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) fn(row(c / 2), column(n) + c % 2, d[n][c]);
    }
  }
  // Rounded to T.
  template <class T>
  __device__ void store(T* tile) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) store2(tile + row(h) * kStride<T> + column(n), d[n][2 * h], d[n][2 * h + 1]);
    }
  }
};

// kDepthA: A's tile has rows of k, [k, i], and else [i, k]; so B's. Of k below `depth`, rounded up to 16.
template <bool kDepthA, bool kDepthB>
__device__ void multiply(const __nv_bfloat16* a, const __nv_bfloat16* b, int depth, Sums& sums) {
  constexpr int kRow = kStride<__nv_bfloat16>;
  const int lane = Sums::lane(), in_matrix = lane % 8, matrix = lane / 8;
  const int i0 = Sums::warp() / 2 * 16, j0 = Sums::warp() % 2 * 32, even = matrix % 2 * 8, upper = matrix / 2 * 8;
#pragma unroll
  for (int k = 0; k < kSide; k += 16) {
    if (k >= depth) break;
    unsigned left[4];
    load_matrices<kDepthA>(
        kDepthA ? a + (k + upper + in_matrix) * kRow + i0 + even : a + (i0 + even + in_matrix) * kRow + k + upper,
        left);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int j = j0 + 16 * n;
      unsigned right[4];
      load_matrices<kDepthB>(
          kDepthB ? b + (k + even + in_matrix) * kRow + j + upper : b + (j + upper + in_matrix) * kRow + k + even,
          right);
      gemm::multiply_add(sums.d[2 * n], left, right[0], right[1]);
      gemm::multiply_add(sums.d[2 * n + 1], left, right[2], right[3]);
    }
  }
}
template <bool kDepthA, bool kDepthB>
__device__ void multiply(const float* a, const float* b, int depth, Sums& sums) {
  constexpr int kRow = kStride<float>;
  const auto of = [](const float* tile, bool is_depth, int i, int k) {
    return is_depth ? tile[k * kRow + i] : tile[i * kRow + k];
  };
#pragma unroll 4
  for (int k = 0; k < min(ceil_div(depth, 16) * 16, kSide); ++k) {
    const float left[2] = {of(a, kDepthA, Sums::row(0), k), of(a, kDepthA, Sums::row(1), k)};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float right = of(b, kDepthB, Sums::column(n) + c, k);
        sums.d[n][c] = fmaf(left[0], right, sums.d[n][c]);
        sums.d[n][2 + c] = fmaf(left[1], right, sums.d[n][2 + c]);
      }
    }
  }
}

// Two operands' tiles, and what becomes of them: load_a(tile), load_b(tile). All threads of a block.
template <bool kDepthA, bool kDepthB, class T, class LoadA, class LoadB>
__device__ void load_and_multiply(T* a, T* b, int depth, Sums& sums, const LoadA& load_a, const LoadB& load_b) {
  __syncthreads();  // nobody reads what was in the tiles
  load_a(a);
  load_b(b);
  wait_copies<0>();
  __syncthreads();
  multiply<kDepthA, kDepthB>(a, b, depth, sums);
}

// Adds what a thread has for its rows, value[h] of row(h), over all that have a part of them: row_sums[i] += or =, i <
// 64. `parts`: [2, 64]. All threads of a block.
__device__ inline void add_rows(float (&value)[2], float* parts, float* row_sums, bool accumulate) {
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    value[h] += __shfl_xor_sync(kAllLanes, value[h], 1);
    value[h] += __shfl_xor_sync(kAllLanes, value[h], 2);
    if (Sums::lane() % 4 == 0) parts[Sums::warp() % 2 * kSide + Sums::row(h)] = value[h];
  }
  __syncthreads();
  if (threadIdx.x < kSide) {
    const float sum = parts[threadIdx.x] + parts[kSide + threadIdx.x];
    row_sums[threadIdx.x] = accumulate ? row_sums[threadIdx.x] + sum : sum;
  }
}

// sums[t] = the sum of the terms of i >= t > j. terms: [64, 65], overwritten; parts: [2, 64]. All threads of a block.
__device__ inline void sum_rectangles(float* terms, float* parts, float* sums) {
  constexpr int kRow = kSide + 1;
  const int warp = Sums::warp(), lane = Sums::lane();
  for (int i = warp; i < kSide; i += kThreads / kWarp) {  // terms[i, t] = the sum over j < t
    float first = terms[i * kRow + 2 * lane];
    const float second = terms[i * kRow + 2 * lane + 1];
    float through = first + second;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float below = __shfl_up_sync(kAllLanes, through, offset);
      if (lane >= offset) through += below;
    }
    float before = __shfl_up_sync(kAllLanes, through, 1);
    if (lane == 0) before = 0.0F;
    terms[i * kRow + 2 * lane] = before;
    terms[i * kRow + 2 * lane + 1] = before + first;
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x) % kSide, quarter = static_cast<int>(threadIdx.x) / kSide;
  float sum = 0.0F;
#pragma unroll
  for (int row = 0; row < kSide / 4; ++row) {
    const int i = quarter * (kSide / 4) + row;
    sum += i >= t ? terms[i * kRow + t] : 0.0F;
  }
  if (quarter % 2 == 0) parts[quarter / 2 * kSide + t] = sum;
  __syncthreads();
  if (quarter % 2 != 0) parts[quarter / 2 * kSide + t] += sum;
  __syncthreads();
  if (quarter == 0) sums[t] = parts[t] + parts[kSide + t];
  __syncthreads();
}

}  // namespace nmoe::cuda::tiles
