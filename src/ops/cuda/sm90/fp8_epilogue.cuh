// Epilogues that leave a tile of BF16 values as FP8 alone: codes of its rows, and of its columns (RowCodes and
// ColumnCodes, contracts/quantize.h), from registers. The values themselves are not written.
//
// A tile has 128 rows, a block of columns' codes, and 128 columns, or twice that: gates, and what they gate. A warp has
// 16 rows of a product, of which a thread has what epilogue.cuh says of sums; here pairs of columns are words.
// Columns' largest values are found by the warps together, and codes of 16 rows at a time are turned over by stmatrix:
// a word of it has a column's codes in two rows, 8 apart, which are put in order where the tile leaves.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm90 {

constexpr int kFp8Cols = 128;                    // of a part of a tile, and of a block of a row
constexpr int kFp8Octets = kFp8Cols / 8;         // columns of a part, by eights
constexpr int kStagedCodeBytes = kFp8Cols + 16;  // of a row: rows begin 16 bytes apart in banks

// Words of BF16 pairs in the registers of a product's sums: that of columns 8 j + 2 (lane % 4) and the next, in row
// 8 h + lane / 4 of the warp's, is at(j, h, part).
struct PairWords {
  float (&c)[kFp8Cols / 2];

  static __device__ constexpr int place(int j, int h, int part) { return 4 * j + 2 * h + part; }
  __device__ uint32_t at(int j, int h, int part) const { return __float_as_uint(c[place(j, h, part)]); }
  __device__ void set(int j, int h, int part, uint32_t word) const { c[place(j, h, part)] = __uint_as_float(word); }
  // Forgets what was made of the words: to keep that for another use takes more registers than there are.
  __device__ void settle() const {
#pragma unroll
    for (float& word : c) asm volatile("" : "+f"(word));
  }
};

// Codes of a part of the warp's rows, which begin at (row, col) of those of `to`.
__device__ inline void store_row_codes(const PairWords& words, int part, const CodeRows& to, int64_t row, int64_t col,
                                       int num_rows, std::byte* staged) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t scale_stride = to.width / kFp8Cols;
  uint8_t* const scales = to.scales + row * scale_stride + col / kFp8Cols;
  words.settle();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t pair = 0;
#pragma unroll
    for (int j = 0; j < kFp8Octets; ++j) pair = __vmaxu2(pair, words.at(j, h, part) & 0x7FFF7FFFU);
    unsigned largest = larger_magnitude(pair);
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const uint8_t code = e8m0_scale(amax_of_bits(largest));
    const float factor = e8m0_to_inverse(code);
    const int own_row = lane / 4 + 8 * h;
    std::byte* const staged_row = staged + own_row * kStagedCodeBytes + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kFp8Octets; ++j) {
      const uint32_t word = words.at(j, h, part);
      *reinterpret_cast<uint16_t*>(staged_row + 8 * j) = e4m3_pair(low_bf16(word) * factor, high_bf16(word) * factor);
    }
    if (lane % 4 == 0 && own_row < num_rows) scales[own_row * scale_stride] = code;
  }
  write_staged<kFp8Cols>(staged, kStagedCodeBytes, num_rows, kFp8Cols, to.values + row * to.width + col, to.width);
}

