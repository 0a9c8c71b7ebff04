// Documents at multiples of a number of tokens: what the stream then has, against what it should have, written out.
#include "data/stream/alignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/stream/documents.h"
#include "data/stream/loader.h"
#include "data/test_data.h"

namespace nmoe {
namespace {

constexpr int64_t kAlignment = 8, kSeqLen = 24;
constexpr int32_t kEnd = 4000;

using Document = std::vector<int32_t>;

// Documents of 1 to 70 tokens with their ends, of which some fill a multiple of kAlignment exactly and some are longer
// than two sequences. Every id stands in one document only, once.
class AlignmentTest : public FolderTest {
 protected:
  AlignmentTest() {
    std::mt19937 random(3);
    int32_t next = 0;
    for (const size_t size : {0, 7, 15, 70, 23, 1, 62}) add(size, next);
    for (int i = 0; i < 90; ++i) add(random() % 40, next);
    std::vector<Document> texts;
    for (const Document& document : documents_) texts.emplace_back(document.begin(), document.end() - 1);
    write_split(dir_ / "docs", texts, kEnd + 1, 300);
    dataset_.emplace(dir_ / "docs");
    facts_ = {"docs", dataset_->num_tokens(), "hash", padding_tokens(*dataset_, kAlignment)};
    plan_ = single_source_plan(facts_, kSeqLen, kAlignment);
  }

  void add(size_t size, int32_t& next) {
    Document& document = documents_.emplace_back(size);
    for (int32_t& id : document) id = next++;
    document.push_back(kEnd);
  }

  SequenceReader reader(Shuffle shuffle) const {
    const TokenDataset* const sets[] = {&*dataset_};
    return {plan_, sets, shuffle, 5};
  }

  struct Window {
    std::vector<int32_t> inputs = std::vector<int32_t>(kSeqLen), targets = inputs;
    std::vector<uint8_t> ends = std::vector<uint8_t>(kSeqLen + 1);
    bool operator==(const Window&) const = default;
  };
  static Window read(const SequenceReader& reader, int64_t k) {
    Window window;
    const SequenceRef ref{0, k};
    reader.read({&ref, 1}, kSeqLen, window.inputs, window.targets, window.ends);
    return window;
  }

  // The windows of the documents in the order given, by the definition.
  static std::vector<Window> windows_of(const std::vector<Document>& documents) {
    std::vector<int32_t> tokens, targets;  // targets: of the token before
    std::vector<uint8_t> ends;
    for (const Document& document : documents) {
      const size_t begin = tokens.size();
      tokens.insert(tokens.end(), document.begin(), document.end());
      while (tokens.size() % kAlignment != 0) tokens.push_back(document[(tokens.size() - begin) % document.size()]);
      targets.resize(tokens.size(), kNoTarget);
      std::copy(document.begin() + 1, document.end(), targets.begin() + static_cast<std::ptrdiff_t>(begin) + 1);
      ends.resize(tokens.size());
      ends.back() = kEndsPadding;
      ends[begin + document.size() - 1] = kEndsDocument;
    }
    std::vector<Window> windows((tokens.size() - 1) / kSeqLen);
    for (size_t w = 0; w < windows.size(); ++w) {
      for (size_t i = 0; i <= kSeqLen; ++i) {
        const size_t at = w * kSeqLen + i;
        windows[w].ends[i] = ends[at];
        if (i < kSeqLen) windows[w].inputs[i] = tokens[at];
        if (i > 0) windows[w].targets[i - 1] = targets[at];
      }
    }
    return windows;
  }

