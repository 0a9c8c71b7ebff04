// Epilogues: a consumer warp's share of a tile of C, from registers to global memory.
//
// A warpgroup's sums are 64 rows of C, of which a warp has 16 (wgmma.cuh): lane l holds, in c[4 j + 2 h + p],
// C[8 h + l / 4, 8 j + 2 (l % 4) + p] of them. Here `num_rows` and `num_cols` are what exists of C from the warp's
// first row and the tile's first column on: they may be more than the warp and the tile have, num_rows also none.
//
// BF16 rows go through shared memory, so that whole rows are written: a warp stages its 16, in
// StagedRows<...>::kWarpBytes of its own; then lanes that are next to each other write 16 bytes of a row each
// (write_rows). Of grouped products in BF16, other warps write them (tile_writer.cuh).
//
// NOTE: not by a copy by TMA for each row: its addresses have to be uniform, so that a warp starts one after the other,
// some 110 cycles each.
//
// An activation's backward in FP8 also reads what is to lie there: a warp fetches its rows' first columns ahead of the
// products, and the others while it works on those before (PreRows). In BF16 another warpgroup does that
// (tile_writer.cuh). Sums that stay F32 go by TMA (sum_boxes.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/tma.cuh"

namespace nmoe::cuda::sm90 {

constexpr int kWarpRows = 16;  // of a warp in a tile

// Rows of kCols BF16 values.
template <int kCols>
struct StagedRows {
  static_assert(kCols % 16 == 0 && kCols <= 256);
  static constexpr int kRowBytes = kCols * 2 + 16;  // rows begin 16 bytes apart in banks
  static constexpr int kWarpBytes = kWarpRows * kRowBytes;
  static_assert(kRowBytes % 16 == 0, "TMA and stmatrix want 16 bytes");
};

// Four 8 x 8 matrices of bf16 pairs to shared memory; lane l names row l % 8 of matrix l / 8.
__device__ inline void store_matrices(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(row)), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Where a lane writes the warp's rows of staging of kCols, by store_matrices(): 16 columns there.
template <int kCols>
__device__ inline std::byte* staged_corner(std::byte* staged) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return staged + lane % kWarpRows * StagedRows<kCols>::kRowBytes + lane / kWarpRows * 16;
}

// Columns [kFirst, kFirst + kCount) of the warp's rows, rounded to BF16, into its staging of rows of kCount.
// `num_cols`: that exist from kFirst on.
template <int kCols, int kFirst, int kCount>
__device__ void stage_columns(const float (&c)[kCols / 2], int num_cols, std::byte* staged) {
  std::byte* const corner = staged_corner<kCount>(staged);
#pragma unroll
  for (int i = 0; i < kCount / 16; ++i) {
    const int at = kFirst / 2 + 8 * i;
    if (16 * i < num_cols) {
      store_matrices(corner + 32 * i, bf16_pair(c[at], c[at + 1]), bf16_pair(c[at + 2], c[at + 3]),
                     bf16_pair(c[at + 4], c[at + 5]), bf16_pair(c[at + 6], c[at + 7]));
    }
  }
}

// The same in two steps: as kCount / 4 pairs of BF16, which wait in registers,
template <int kFirst, int kCount, int kValues>
__device__ void round_columns(const float (&c)[kValues], uint32_t (&pairs)[kCount / 4]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) pairs[i] = bf16_pair(c[kFirst / 2 + 2 * i], c[kFirst / 2 + 2 * i + 1]);
}
// and these into rows of kCount.
template <int kCount>
__device__ void stage_pairs(const uint32_t (&pairs)[kCount / 4], std::byte* staged) {
  std::byte* const corner = staged_corner<kCount>(staged);
#pragma unroll
  for (int i = 0; i < kCount / 16; ++i) {
    store_matrices(corner + 32 * i, pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
  }
}

// `num_bytes` of staged rows of kRowBytes, `staged_row_bytes` apart, to `target`. The staging is free at return.
template <int kRowBytes>
__device__ void write_staged(const std::byte* staged, int staged_row_bytes, int num_rows, int num_bytes, void* target,
                             int64_t stride_bytes) {
  constexpr int kRowVectors = kRowBytes / 16, kRowsAtOnce = kWarp / kRowVectors, kTurns = kWarpRows / kRowsAtOnce;
  constexpr int kUnderWay = kTurns < 4 ? kTurns : 4;  // more would not fit into registers beside sums
  static_assert(kWarp % kRowVectors == 0 && kWarpRows % kRowsAtOnce == 0 && kTurns % kUnderWay == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first_row = lane / kRowVectors;
  const int byte = lane % kRowVectors * 16;
  __syncwarp();
#pragma unroll
  for (int first = 0; first < kTurns; first += kUnderWay) {
    uint4 vectors[kUnderWay];
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      const int row = first_row + (first + i) * kRowsAtOnce;
      vectors[i] = *reinterpret_cast<const uint4*>(staged + row * staged_row_bytes + byte);
    }
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      const int row = first_row + (first + i) * kRowsAtOnce;
      if (row < num_rows && byte < num_bytes) {
        *reinterpret_cast<uint4*>(static_cast<std::byte*>(target) + row * stride_bytes + byte) = vectors[i];
      }
    }
  }
  __syncwarp();
}