// Four 8 x 8 matrices of 16-bit words to shared memory, transposed; lane l names column l % 8 of matrix l / 8.
__device__ inline void store_transposed_matrices(void* column, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(column)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Columns' codes of a block of rows, by the warps that have them: kProducts of each warp's, kProducts * kWarps * 16 =
// 128 rows, warp w's 16 of product p being those from 16 (p kWarps + w) on. Rows that are not there are zeros. kParts
// of 128 columns.
template <int kProducts, int kParts, int kWarps>
class ColumnsEpilogue {
 public:
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kPairs = kParts * kFp8Cols / 2;  // of columns
  static constexpr int kTileBytes = kParts * kFp8Cols * 128;
  static constexpr int kBytes = kTileBytes + kWarps * kPairs * 4;  // and largest values by warps, then factors
  static_assert(kProducts * kWarps * kWarpRows == 128 && kThreads >= kPairs && kWarps >= 2);

  // shared: kBytes, aligned to 128; they may be where these warps stage rows. barrier: a number for named barriers, of
  // these warps alone. warp, thread: among them.
  __device__ ColumnsEpilogue(std::byte* shared, int barrier, int warp, int thread)
      : tile_(shared),
        largest_(reinterpret_cast<uint32_t*>(shared + kTileBytes)),
        barrier_(barrier),
        warp_(warp),
        thread_(thread) {}

  // By all warps. words(p): PairWords of product p. values, scales: of the block at the first part's first column;
  // parts lie part_cols columns apart. The staging is free at return, for all of them.
  template <class Words>
  __device__ void store(const Words& words, uint8_t* values, uint8_t* scales, int64_t part_cols) const {
    sync();  // rows' staging has served
#pragma unroll
    for (int p = 0; p < kProducts; ++p) words(p).settle();
    leave_largest(words);
    sync();
    if (thread_ < kPairs) {
      uint32_t pair = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) pair = __vmaxu2(pair, largest_of(thread_)[warp]);
      const uint8_t low = e8m0_scale(amax_of_bits(pair << 16)), high = e8m0_scale(amax_of_bits(pair & 0xFFFF0000U));
      factors(thread_) = make_float2(e8m0_to_inverse(low), e8m0_to_inverse(high));
      const int part = thread_ / (kFp8Cols / 2), col = thread_ % (kFp8Cols / 2) * 2;
      *reinterpret_cast<uint16_t*>(scales + part * part_cols + col) =
          static_cast<uint16_t>(low | static_cast<unsigned>(high) << 8);
    }
    sync();
#pragma unroll
    for (int p = 0; p < kProducts; ++p) words(p).settle();
    turn_over(words);
    sync();
    write(values, part_cols);
    sync();
  }

 private:
  __device__ void sync() const { named_barrier_sync(barrier_, kThreads); }

  // Of the warp's rows, by halves of what is left: each exchange leaves a lane with half as many columns.
  template <class Words>
  __device__ void leave_largest(const Words& words) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint32_t largest[kFp8Octets];
#pragma unroll
      for (int j = 0; j < kFp8Octets; ++j) {
        largest[j] = 0;
#pragma unroll
        for (int p = 0; p < kProducts; ++p) {
#pragma unroll
          for (int h = 0; h < 2; ++h) largest[j] = __vmaxu2(largest[j], words(p).at(j, h, part) & 0x7FFF7FFFU);
        }
      }
      int first = 0;
#pragma unroll
      for (int step = 0; step < 3; ++step) {
        const int left = kFp8Octets >> (step + 1), bit = 16 >> step;
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (int j = 0; j < left; ++j) {
          const uint32_t kept = upper ? largest[j + left] : largest[j], given = upper ? largest[j] : largest[j + left];
          largest[j] = __vmaxu2(kept, __shfl_xor_sync(kAllLanes, given, bit));
        }
        first += upper ? left : 0;
      }
#pragma unroll
      for (int j = 0; j < kFp8Octets / 8; ++j) {
        largest_of((part * kFp8Octets + first + j) * 4 + lane % 4)[warp_] = largest[j];
      }
    }
  }

  // A pair's largest values by warps, and in their place, once they have served, its factors.
  __device__ uint32_t* largest_of(int pair) const { return largest_ + pair * kWarps; }
  __device__ float2& factors(int pair) const { return *reinterpret_cast<float2*>(largest_of(pair)); }

  // A column's chunks of 16 rows lie where eight columns' of the same are in different banks.
  __device__ std::byte* chunk_of(int col, int chunk) const { return tile_ + col * 128 + (chunk ^ (col % 8)) * 16; }

  template <class Words>
  __device__ void turn_over(const Words& words) const {
    constexpr int kOctets = 4 / kProducts;  // of a store of four matrices
    const int lane = static_cast<int>(threadIdx.x) % kWarp, matrix = lane / 8;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int first = 0; first < kFp8Octets; first += kOctets) {
        uint32_t codes[4];
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
          const int j = first + octet;
          const float2 factor = factors(part * (kFp8Cols / 2) + 4 * j + lane % 4);
#pragma unroll
          for (int p = 0; p < kProducts; ++p) {
            const uint32_t upper = words(p).at(j, 0, part), lower = words(p).at(j, 1, part);
            codes[octet * kProducts + p] =
                e4m3_pair(low_bf16(upper) * factor.x, low_bf16(lower) * factor.x) |
                static_cast<uint32_t>(e4m3_pair(high_bf16(upper) * factor.y, high_bf16(lower) * factor.y)) << 16;
          }
        }
        const int col = part * kFp8Cols + 8 * (first + matrix / kProducts) + lane % 8;
        store_transposed_matrices(chunk_of(col, matrix % kProducts * kWarps + warp_), codes);
      }
    }
  }

  __device__ void write(uint8_t* values, int64_t part_cols) const {
#pragma unroll 4
    for (int at = thread_; at < kTileBytes / 16; at += kThreads) {
      const int col = at / 8, chunk = at % 8;
      const uint4 rows = *reinterpret_cast<const uint4*>(chunk_of(col, chunk));
      const uint4 ordered = make_uint4(__byte_perm(rows.x, rows.y, 0x6420), __byte_perm(rows.z, rows.w, 0x6420),
                                       __byte_perm(rows.x, rows.y, 0x7531), __byte_perm(rows.z, rows.w, 0x7531));
      const int64_t to = (col / kFp8Cols * part_cols + col % kFp8Cols) * 128 + chunk * 16;
      *reinterpret_cast<uint4*>(values + to) = ordered;
    }
  }

  std::byte* tile_;
  uint32_t* largest_;
  int barrier_, warp_, thread_;
};

