#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>

namespace nmoe {
namespace {

// Zeroed blocks from operator new, counting what is out.
class HeapMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    bytes_out += bytes;
    void* block = operator new(static_cast<size_t>(bytes), kAlignment);
    return std::memset(block, 0, static_cast<size_t>(bytes));
  }
  void release(void* block, int64_t bytes) noexcept override {
    bytes_out -= bytes;
    operator delete(block, kAlignment);
  }

  int64_t bytes_out = 0;

 private:
  static constexpr std::align_val_t kAlignment{static_cast<size_t>(Arena::kAlignment)};
};

// Some allocation pattern of a step; returns the tensors that outlive it.
std::vector<Tensor> allocate_pattern(Arena& arena) {
  std::vector<Tensor> kept = {arena.allocate(DType::kF32, {3, 5})};
  {
    ArenaScope scope(arena);
    scope.allocate(DType::kF64, {1000});
    scope.allocate(DType::kU8, {1});
  }
  kept.push_back(arena.allocate(DType::kI32, {0}));
  kept.push_back(arena.allocate(DType::kBF16, {64, 4}));
  return kept;
}

TEST(Arena, CountingGivesShapesWithoutData) {
  Arena arena("test");
  EXPECT_TRUE(arena.counting());
  for (const Tensor& tensor : allocate_pattern(arena)) {
    EXPECT_TRUE(tensor.defined());
    EXPECT_EQ(tensor.raw(), nullptr);
  }
  EXPECT_EQ(arena.used(), 256 + 512);
  EXPECT_EQ(arena.high_water(), 256 + 8192 + 256);  // at the end of the scope
}

TEST(Arena, ReservedWithTheCountedCapacityHoldsTheSamePattern) {
  HeapMemory memory;
  Arena counting("counting");
  allocate_pattern(counting);
  {
    Arena arena("test");
    arena.reserve(memory, counting.high_water());
    EXPECT_FALSE(arena.counting());
    EXPECT_EQ(memory.bytes_out, counting.high_water());
    const auto tensors = allocate_pattern(arena);
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % static_cast<uintptr_t>(Arena::kAlignment), 0U);
    }
    EXPECT_GE(static_cast<char*>(tensors[2].raw()), static_cast<char*>(tensors[0].raw()) + tensors[0].num_bytes());
    EXPECT_EQ(arena.used(), counting.used());
    EXPECT_EQ(arena.high_water(), counting.high_water());
  }
  EXPECT_EQ(memory.bytes_out, 0);
}

TEST(Arena, RefusesToRunOver) {
  HeapMemory memory;
  Arena arena("small");
  arena.reserve(memory, 512);
  arena.allocate(DType::kF32, {64});
  EXPECT_THROW(arena.allocate(DType::kF32, {65}), CheckFailure);
  EXPECT_EQ(arena.used(), 256);
  arena.allocate(DType::kF32, {64});  // the failed request took nothing
}

TEST(Arena, RewindReusesTheSameStorage) {
  HeapMemory memory;
  Arena arena("test");
  arena.reserve(memory, 1024);
  const int64_t mark = arena.mark();
  const void* first = arena.allocate(DType::kF32, {16}).raw();
  arena.rewind(mark);
  EXPECT_EQ(arena.allocate(DType::kF32, {32}).raw(), first);
  EXPECT_THROW(arena.rewind(arena.used() + 1), CheckFailure);
}

// From the other end: neither end runs into the other, and counting knows the sum.
TEST(Arena, LendsItsEndWithoutMovingWhatIsInUse) {
  HeapMemory memory;
  for (const bool counts : {true, false}) {
    Arena arena("test");
    if (!counts) arena.reserve(memory, 2048);
    const Tensor in_use = arena.allocate(DType::kU8, {300});
    const Tensor last = arena.lend(300), before = arena.lend(512);
    EXPECT_EQ(last.num_bytes(), 300);
    EXPECT_EQ(arena.used(), 512);
    EXPECT_EQ(arena.high_water(), 512 + 512 + 512);
    if (!counts) {
      const auto* const begin = static_cast<const char*>(arena.block());
      EXPECT_EQ(last.raw(), begin + 2048 - 512);
      EXPECT_EQ(before.raw(), begin + 2048 - 1024);
      EXPECT_THROW(arena.allocate(DType::kU8, {513}), CheckFailure);
      EXPECT_THROW(arena.lend(513), CheckFailure);
    }
    const int64_t mark = arena.mark();
    arena.allocate(DType::kU8, {512});
    arena.rewind(mark);
    arena.end_loans();
    arena.allocate(DType::kU8, {1536});
    EXPECT_EQ(arena.high_water(), 2048);
    EXPECT_EQ(in_use.num_bytes(), 300);
  }
}

// Who lends may have it back for the stack, when that grows so far.
TEST(Arena, AsksForRoomBesideLoans) {
  HeapMemory memory;
  Arena arena("test");
  arena.reserve(memory, 2048);
  arena.lend(512);
  arena.lend(512);
  std::vector<int64_t> asked;
  arena.when_full([&](int64_t lacking) {
    asked.push_back(lacking);
    if (asked.size() < 2) arena.end_loans(512);
  });
  arena.allocate(DType::kU8, {1024});
  EXPECT_EQ(asked, std::vector<int64_t>());
  arena.allocate(DType::kU8, {300});
  EXPECT_EQ(asked, std::vector<int64_t>({512}));
  EXPECT_THROW(arena.allocate(DType::kU8, {256}), CheckFailure);  // asked in vain
  EXPECT_EQ(asked, std::vector<int64_t>({512, 256}));
  arena.when_full({});
  EXPECT_THROW(arena.end_loans(513), CheckFailure);
  EXPECT_THROW(arena.allocate(DType::kU8, {256}), CheckFailure);
  EXPECT_EQ(asked.size(), 2u);
}

TEST(Arena, IsReservedOnceAndWhileEmpty) {
  HeapMemory memory;
  Arena arena("test");
  const int64_t mark = arena.mark();
  arena.allocate(DType::kF32, {1});
  EXPECT_THROW(arena.reserve(memory, 256), CheckFailure);
  arena.rewind(mark);
  arena.reserve(memory, 256);
  EXPECT_THROW(arena.reserve(memory, 256), CheckFailure);
}

}  // namespace
}  // namespace nmoe