// C's rows in BF16. `target`: the warp's first row at the tile's first column, aligned to 16 bytes as every row is. The
// staging, of rows of kCols, is free at return.
template <int kCols>
__device__ void write_rows(const float (&c)[kCols / 2], int num_rows, int num_cols, __nv_bfloat16* target,
                           int64_t stride, std::byte* staged) {
  stage_columns<kCols, 0, kCols>(c, num_cols, staged);
  write_staged<2 * kCols>(staged, StagedRows<kCols>::kRowBytes, num_rows, 2 * num_cols, target, 2 * stride);
}

// What activations multiply the warp's rows by: those of lane / 4 and 8 below it.
struct RowWeights {
  float upper, lower;
};

// A warp's rows of pre-activations, whose place their gradients take: columns of each of kParts, `hidden_width` apart.
template <int kParts>
struct PreRows {
  static constexpr int kChunkCols = 64;  // of a part, that are worked on at a time
  static constexpr int kChunks = 2;      // that have room in shared memory: one is fetched while another is in use
  using Staged = StagedRows<kChunkCols>;
  static constexpr int kWarpBytes = kChunks * kParts * Staged::kWarpBytes;
  static constexpr int kRowVectors = kChunkCols / 8;
  static_assert(Staged::kRowBytes % 128 == 16, "eight rows of 16 bytes are in different banks");

  const __nv_bfloat16* pre;  // the warp's first row at the tile's first column, aligned to 16 bytes as every row is
  __nv_bfloat16* dpre;       // = the same place; may be the storage of pre
  int64_t hidden_width;
  int num_rows, num_cols;
  std::byte* staged;  // kWarpBytes, the warp's own

  __device__ std::byte* part(int chunk, int part) const {
    return staged + (chunk % kChunks * kParts + part) * Staged::kWarpBytes;
  }

  // Calls fn(staged, offset, exists) with every 16 bytes of the chunk's parts in rows that exist: where they are in
  // shared memory, at which element of pre, and whether their columns exist.
  template <class Fn>
  __device__ void for_each_vector(int chunk, const Fn& fn) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, col = chunk * kChunkCols + lane % kRowVectors * 8;
#pragma unroll
    for (int first = 0; first < kWarpRows; first += kWarp / kRowVectors) {
      const int row = first + lane / kRowVectors;
      if (row >= num_rows) continue;
      const int at = row * Staged::kRowBytes + lane % kRowVectors * 16;
      const int64_t offset = row * kParts * hidden_width + col;
#pragma unroll
      for (int i = 0; i < kParts; ++i) fn(part(chunk, i) + at, offset + i * hidden_width, col < num_cols);
    }
  }

  // Begins to fetch a chunk; zeros for columns that do not exist. A group of copies, be it empty.
  __device__ void fetch(int chunk) const {
    if (chunk * kChunkCols < num_cols) {
      for_each_vector(chunk, [&](std::byte* target, int64_t offset, bool exists) {
        copy_async16(target, exists ? pre + offset : pre, exists);
      });
    }
    commit_copies();
  }
  // A chunk that has come, as pairs in the registers where sums of the same columns are: of columns 16 i + 8 (r / 2) on
  // in the row of lane / 4, and 8 below where r is odd.
  __device__ void load(int chunk, uint32_t (&pairs)[kParts][kChunkCols / 16][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int corner = lane % kWarpRows * Staged::kRowBytes + lane / kWarpRows * 16;
#pragma unroll
    for (int i = 0; i < kChunkCols / 16; ++i) {
#pragma unroll
      for (int of = 0; of < kParts; ++of) load_matrices<false>(part(chunk, of) + corner + 32 * i, pairs[of][i]);
    }
  }
  __device__ void store(int chunk) const {
    for_each_vector(chunk, [&](const std::byte* source, int64_t offset, bool exists) {
      if (exists) *reinterpret_cast<uint4*>(dpre + offset) = *reinterpret_cast<const uint4*>(source);
    });
  }
};

