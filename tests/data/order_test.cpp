#include "data/stream/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "data/test_data.h"

namespace nmoe {
namespace {

class OrderTest : public FolderTest {
 protected:
  // 103 tokens 0 ... 102: 12 windows of 8 tokens, and 7 tokens that are left out.
  OrderTest() {
    write_counting_split(dir_, 103);
    dataset_.emplace(dir_);
  }

  static std::vector<int32_t> read(const SourceOrder& order, int64_t k, int64_t seq_len) {
    std::vector<int32_t> tokens(static_cast<size_t>(seq_len + 1));
    order.read(k, tokens, {}, {});
    return tokens;
  }

  std::optional<TokenDataset> dataset_;
};

TEST_F(OrderTest, WindowsHaveOneTokenOfLookAhead) {
  const SourceOrder order(*dataset_, Shuffle::kNone, 1, "a");
  ASSERT_EQ(order.num_windows(8), 12);
  for (int64_t k = 0; k < 30; ++k) {
    const auto tokens = read(order, k, 8);
    for (int i = 0; i <= 8; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], k % 12 * 8 + i);
  }
}

TEST_F(OrderTest, TheLastWindowMayEndAtTheLastToken) {
  const auto windows = [&](int64_t seq_len) {
    return SourceOrder(*dataset_, Shuffle::kNone, 1, "a").num_windows(seq_len);
  };
  EXPECT_EQ(windows(102), 1);
  EXPECT_EQ(windows(17), 6);
  EXPECT_EQ(windows(1), 102);
  EXPECT_EQ(read(SourceOrder(*dataset_, Shuffle::kNone, 1, "a"), 0, 102).back(), 102);
  expect_error(ErrorKind::kRuntime, "103 tokens; one sequence and its look-ahead need 104", [&] { windows(103); });
}

TEST_F(OrderTest, EachEpochHasEveryWindowOnceInItsOwnOrder) {
  const SourceOrder order(*dataset_, Shuffle::kWindows, 42, "a");
  const auto epoch_of = [](const SourceOrder& o, int64_t epoch) {
    std::vector<int32_t> firsts;
    for (int64_t k = 0; k < 12; ++k) firsts.push_back(read(o, epoch * 12 + k, 8)[0]);
    return firsts;
  };
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int32_t> firsts = epoch_of(order, epoch);
    orders.insert(firsts);
    std::ranges::sort(firsts);
    for (int32_t window = 0; window < 12; ++window) EXPECT_EQ(firsts[static_cast<size_t>(window)], window * 8);
  }
  EXPECT_EQ(orders.size(), 5u);
  EXPECT_NE(epoch_of(SourceOrder(*dataset_, Shuffle::kWindows, 43, "a"), 0), epoch_of(order, 0));
  EXPECT_NE(epoch_of(SourceOrder(*dataset_, Shuffle::kWindows, 42, "b"), 0), epoch_of(order, 0));
}

// 3,000 documents of 1 to 7 tokens over several shards: an epoch is a permutation of them, whole.
TEST_F(OrderTest, DocumentsArePermutedWhole) {
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> documents;
  int32_t next = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> ids(random() % 7);
    for (int32_t& id : ids) id = next++;
    documents.push_back(ids);
  }
  const int32_t eos = next;
  write_split(dir_ / "docs", documents, eos + 1, 4000);
  const TokenDataset dataset(dir_ / "docs");
  ASSERT_GT(dataset.manifest().num_shards, 2);
  constexpr int64_t kLength = 16;
  const SourceOrder order(dataset, Shuffle::kDocuments, 9, "d");
  EXPECT_EQ(order.num_windows(kLength), (dataset.num_tokens() - 1) / kLength);

  std::vector<std::vector<int32_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> stream = {read(order, epoch * order.num_windows(kLength), kLength)[0]};
    for (int64_t w = 0; w < order.num_windows(kLength); ++w) {
      const auto tokens = read(order, epoch * order.num_windows(kLength) + w, kLength);
      ASSERT_EQ(tokens.front(), stream.back());  // the look-ahead is the next window's first token
      stream.insert(stream.end(), tokens.begin() + 1, tokens.end());
    }
    std::multiset<std::vector<int32_t>> seen, expected(documents.begin(), documents.end());
    std::vector<int32_t> document;
    for (const int32_t token : stream) {
      if (token == eos) {
        seen.insert(document);
        document.clear();
      } else {
        document.push_back(token);
      }
    }
    // All but the few whose end lies in what is left over.
    EXPECT_GE(seen.size() + kLength, documents.size());
    EXPECT_TRUE(std::ranges::includes(expected, seen));
    epochs.push_back(stream);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  // Random access gives the same: backwards, across epochs.
  for (int64_t k = 3 * order.num_windows(kLength) - 1; k >= 0; k -= 97) {
    const auto tokens = read(order, k, kLength);
    const auto& stream = epochs[static_cast<size_t>(k / order.num_windows(kLength))];
    const auto begin = stream.begin() + k % order.num_windows(kLength) * kLength;
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), begin)) << k;
  }
}

