#include "data/stream/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "data/test_data.h"

namespace nmoe {
namespace {

class LoaderTest : public FolderTest {
 protected:
  // 103 tokens 0 ... 102: 12 windows of 8 tokens, and 7 tokens that are left out.
  LoaderTest() {
    write_counting_split(dir_, 103);
    dataset_.emplace(dir_);
  }

  // Inputs, then targets, of some sequences.
  static std::vector<int32_t> read(const SequenceLoader& loader, int64_t first, int64_t count) {
    const auto size = static_cast<size_t>(count * loader.seq_len());
    std::vector<int32_t> both(2 * size, -1);
    loader.read(first, count, std::span(both).first(size), std::span(both).last(size));
    return both;
  }

  std::optional<TokenDataset> dataset_;
};

TEST_F(LoaderTest, WindowsHaveOneTokenOfLookAhead) {
  const SequenceLoader loader(*dataset_, 8, 1, /*shuffle=*/false);
  ASSERT_EQ(loader.num_windows(), 12);
  for (int64_t sequence = 0; sequence < 30; ++sequence) {
    const auto both = read(loader, sequence, 1);
    for (int i = 0; i < 8; ++i) {
      const auto input = static_cast<int32_t>(sequence % 12 * 8 + i);
      EXPECT_EQ(both[static_cast<size_t>(i)], input);
      EXPECT_EQ(both[static_cast<size_t>(8 + i)], input + 1);
    }
  }
}

TEST_F(LoaderTest, LastWindowMayEndAtTheLastToken) {
  EXPECT_EQ(SequenceLoader(*dataset_, 102, 1, false).num_windows(), 1);
  EXPECT_EQ(SequenceLoader(*dataset_, 17, 1, false).num_windows(), 6);
  EXPECT_EQ(SequenceLoader(*dataset_, 1, 1, false).num_windows(), 102);
  EXPECT_EQ(read(SequenceLoader(*dataset_, 102, 1, false), 0, 1).back(), 102);
  expect_error(ErrorKind::kRuntime, "103 tokens; one sequence and its look-ahead need 104",
               [&] { SequenceLoader(*dataset_, 103, 1, false); });
}

TEST_F(LoaderTest, EachEpochHasEveryWindowOnceInItsOwnOrder) {
  const SequenceLoader loader(*dataset_, 8, 42, /*shuffle=*/true);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 12; ++i) order.push_back(loader.window(epoch * 12 + i));
    orders.insert(order);
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 12U);
    EXPECT_GE(std::ranges::min(order), 0);
    EXPECT_LT(std::ranges::max(order), 12);
  }
  EXPECT_EQ(orders.size(), 5U);
  const SequenceLoader other_seed(*dataset_, 8, 43, true);
  EXPECT_NE(read(other_seed, 0, 12), read(loader, 0, 12));
}

TEST_F(LoaderTest, BatchesDoNotChangeTheOrder) {
  const SequenceLoader loader(*dataset_, 8, 42, /*shuffle=*/true);
  const auto all = read(loader, 0, 36);
  for (const int64_t batch : {1, 2, 3, 9, 18}) {
    std::vector<int32_t> inputs;
    std::vector<int32_t> targets;
    for (int64_t first = 0; first < 36; first += batch) {
      const auto both = read(SequenceLoader(*dataset_, 8, 42, true), first, batch);
      const auto half = static_cast<std::ptrdiff_t>(both.size() / 2);
      inputs.insert(inputs.end(), both.begin(), both.begin() + half);
      targets.insert(targets.end(), both.begin() + half, both.end());
    }
    inputs.insert(inputs.end(), targets.begin(), targets.end());
    EXPECT_EQ(inputs, all) << batch;
  }
}

}  // namespace
}  // namespace nmoe