__device__ inline float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }

// target [16] = the sums of rows that exist, of which a lane has the share of its columns: sums[h] of row 8 h + lane
// / 4.
__device__ inline void write_row_sums(const float (&sums)[2], int num_rows, float* target) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const int row = lane / 4 + 8 * half;
    if (lane % 4 == 0 && row < num_rows) target[row] = sum;
  }
}

// The gradients of two hidden units of one row, whose pre-activations by parts are pairs of BF16, as dh is.
template <class A>
struct PairGradient {
  UnitGradient<A::kParts> low, high;

  __device__ PairGradient(const uint32_t (&pre)[A::kParts], float weight, uint32_t dh) {
    float lows[A::kParts], highs[A::kParts];
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) lows[part] = low_bf16(pre[part]), highs[part] = high_bf16(pre[part]);
    low = A::template backward<__nv_bfloat16>(lows, weight, low_bf16(dh));
    high = A::template backward<__nv_bfloat16>(highs, weight, high_bf16(dh));
  }
  __device__ uint32_t pair(int part) const { return bf16_pair(low.pre[part], high.pre[part]); }
};

// dpre = the gradients of A's rows, and dweights [16] = those of the weights of the rows that exist, by the tile's
// columns alone. c: the gradients of what A made, which are rounded as if they were stored. Chunks 0 and 1 are being
// fetched.
template <class A, int kCols>
__device__ void store_activation_gradients(const float (&c)[kCols / 2], const RowWeights& weights,
                                           const PreRows<A::kParts>& rows, float* dweights) {
  using Rows = PreRows<A::kParts>;
  constexpr int kChunkCols = Rows::kChunkCols, kBlocks = kChunkCols / 16, kParts = A::kParts;
  static_assert(Rows::kChunks == 2 && kCols % kChunkCols == 0);
  if (rows.num_rows <= 0) return;  // the whole warp; nothing was fetched for it
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int corner = lane % kWarpRows * Rows::Staged::kRowBytes + lane / kWarpRows * 16;
  float dweight[2] = {};
#pragma unroll
  for (int chunk = 0; chunk < kCols / kChunkCols; ++chunk) {
    if (chunk * kChunkCols >= rows.num_cols) continue;
    wait_copies<1>();
    __syncwarp();
    uint32_t pre[kParts][kBlocks][4];  // all at once: one of 16 columns has too little to do beside its waits
    rows.load(chunk, pre);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (chunk * kChunkCols + 16 * i >= rows.num_cols) continue;
#pragma unroll
      for (int r = 0; r < 4; ++r) {  // a pair of columns in the row of lane / 4, and 8 below where r is odd
        const int at = (chunk * kChunkCols + 16 * i) / 2 + 2 * r;
        uint32_t unit[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) unit[part] = pre[part][i][r];
        const PairGradient<A> gradient(unit, r % 2 == 0 ? weights.upper : weights.lower, bf16_pair(c[at], c[at + 1]));
        dweight[r % 2] += gradient.low.weight;
        dweight[r % 2] += gradient.high.weight;
#pragma unroll
        for (int part = 0; part < kParts; ++part) pre[part][i][r] = gradient.pair(part);
      }
    }
    __syncwarp();  // all lanes have what lay there
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t(&pairs)[4] = pre[part][i];
        store_matrices(rows.part(chunk, part) + corner + 32 * i, pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
    __syncwarp();
    rows.store(chunk);
    __syncwarp();  // and the place is free
    rows.fetch(chunk + 2);
  }
  write_row_sums(dweight, rows.num_rows, dweights);
}

}  // namespace nmoe::cuda::sm90
