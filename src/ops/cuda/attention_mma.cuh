// Tiles of BF16 in shared memory and their products by mma.sync.m16n8k16 (PTX ISA 8.0, section 9.7.13), for attention.
//
// A tile is rows of `size` values, a multiple of 16; a row starts kPad values after the one before ends, so that the
// eight 16-byte rows that ldmatrix reads at a time are in different banks.
//
// Who holds what, for lane = 4 * a + b: an accumulator [16, 8] is four floats, rows a and a + 8 (elements 0, 1 and
// 2, 3) of columns 2b and 2b + 1. Two accumulators beside each other, packed, are the left operand [16, 16] of a
// product that sums over their columns.
#pragma once

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/device.cuh"

namespace nmoe::cuda {

using Bf16 = __nv_bfloat16;

constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * kWarp;
constexpr int kWarpRows = 16;                     // of a tile: those of one warp's accumulators
constexpr int kTileRows = kMmaWarps * kWarpRows;  // of a block
constexpr int kPad = 8;
constexpr float kLog2e = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

__host__ __device__ constexpr int tile_stride(int size) { return size + kPad; }
__host__ __device__ constexpr int tile_values(int rows, int size) { return rows * tile_stride(size); }

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- from global to shared memory, in the background

// 16 bytes, or as many zeros.
__device__ inline void copy_async(void* shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(wanted ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kLeft` of this thread's commits are under way.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Starts to fill `tile` with the `kRows` tokens from `first` of one head of x [T, heads, size]; tokens from T on are 0.
template <int kRows>
__device__ void load_tile(Bf16* tile, const Bf16* x, int first, int num_tokens, int num_heads, int head, int size) {
  const int vectors = size / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * vectors; i += kMmaThreads) {
    const int row = i / vectors, column = i % vectors * 8, token = first + row;
    const bool exists = token < num_tokens;
    const Bf16* source = x + (static_cast<int64_t>(exists ? token : 0) * num_heads + head) * size + column;
    copy_async(tile + row * tile_stride(size) + column, source, exists);
  }
}

// --- operands

struct Left {  // [16, 16]
  uint32_t x[4];
};
struct Right {  // [16, 16]: two [16, 8] beside each other
  uint32_t x[4];
};

__device__ inline uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline Left pack(const float (&left)[4], const float (&right)[4]) {
  return {{pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]), pack(right[2], right[3])}};
}

// tile[row ... row + 16)[column ... column + 16) as a left operand.
__device__ inline Left load_left(const Bf16* tile, int stride, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t address = shared_address(tile + (row + lane % 16) * stride + column + lane / 16 * 8);
  Left a;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
               : "r"(address)
               : "memory");
  return a;
}

// The transpose of tile[row ... row + 16)[column ... column + 16): the product sums over the tile's columns.
__device__ inline Right load_right_transposed(const Bf16* tile, int stride, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t address = shared_address(tile + (row + lane / 16 * 8 + lane % 8) * stride + column + lane / 8 % 2 * 8);
  Right b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b.x[0]), "=r"(b.x[1]), "=r"(b.x[2]), "=r"(b.x[3])
               : "r"(address)
               : "memory");
  return b;
}

// tile[row ... row + 16)[column ... column + 16) as it is: the product sums over the tile's rows.
__device__ inline Right load_right(const Bf16* tile, int stride, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t address = shared_address(tile + (row + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8);
  Right b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b.x[0]), "=r"(b.x[1]), "=r"(b.x[2]), "=r"(b.x[3])
               : "r"(address)
               : "memory");
  return b;
}

// c += a times one half of b.
__device__ inline void multiply_add(float (&c)[4], const Left& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
}

// --- products of a warp

template <int kAccumulators>
__device__ void zero(float (&c)[kAccumulators][4]) {
#pragma unroll
  for (int n = 0; n < kAccumulators; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0.0F;
  }
}

// c [16, columns of c] = left[row ... row + 16) right^T: both tiles have rows of `size`, c has a column for each row of
// `right`.
template <int kAccumulators>
__device__ void multiply_rows(float (&c)[kAccumulators][4], const Bf16* left, int row, const Bf16* right, int size) {
  static_assert(kAccumulators % 2 == 0);
  const int stride = tile_stride(size);
  zero(c);
#pragma unroll 2
  for (int column = 0; column < size; column += 16) {
    const Left a = load_left(left, stride, row, column);
#pragma unroll
    for (int n = 0; n < kAccumulators; n += 2) {
      const Right b = load_right_transposed(right, stride, n * 8, column);
      multiply_add(c[n], a, b.x[0], b.x[1]);
      multiply_add(c[n + 1], a, b.x[2], b.x[3]);
    }
  }
}

// sum [16, size] += a tile: `a` are 16 * kDepth columns, to each of which a row of the tile, [16 * kDepth, size],
// belongs. `sum` has room for 8 * kAccumulators columns, `size` of them are used.
template <int kDepth, int kAccumulators>
__device__ void add_product(float (&sum)[kAccumulators][4], const Left (&a)[kDepth], const Bf16* tile, int size) {
  static_assert(kAccumulators % 2 == 0);
  const int stride = tile_stride(size);
#pragma unroll
  for (int n = 0; n < kAccumulators; n += 2) {
    if (n * 8 >= size) break;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const Right b = load_right(tile, stride, d * 16, n * 8);
      multiply_add(sum[n], a[d], b.x[0], b.x[1]);
      multiply_add(sum[n + 1], a[d], b.x[2], b.x[3]);
    }
  }
}

// Writes sum [16, size], a row times factors[0] or (the lower eight) factors[1], to x [T, heads, size]: row r of it
// belongs to token first + r, of which only those below T exist.
template <int kAccumulators>
__device__ void store_rows(Bf16* x, const float (&sum)[kAccumulators][4], const float (&factors)[2], int first,
                           int num_tokens, int num_heads, int head, int size) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + lane / 4 + half * 8;
    if (token >= num_tokens) continue;
    Bf16* row = x + (static_cast<int64_t>(token) * num_heads + head) * size + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kAccumulators; ++n) {
      if (n * 8 >= size) break;
      *reinterpret_cast<__nv_bfloat162*>(row + n * 8) =
          __floats2bfloat162_rn(sum[n][2 * half] * factors[half], sum[n][2 * half + 1] * factors[half]);
    }
  }
}

}  // namespace nmoe::cuda