  std::vector<Document> documents_;
  std::optional<TokenDataset> dataset_;
  SourceFacts facts_;
  StreamPlan plan_;
};

TEST_F(AlignmentTest, InFileOrderDocumentsAndPaddingLieAsDefined) {
  const SequenceReader of_run = reader(Shuffle::kNone);
  const std::vector<Window> expected = windows_of(documents_);
  ASSERT_EQ(of_run.num_windows(0), std::ssize(expected));
  ASSERT_GT(dataset_->num_shards(), 3u);
  for (int64_t k = 0; k < 2 * std::ssize(expected); ++k) {
    EXPECT_EQ(read(of_run, k), expected[static_cast<size_t>(k % std::ssize(expected))]) << k;
  }
  // A split for validation is read so, too.
  const SequenceReader split = split_reader(*dataset_, kSeqLen, kAlignment);
  for (int64_t k = 0; k < std::ssize(expected); ++k) EXPECT_EQ(read(split, k), expected[static_cast<size_t>(k)]) << k;
}

TEST_F(AlignmentTest, AnEpochsWindowsArePermuted) {
  const SequenceReader of_run = reader(Shuffle::kWindows);
  const std::vector<Window> expected = windows_of(documents_);
  std::set<std::vector<size_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<size_t> order;
    for (int64_t k = 0; k < std::ssize(expected); ++k) {
      const auto found = std::ranges::find(expected, read(of_run, epoch * std::ssize(expected) + k));
      ASSERT_NE(found, expected.end());
      order.push_back(static_cast<size_t>(found - expected.begin()));
    }
    orders.insert(order);
    std::ranges::sort(order);
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
  }
  EXPECT_EQ(orders.size(), 3u);
}

// The order of documents is told from the stream itself, and must then give the whole of it.
TEST_F(AlignmentTest, PermutedDocumentsLieAsDefined) {
  const SequenceReader of_run = reader(Shuffle::kDocuments);
  const int64_t num_windows = of_run.num_windows(0);
  std::vector<std::vector<Document>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<Window> windows;
    std::vector<Document> order, left = documents_;
    for (int64_t k = 0; k < num_windows; ++k) {
      windows.push_back(read(of_run, epoch * num_windows + k));
      for (size_t i = 0; i < kSeqLen; i += kAlignment) {
        // Where a document may begin. One without text is known by its padding, which is ends, too.
        const int32_t id = windows.back().inputs[i];
        const auto found = std::ranges::find_if(left, [&](const Document& document) {
          return document.front() == id && (document.size() > 1 || windows.back().inputs[i + 1] == kEnd);
        });
        if (found == left.end()) continue;
        order.push_back(*found);
        left.erase(found);
      }
    }
    order.insert(order.end(), left.begin(), left.end());  // in what is left over, if anywhere
    const std::vector<Window> expected = windows_of(order);
    ASSERT_EQ(std::ssize(expected), num_windows);
    for (size_t k = 0; k + 1 < expected.size(); ++k) ASSERT_EQ(windows[k], expected[k]) << epoch << ' ' << k;
    orders.push_back(order);
    // In any order of reading.
    for (int64_t k = num_windows - 1; k >= 0; k -= 5) {
      EXPECT_EQ(read(of_run, epoch * num_windows + k), windows[static_cast<size_t>(k)]);
    }
  }
  EXPECT_NE(orders[0], orders[1]);
}

// Tokens that a mask leaves out stay left out.
TEST_F(AlignmentTest, AMaskHoldsBesides) {
  SplitWriter writer(dir_ / "masked", {.dataset = "test",
                                       .tokenizer = "bytes",
                                       .tokenizer_hash = "abc",
                                       .vocab_size = kEnd + 1,
                                       .eos_id = kEnd,
                                       .masks = true});
  for (const Document& document : documents_) {
    const std::vector<int32_t> text(document.begin(), document.end() - 1);
    std::vector<uint8_t> mask;
    for (const int32_t id : text) mask.push_back(id % 3 == 0 ? 0 : 1);
    writer.add_document(text, 0, "'test.txt'", mask);
  }
  writer.close();
  writer.commit();
  const TokenDataset masked(dir_ / "masked");
  const TokenDataset* const sets[] = {&masked};
  const SequenceReader of_run(plan_, sets, Shuffle::kNone, 5);
  std::vector<Window> expected = windows_of(documents_);
  for (size_t k = 0; k < expected.size(); ++k) {
    for (int32_t& target : expected[k].targets) {
      if (target != kEnd && target % 3 == 0) target = kNoTarget;
    }
    EXPECT_EQ(read(of_run, static_cast<int64_t>(k)), expected[k]) << k;
  }
}