// An epoch begins without a look at all its documents, and what is kept of them does not grow with their number: there
// are more here than positions are kept at every 32nd.
TEST_F(OrderTest, PositionsAreFoundWhileReading) {
  constexpr int64_t kDocuments = 2'200'000, kLength = 64;
  write_split(dir_ / "docs", std::vector<std::vector<int32_t>>(kDocuments, {7}), 9, 1'000'000);
  const TokenDataset dataset(dir_ / "docs");
  const SourceOrder order(dataset, Shuffle::kDocuments, 3, "d");
  int64_t most = 0;
  for (int64_t k = order.num_windows(kLength) - 100; k < order.num_windows(kLength) + 100; ++k) {
    const int64_t before = order.documents_passed();
    read(order, k, kLength);
    // The very first read is as a resumed run's.
    if (k > order.num_windows(kLength) - 100) most = std::max(most, order.documents_passed() - before);
  }
  EXPECT_LE(most, kLength);
  // Backwards, from mark to mark.
  const int64_t before = order.documents_passed();
  read(order, order.num_windows(kLength) / 2, kLength);
  EXPECT_LE(order.documents_passed() - before, 64);
  EXPECT_EQ(SourceOrder::memory_bytes(Shuffle::kWindows), 0);
  EXPECT_LE(SourceOrder::memory_bytes(Shuffle::kDocuments), 2 << 20);
}

// An index with a hole: documents that it leaves out must not vanish from the stream.
TEST_F(OrderTest, ADamagedIndexIsAnError) {
  const DatasetManifest manifest = write_split(dir_ / "docs", {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  const fs::path index = dir_ / "docs" / manifest.shards[0].index_path;
  const TokenDataset dataset(dir_ / "docs");
  uint64_t begin = 5;  // of the second document, which begins at 4
  const size_t header = read_file(index).size() - 3 * sizeof(DocumentSpan);
  patch(index, header + sizeof(DocumentSpan), std::string(reinterpret_cast<const char*>(&begin), sizeof(begin)));
  const SourceOrder order(dataset, Shuffle::kWindows, 1, "a");  // needs it only to tell documents apart
  read(order, 0, 11);
  std::vector<int32_t> tokens(12);
  std::vector<uint8_t> ends(tokens.size());
  expect_error(ErrorKind::kRuntime, "no document of it has the token at 4", [&] { order.read(0, tokens, {}, ends); });
  expect_error(ErrorKind::kRuntime, "the document after position 4 is [5, 8) of 12",
               [&] { SourceOrder(dataset, Shuffle::kDocuments, 1, "a"); });
}

// The index of another shard: as many documents, of other lengths.
TEST_F(OrderTest, ADocumentThatDoesNotEndAsDocumentsDoIsAnError) {
  const DatasetManifest manifest = write_split(dir_ / "docs", {{1, 2, 3}, {4, 5, 6}});
  const fs::path index = dir_ / "docs" / manifest.shards[0].index_path;
  const DocumentSpan spans[] = {{0, 3}, {3, 8}};
  patch(index, read_file(index).size() - sizeof(spans), {reinterpret_cast<const char*>(spans), sizeof(spans)});
  const TokenDataset dataset(dir_ / "docs");
  std::vector<uint8_t> ends(8);
  expect_error(ErrorKind::kRuntime, "the document that ends at 3 has 3 there, not 256",
               [&] { dataset.read_ends(0, ends); });
}

}  // namespace
}  // namespace nmoe