// As PreRows (epilogue.cuh), of pre-activations that wait as codes: a tile's columns of each part are a block.
template <int kParts>
struct PreCodes {
  static constexpr int kChunkCols = PreRows<kParts>::kChunkCols, kChunks = 2;
  static constexpr int kRowBytes = kChunkCols + 16;  // eight rows' pairs of codes are in different banks
  static constexpr int kPartBytes = kWarpRows * kRowBytes, kWarpBytes = kChunks * kParts * kPartBytes;
  static_assert(kParts * kWarpRows <= kWarp, "a lane has one scale");

  const uint8_t* codes;  // the warp's first row at the tile's first column
  int64_t hidden_width;
  int num_rows;
  unsigned lane_scale;  // of part lane / 16, if there is one, of row lane % 16
  std::byte* staged;    // kWarpBytes, the warp's own

  // What lane_scale is to be: scales of the warp's first row, at the tile's first column; `across`: of a row's part.
  static __device__ unsigned load_scale(const uint8_t* scales, int across, int num_rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % kWarpRows;
    const bool has_one = row < num_rows && lane < kParts * kWarpRows;
    return has_one ? scales[int64_t{row} * kParts * across + lane / kWarpRows * across] : 0U;
  }

  __device__ std::byte* part(int chunk, int of) const { return staged + (chunk % kChunks * kParts + of) * kPartBytes; }
  __device__ void fetch(int chunk) const {
    constexpr int kVectors = kChunkCols / 16;  // of a row
    const int lane = static_cast<int>(threadIdx.x) % kWarp, byte = lane % kVectors * 16;
#pragma unroll
    for (int first = 0; first < kWarpRows; first += kWarp / kVectors) {
      const int row = first + lane / kVectors;
      if (row >= num_rows) continue;
      const uint8_t* const source = codes + row * kParts * hidden_width + chunk * kChunkCols + byte;
#pragma unroll
      for (int of = 0; of < kParts; ++of) {
        copy_async16(part(chunk, of) + row * kRowBytes + byte, source + of * hidden_width, true);
      }
    }
    commit_copies();
  }
  __device__ void load(int chunk, uint32_t (&pairs)[kParts][kChunkCols / 16][4]) const {
#pragma unroll
    for (int of = 0; of < kParts; ++of) load_part(chunk, of, pairs[of]);
  }

 private:
  __device__ void load_part(int chunk, int of, uint32_t (&pairs)[kChunkCols / 16][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::byte* const corner = part(chunk, of) + lane / 4 * kRowBytes + lane % 4 * 2;
    float scales[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned code = __shfl_sync(kAllLanes, lane_scale, of * kWarpRows + 8 * h + lane / 4);
      scales[h] = e8m0_to_float(static_cast<uint8_t>(code));
    }
#pragma unroll
    for (int i = 0; i < kChunkCols / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const std::byte* const at = corner + r % 2 * 8 * kRowBytes + 16 * i + r / 2 * 8;
        const float2 values = e4m3_pair_values(*reinterpret_cast<const uint16_t*>(at), scales[r % 2]);
        pairs[i][r] = bf16_pair(values.x, values.y);
      }
    }
  }
};

// c, the gradients of what A made, becomes pairs of those of its pre-activations by parts, to the same values that
// store_activation_gradients() (epilogue.cuh) stores, zeros in rows that do not exist; dweights as there. Chunks 0 and
// 1 of `rows`, PreRows or PreCodes, are being fetched, and those of `next` begin to be; without one, empty groups of
// copies.
template <class A, class Rows>
__device__ inline void pack_activation_gradients(float (&c)[kFp8Cols / 2], const RowWeights& weights, const Rows& rows,
                                                 const Rows* next, float* dweights) {
  constexpr int kChunkCols = Rows::kChunkCols, kBlocks = kChunkCols / 16, kParts = A::kParts;
  static_assert(Rows::kChunks == 2 && kFp8Cols == 2 * kChunkCols && kParts <= 2, "as many words as sums");
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const PairWords words{c};
  float dweight[2] = {};
#pragma unroll
  for (int chunk = 0; chunk < 2; ++chunk) {
    wait_copies<1>();
    __syncwarp();
    uint32_t pre[kParts][kBlocks][4];
    rows.load(chunk, pre);
    __syncwarp();  // all lanes have what lay there
    if (next != nullptr) {
      next->fetch(chunk);
    } else {
      commit_copies();
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int j = chunk * (kChunkCols / 8) + 2 * i + r / 2, h = r % 2;
        const bool exists = lane / 4 + 8 * h < rows.num_rows;
        const uint32_t dh = bf16_pair(c[PairWords::place(j, h, 0)], c[PairWords::place(j, h, 1)]);
        uint32_t unit[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) unit[part] = pre[part][i][r];
        const PairGradient<A> gradient(unit, h == 0 ? weights.upper : weights.lower, dh);
        dweight[h] += gradient.low.weight;
        dweight[h] += gradient.high.weight;
#pragma unroll
        for (int part = 0; part < kParts; ++part) words.set(j, h, part, exists ? gradient.pair(part) : 0);
      }
    }
  }
  write_row_sums(dweight, rows.num_rows, dweights);
}

}  // namespace nmoe::cuda::sm90