TEST_F(AlignmentTest, PlansCountThePadding) {
  int64_t tokens = 0, aligned_tokens = 0;
  for (const Document& document : documents_) {
    tokens += std::ssize(document);
    aligned_tokens += (std::ssize(document) + 7) / 8 * 8;
  }
  EXPECT_EQ(facts_.num_padding, aligned_tokens - tokens);
  EXPECT_EQ(padding_tokens(*dataset_, 1), 0);
  EXPECT_EQ(plan_.sources[0].num_windows(kSeqLen), (aligned_tokens - 1) / kSeqLen);
  const double share = static_cast<double>(facts_.num_padding) / static_cast<double>(aligned_tokens);
  EXPECT_DOUBLE_EQ(plan_.padding_share(), share);
  EXPECT_EQ(
      print_padding(plan_),
      fmt::format("padding: {:.2f} % of the tokens, as documents begin at multiples of 8 (data.align_documents)\n",
                  100.0 * share));

  const StreamPlan plain = single_source_plan({"docs", facts_.num_tokens, "hash"}, kSeqLen);
  EXPECT_EQ(print_padding(plain), "");
  EXPECT_EQ(plain.padding_share(), 0.0);
  EXPECT_NE(plain.hash(), plan_.hash());
  EXPECT_NE(single_source_plan(facts_, kSeqLen, 4).hash(), plan_.hash());

  // Of a mixture: each source's share of it, by what the plan takes of the source.
  Mixture mixture;
  mixture.sources = {{"docs", "docs", 0.0}, {"whole", "whole", 0.0}};
  mixture.stages = {{"all", 960, {1, 3}}};
  const StreamPlan mixed = make_stream_plan(mixture, {facts_, {"whole", 8000, "w"}}, kSeqLen, 960, kSeqLen, kAlignment);
  EXPECT_DOUBLE_EQ(mixed.padding_share(), share / 4);
}

TEST_F(AlignmentTest, OnlyMultiplesAreSequences) {
  const SourceOrder order(*dataset_, Shuffle::kNone, 1, "a", kAlignment);
  EXPECT_THROW(order.num_windows(12), CheckFailure);
  write_split(dir_ / "short", {Document(kSeqLen - kAlignment)}, kEnd + 1);
  const TokenDataset too_short(dir_ / "short");
  expect_error(ErrorKind::kUsage, "has 24 tokens; one sequence and its look-ahead need 25",
               [&] { split_reader(too_short, kSeqLen, kAlignment); });
}

// Lengths are passed once, not at every read, whatever the order.
TEST_F(AlignmentTest, PositionsAreFoundOnce) {
  for (const Shuffle shuffle : {Shuffle::kNone, Shuffle::kWindows}) {
    const SourceOrder order(*dataset_, shuffle, 1, "a", kAlignment);
    std::vector<int32_t> tokens(kSeqLen + 1);
    const int64_t windows = order.num_windows(kSeqLen);
    for (int64_t k = 0; k < 3 * windows; ++k) order.read(k, tokens, {}, {});
    EXPECT_LE(order.documents_passed(), 97 + 3 * windows * 32);
    EXPECT_GT(order.documents_passed(), 0);
  }
  EXPECT_EQ(SourceOrder::memory_bytes(Shuffle::kWindows, kAlignment), SourceOrder::memory_bytes(Shuffle::kDocuments));
}

}  // namespace
}  // namespace nmoe
