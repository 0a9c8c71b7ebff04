// What Blackwell's tensor cores are told, bit by bit from the published tables (ops/cuda/sm100/descriptors.h names
// them), and where scales lie, against the definition by reshaping. No CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/sm100/descriptors.h"

namespace nmoe::cuda::sm100 {
namespace {

// Bits [first, last] of a descriptor.
uint64_t bits(uint64_t descriptor, int first, int last) {
  return descriptor >> first & ((uint64_t{1} << (last - first + 1)) - 1);
}

struct Field {
  const char* name;
  int first, last;
  uint64_t value;
};

// Every bit belongs to one field, and each has its value.
void expect_fields(uint64_t descriptor, int size, const std::vector<Field>& fields) {
  std::multiset<int> covered;
  for (const Field& field : fields) {
    EXPECT_EQ(bits(descriptor, field.first, field.last), field.value) << field.name;
    for (int bit = field.first; bit <= field.last; ++bit) covered.insert(bit);
  }
  for (int bit = 0; bit < size; ++bit) EXPECT_EQ(covered.count(bit), 1) << "bit " << bit;
}

// PTX ISA, "Instruction descriptor format for .kind::tf32, .kind::f16, .kind::f8f6f4 and .kind::i8".
TEST(Sm100Descriptors, InstructionInBf16) {
  for (const bool a_rows_of_k : {false, true}) {
    for (const bool b_rows_of_k : {false, true}) {
      for (const int cols : {16, 144, 256}) {
        expect_fields(instruction_descriptor({.kind = Kind::kBf16,
                                              .rows = 128,
                                              .cols = cols,
                                              .a_rows_of_k = a_rows_of_k,
                                              .b_rows_of_k = b_rows_of_k}),
                      32,
                      {{"sparsity selector", 0, 1, 0},
                       {"sparsity", 2, 2, 0},
                       {"saturate", 3, 3, 0},
                       {"D is F32", 4, 5, 1},
                       {"reserved", 6, 6, 0},
                       {"A is BF16", 7, 9, 1},
                       {"B is BF16", 10, 12, 1},
                       {"negate A", 13, 13, 0},
                       {"negate B", 14, 14, 0},
                       {"transpose A", 15, 15, a_rows_of_k ? 1U : 0U},
                       {"transpose B", 16, 16, b_rows_of_k ? 1U : 0U},
                       {"N >> 3", 17, 22, static_cast<uint64_t>(cols) >> 3},
                       {"reserved", 23, 23, 0},
                       {"M >> 4", 24, 28, 128 >> 4},
                       {"reserved", 29, 29, 0},
                       {"maximum shift", 30, 31, 0}});
      }
    }
  }
}

// PTX ISA, "Instruction descriptor format for .kind::mxf8f6f4".
TEST(Sm100Descriptors, InstructionInMxFp8) {
  for (int id = 0; id < 4; ++id) {
    expect_fields(instruction_descriptor({.kind = Kind::kMxFp8, .rows = 128, .cols = 128, .scale_id = id}), 32,
                  {{"reserved", 0, 1, 0},
                   {"sparsity", 2, 2, 0},
                   {"reserved", 3, 3, 0},
                   {"scale id of B", 4, 5, static_cast<uint64_t>(id)},
                   {"reserved", 6, 6, 0},
                   {"A is E4M3", 7, 9, 0},
                   {"B is E4M3", 10, 12, 0},
                   {"negate A", 13, 13, 0},
                   {"negate B", 14, 14, 0},
                   {"transpose A", 15, 15, 0},
                   {"transpose B", 16, 16, 0},
                   {"N >> 3", 17, 22, 128 >> 3},
                   {"scales are UE8M0", 23, 23, 1},
                   {"reserved", 24, 26, 0},
                   {"M >> 7", 27, 28, 128 >> 7},
                   {"scale id of A", 29, 30, static_cast<uint64_t>(id)},
                   {"reserved", 31, 31, 0}});
  }
}

// PTX ISA, "Instruction descriptor format for .kind::mxf4 and .kind::mxf4nvf4".
TEST(Sm100Descriptors, InstructionInNvFp4) {
  expect_fields(instruction_descriptor({.kind = Kind::kNvFp4, .rows = 128, .cols = 112}), 32,
                {{"reserved", 0, 1, 0},
                 {"sparsity", 2, 2, 0},
                 {"reserved", 3, 3, 0},
                 {"scale id of B", 4, 5, 0},
                 {"reserved", 6, 6, 0},
                 {"A is E2M1", 7, 9, 1},
                 {"B is E2M1", 10, 11, 1},
                 {"reserved", 12, 12, 0},
                 {"negate A", 13, 13, 0},
                 {"negate B", 14, 14, 0},
                 {"transpose A", 15, 15, 0},
                 {"transpose B", 16, 16, 0},
                 {"N >> 3", 17, 22, 112 >> 3},
                 {"scales are UE4M3", 23, 23, 0},
                 {"reserved", 24, 26, 0},
                 {"M >> 7", 27, 28, 128 >> 7},
                 {"scale id of A", 29, 30, 0},
                 {"k is 64", 31, 31, 0}});
}

// CUTLASS's own bit fields of the same (InstrDescriptorBlockScaled), which name M >> 4 at bit 24.
TEST(Sm100Descriptors, InstructionsAreCutlassBitFields) {
  const auto packed = [](uint32_t b_id, uint32_t format, uint32_t n, uint32_t scales, uint32_t m, uint32_t a_id) {
    return b_id << 4 | format << 7 | format << 10 | n / 8 << 17 | scales << 23 | m / 16 << 24 | a_id << 29;
  };
  EXPECT_EQ(instruction_descriptor({.kind = Kind::kMxFp8, .cols = 128, .scale_id = 3}), packed(3, 0, 128, 1, 128, 3));
  EXPECT_EQ(instruction_descriptor({.kind = Kind::kNvFp4, .cols = 64}), packed(0, 1, 64, 0, 128, 0));
}

// PTX ISA, "Shared memory descriptor layout".
TEST(Sm100Descriptors, MatricesInSharedMemory) {
  constexpr uint32_t kAddress = 0x2'8C00;
  for (const int panel_bytes : {0, 64 * 128}) {
    expect_fields(operand_descriptor(kAddress, panel_bytes), 64,
                  {{"address", 0, 13, kAddress >> 4},
                   {"reserved", 14, 15, 0},
                   {"leading offset", 16, 29, static_cast<uint64_t>(panel_bytes) >> 4},
                   {"reserved", 30, 31, 0},
                   {"stride offset", 32, 45, 1024 >> 4},
                   {"fixed 0b001", 46, 48, 1},
                   {"base offset", 49, 51, 0},
                   {"leading mode", 52, 52, 0},
                   {"fixed 0", 53, 60, 0},
                   {"swizzle of 128 bytes", 61, 63, 2}});
  }
  expect_fields(scale_descriptor(kAddress), 64,
                {{"address", 0, 13, kAddress >> 4},
                 {"reserved", 14, 15, 0},
                 {"leading offset", 16, 29, 0},
                 {"reserved", 30, 31, 0},
                 {"stride offset", 32, 45, 128 >> 4},
                 {"fixed 0b001", 46, 48, 1},
                 {"base offset", 49, 51, 0},
                 {"leading mode", 52, 52, 0},
                 {"fixed 0", 53, 60, 0},
                 {"no swizzle", 61, 63, 0}});
  EXPECT_EQ(operand_step(/*rows_of_k=*/false), 32 / 16);       // bytes of a row
  EXPECT_EQ(operand_step(/*rows_of_k=*/true), 16 * 128 / 16);  // rows of 128 bytes
}

TEST(Sm100Descriptors, AnInstructionTakes32BytesOfARow) {
  for (const Kind kind : {Kind::kBf16, Kind::kMxFp8, Kind::kNvFp4}) {
    EXPECT_EQ(value_bytes(kind, product_depth(kind)), 32);
  }
}

// "1D Block Scaling Factors Layout" of cuBLAS, and what TransformerEngine and torchao do: [rows / 128, 4, 32, blocks /
// 4, 4] with its axes in the order 0, 3, 2, 1, 4.
TEST(Sm100Descriptors, ScalesLieAsInTheReshapedMatrix) {
  constexpr int64_t kRows = 384, kScales = 20, kAcross = kScales / 4;
  std::vector<int64_t> expected(kRows * kScales);
  size_t at = 0;
  for (int64_t tile = 0; tile < kRows / 128; ++tile) {
    for (int64_t four = 0; four < kAcross; ++four) {
      for (int64_t inner = 0; inner < 32; ++inner) {
        for (int64_t outer = 0; outer < 4; ++outer) {
          for (int64_t one = 0; one < 4; ++one) {
            expected[at++] = (tile * 128 + outer * 32 + inner) * kScales + four * 4 + one;
          }
        }
      }
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t scale = 0; scale < kScales; ++scale) {
      const int64_t offset = scale_offset(row, scale, kAcross);
      ASSERT_EQ(expected[static_cast<size_t>(offset)], row * kScales + scale) << row << " " << scale;
    }
  }
}

// tcgen05.cp 32x128b.warpx4: row l of 16 bytes goes to lane l, four bytes a column. There a product of M = 128 wants
// row r's scales in lane r % 32 and column r / 32, in the byte that the scale id names.
TEST(Sm100Descriptors, ScalesComeToTheirColumns) {
  for (int64_t row = 0; row < kScaleRows; ++row) {
    for (int64_t scale = 0; scale < kScalesAcross; ++scale) {
      const int64_t byte = scale_offset(row, scale, 1);
      EXPECT_EQ(byte / 16, row % 32);      // lane
      EXPECT_EQ(byte % 16 / 4, row / 32);  // column
      EXPECT_EQ(byte % 4, scale);
    }
  }
}

// Room for every group's tiles, whatever the groups are, and rows that TMA takes.
TEST(Sm100Descriptors, OperandsHaveRoomForTheirGroups) {
  EXPECT_EQ(most_block_tiles(1000, 4), 1000 / 128 + 4);
  EXPECT_EQ(most_block_tiles(3, 8), 3);
  for (const auto& sizes : {std::vector<int64_t>{1, 1, 1}, {129, 0, 127}, {128, 128, 128}, {383, 1, 0}}) {
    int64_t rows = 0, tiles = 0;
    for (const int64_t size : sizes) rows += size, tiles += block_tiles(size);
    EXPECT_LE(tiles, most_block_tiles(rows, std::ssize(sizes)));
  }
  Arena arena("test");
  for (const OperandFormat format : {OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    for (const int64_t depth : {1, 32, 33, 144, 1408}) {
      ArenaScope scope(arena);
      const BlockOperand operand = claim_block_operand(scope, format, 300, 3, depth, 2);
      const int64_t per_byte = format == OperandFormat::kNvFp4 ? 2 : 1, n = block_size(format);
      EXPECT_GE(operand.values.dim(1) * per_byte, depth);
      EXPECT_EQ(operand.values.dim(1) % 16, 0);
      EXPECT_EQ(operand.scales.shape(), Shape({3, (operand.values.dim(1) * per_byte + 4 * n - 1) / (4 * n), 512}));
      EXPECT_EQ(operand.amax.defined(), format == OperandFormat::kNvFp4);
    }
  }
}

}  // namespace
}  // namespace nmoe::cuda::sm100
