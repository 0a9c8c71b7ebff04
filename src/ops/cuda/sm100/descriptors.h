// The numbers that Blackwell's tensor cores (tcgen05) are told about operands, for host and device: the instruction's
// descriptor, those of matrices in shared memory, and where a block's scale lies.
//
// NOTE: nothing here has run on a device of compute capability 10. Each field is from two sources, and the tests
// (tests/ops/sm100_descriptors_test.cpp) have them bit by bit:
//   PTX ISA 9.0, section "Tensorcore 5th Generation Family Instructions": tables "Instruction descriptor format" for
//     .kind::f16, .kind::mxf8f6f4 and .kind::mxf4nvf4, "Shared memory descriptor layout", and the figures of "Layout of
//     the Scale Factor A/B Matrix" for scale_vec::1X and scale_vec::4X
//   NVIDIA CUTLASS 4, include/cute/arch/mma_sm100_desc.hpp: InstrDescriptor, InstrDescriptorBlockScaled,
//   SmemDescriptor;
//     for strides of operands DeepGEMM 2.1, deep_gemm/include/deep_gemm/mma/sm100.cuh: make_umma_desc, make_sf_desc;
//     for scales the cuBLAS 13 documentation, "1D Block Scaling Factors Layout"
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace nmoe::cuda::sm100 {

// The kinds of products. kDepth: of k, an instruction. All take 32 bytes of k.
enum class Kind { kBf16, kMxFp8, kNvFp4 };

NMOE_HOST_DEVICE constexpr int product_depth(Kind kind) {
  return kind == Kind::kBf16 ? 16 : (kind == Kind::kMxFp8 ? 32 : 64);
}
NMOE_HOST_DEVICE constexpr int scale_block(Kind kind) {
  return kind == Kind::kMxFp8 ? 32 : 16;
}  // values that share a scale
// Bytes of `values` along k.
NMOE_HOST_DEVICE constexpr int64_t value_bytes(Kind kind, int64_t values) {
  return kind == Kind::kBf16 ? 2 * values : (kind == Kind::kMxFp8 ? values : values / 2);
}

// --- the instruction's descriptor, 32 bits
//
//   bits    .kind::f16             .kind::mxf8f6f4         .kind::mxf4nvf4
//   2       sparsity: 0            0                       0
//   4-5     D: F32 = 1             scale id of B           scale id of B: 0 or 2
//   7-9     A: BF16 = 1            E4M3 = 0                E2M1 = 1
//   10-12   B: BF16 = 1            E4M3 = 0                E2M1 = 1
//   13, 14  negate A, B: 0         0                       0
//   15, 16  A, B: i along rows     0 here                  0: k is along rows
//   17-22   N / 8                  N / 8                   N / 8
//   23      0                      scales: UE8M0 = 1       scales: UE4M3 = 0
//   24-28   M / 16                 M / 16                  M / 16 (PTX: bits 27 and 28 are M / 128)
//   29-30   (30-31: shift: 0)      scale id of A           scale id of A: 0 or 2
//   31      0                      0                       0: k is 64
//
// A scale id is the byte, within the 32 bits of a column of tensor memory, that holds an instruction's (first) scale.
struct Instruction {
  Kind kind = Kind::kBf16;
  int rows = 128, cols = 0;                       // M, N
  bool a_rows_of_k = false, b_rows_of_k = false;  // BF16: rows are of k, and i is along them
  int scale_id = 0;                               // of both
};
NMOE_HOST_DEVICE constexpr uint32_t instruction_descriptor(const Instruction& i) {
  const auto id = static_cast<uint32_t>(i.scale_id);
  const uint32_t size = static_cast<uint32_t>(i.cols / 8) << 17 | static_cast<uint32_t>(i.rows / 16) << 24;
  switch (i.kind) {
    case Kind::kBf16:
      return 1U << 4 | 1U << 7 | 1U << 10 | (i.a_rows_of_k ? 1U << 15 : 0U) | (i.b_rows_of_k ? 1U << 16 : 0U) | size;
    case Kind::kMxFp8:
      return id << 4 | 1U << 23 | id << 29 | size;
    case Kind::kNvFp4:
      return id << 4 | 1U << 7 | 1U << 10 | id << 29 | size;
  }
  return 0;
}

// --- matrices in shared memory, 64 bits
//
//   bits 0-13   address / 16
//   bits 16-29  leading dimension's offset / 16
//   bits 32-45  stride dimension's offset / 16
//   bits 46-48  1 (CUTLASS: the version, of two bits)
//   bits 49-51  the base's offset: 0, for matrices that begin at multiples of 1024
//   bit 52      the leading offset is relative: 0
//   bits 61-63  0: as they lie; 2: swizzled by 128 bytes
//
// Operands lie in rows of 128 bytes, swizzled by 128 bytes as TMA writes them: with k along the rows, all of i one
// below the other; or in panels of rows of k with 64 of i along them.
//
//   k along the rows   stride: between groups of eight rows
//   i along the rows   stride: between groups of eight of k; leading: between panels
constexpr uint64_t kEightRowsBytes = 8 * 128;
NMOE_HOST_DEVICE constexpr uint64_t matrix_descriptor(uint32_t address, uint64_t leading_bytes, uint64_t stride_bytes,
                                                      bool swizzled) {
  return (address & 0x3FFFFU) >> 4 | (leading_bytes & 0x3FFFFU) >> 4 << 16 | (stride_bytes & 0x3FFFFU) >> 4 << 32 |
         uint64_t{1} << 46 | (swizzled ? uint64_t{2} << 61 : 0);
}
// panel_bytes: from a panel to the next, 0 where k is along the rows.
NMOE_HOST_DEVICE constexpr uint64_t operand_descriptor(uint32_t address, int panel_bytes) {
  return matrix_descriptor(address, static_cast<uint64_t>(panel_bytes), kEightRowsBytes, /*swizzled=*/true);
}
// What to add to it for the next instruction's k: 32 bytes along the rows, or 16 rows of BF16.
NMOE_HOST_DEVICE constexpr uint64_t operand_step(bool rows_of_k) { return (rows_of_k ? 16 * 128 : 32) / 16; }

// --- scales
//
// Of an operand [rows, k]: blocks of 128 rows by 4 scales along k, of 512 bytes each, those of the same rows one after
// the other. Row r and scale c of a block are byte (r % 32) * 16 + (r / 32) * 4 + c: what tcgen05.cp 32x128b.warpx4
// spreads over four columns of tensor memory, lane r % 32 and column r / 32, once for each 32 lanes. cuBLASLt wants the
// same.
constexpr int kScaleRows = 128, kScalesAcross = 4, kScaleBlockBytes = kScaleRows * kScalesAcross;
constexpr int kScaleColumns = kScaleRows / 32;  // of tensor memory, a block

// blocks_across: of k. row, scale: of the whole operand.
NMOE_HOST_DEVICE constexpr int64_t scale_offset(int64_t row, int64_t scale, int64_t blocks_across) {
  const int64_t block = row / kScaleRows * blocks_across + scale / kScalesAcross, r = row % kScaleRows;
  return block * kScaleBlockBytes + r % 32 * 16 + r / 32 * 4 + scale % kScalesAcross;
}
// The matrix descriptor of such a block: rows of 16 bytes as they lie, eight a group.
NMOE_HOST_DEVICE constexpr uint64_t scale_descriptor(uint32_t address) {
  return matrix_descriptor(address, 0, 8 * 16, /*swizzled=*/false);
}

}  // namespace nmoe::cuda::sm100
