// Rows that lie anywhere in a matrix, as panels that wgmma reads. Hopper's TMA loads boxes, not rows by an index, so
// threads copy them, 16 bytes at a time and asynchronously, to where TMA's swizzle of 128 bytes would have put them.
//
// A warpgroup fills a stage: eight threads have the 128 bytes that a panel has of a row, sixteen rows are copied at a
// time. What they write is seen by wgmma behind a fence_proxy_async() of the reading thread, which comes after its wait
// for the copies (pipeline.commit_copies() in tma_pipeline.cuh).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

// Row r of an operand is row index[r] of `rows`.
struct GatheredRows {
  const __nv_bfloat16* rows;  // [N, width], every row aligned to 16 bytes, less than 64 GiB
  const int32_t* index;
  int width;
};

// A thread's part of kRows rows, one below the other through panels of kPanel rows each.
template <int kRows>
class RowGather {
 public:
  // Which rows are copied next: `num_rows`, or kRows if those are fewer, from index[first] on. Others are left as they
  // are.
  __device__ void find(const GatheredRows& from, int first, int num_rows) {
    const int vectors = from.width / kVectorValues;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = first_row() + i * kRowsAtOnce;
      source_[i] = row < num_rows ? static_cast<uint32_t>(from.index[first + row]) * vectors : kNone;
    }
  }

  // Begins to copy their columns from `col` on: 64 in each of kPanels panels that lie side by side, one after the other
  // in memory from `panels` on. Zeros for columns that do not exist.
  template <int kPanels>
  __device__ void copy(const GatheredRows& from, int col, std::byte* panels) const {
    static_assert(kPanels == 1 || kRows == kPanel, "panels are either side by side or one below the other");
    const int vector = static_cast<int>(threadIdx.x) % kRowVectors;
    const uint32_t target = shared_address(panels) + first_row() * kRowBytes + (vector ^ first_row() % 8) * 16;
    const auto* const columns = reinterpret_cast<const uint4*>(from.rows + col) + vector;
    const int num_left = from.width - col - vector * kVectorValues;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      if (source_[i] == kNone) continue;
      const uint4* const row = columns + source_[i];
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        copy_async16_ahead(target + panel * kPanelBytes + i * kRowsAtOnce * kRowBytes, row + panel * kRowVectors,
                           panel * kPanel < num_left);
      }
    }
  }

 private:
  static constexpr int kRowBytes = kPanel * 2;
  static constexpr int kVectorValues = 8;  // that a thread copies at once
  static constexpr int kRowVectors = kPanel / kVectorValues;
  static constexpr int kRowsAtOnce = kWarpgroup / kRowVectors;
  static constexpr int kOwnRows = kRows / kRowsAtOnce;
  static_assert(kRows % kPanel == 0 && kRowsAtOnce % 8 == 0, "a thread's rows have one swizzle");

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % kWarpgroup / kRowVectors; }

  static constexpr uint32_t kNone = UINT32_MAX;
  // Where the rows begin, in vectors: one multiplication is left of a copy's address. Copies of a stage are issued one
  // after the other before tensor cores get it, so that what an address costs is part of the time that a stage takes.
  uint32_t source_[kOwnRows];  // kNone: there is none
};

}  // namespace nmoe::cuda::sm90
