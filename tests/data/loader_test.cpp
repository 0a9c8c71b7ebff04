#include "data/stream/loader.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <set>

#include "data/stream/alignment.h"
#include "data/test_data.h"

namespace nmoe {
namespace {

TEST(RankSlice, SlicesAreContiguousAndWithinOneOfEqual) {
  for (const int64_t batch : {0, 1, 7, 8, 24, 1000}) {
    for (const int64_t num_ranks : {1, 2, 3, 8, 16}) {
      int64_t end = 0;
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const RankSlice slice = rank_slice(batch, rank, num_ranks);
        EXPECT_EQ(slice.begin, end);
        end = slice.end;
        const int64_t size = slice.end - slice.begin;
        EXPECT_TRUE(size == batch / num_ranks || size == batch / num_ranks + 1);
      }
      EXPECT_EQ(end, batch);
    }
  }
}

// Three sources, three stages, documents of their own; sources wrap several times.
class StreamTest : public FolderTest {
 protected:
  static constexpr int64_t kSeqLen = 6, kBatch = 8, kAlignment = 3;

  StreamTest() {
    Mixture mixture;
    std::vector<SourceFacts> facts, aligned;
    std::mt19937 random(11);
    for (const auto& [name, num_documents] : {std::pair("web", 60), std::pair("code", 25), std::pair("math", 4)}) {
      std::vector<std::vector<int32_t>> documents;
      for (int i = 0; i < num_documents; ++i) {
        std::vector<int32_t> ids(1 + random() % 12);
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % 256);
        documents.push_back(ids);
      }
      write_split(dir_ / name, documents, 257, 200);
      datasets_.emplace_back(dir_ / name);
      mixture.sources.push_back({name, name, 0.0});
      facts.push_back({name, datasets_.back().num_tokens(), name});
      aligned.push_back({name, facts.back().num_tokens, name, padding_tokens(datasets_.back(), kAlignment)});
    }
    mixture.stages = {{"pretrain", 720, {6, 3, 1}}, {"mid", 480, {1, 1, 1}}, {"long", 240, {0, 1, 3}}};
    plan_ = make_stream_plan(mixture, facts, kSeqLen, 1440, kBatch * kSeqLen);
    aligned_plan_ = make_stream_plan(mixture, aligned, kSeqLen, 1440, kBatch * kSeqLen, kAlignment);
  }

  std::vector<const TokenDataset*> sets() const {
    std::vector<const TokenDataset*> sets;
    for (const TokenDataset& dataset : datasets_) sets.push_back(&dataset);
    return sets;
  }

  // What `num_ranks` ranks, each with its own schedule and reader, train on in `steps` steps from `cursor`, put
  // together in the order of the global stream: inputs and targets. Each rank reads its slice in microbatches.
  std::vector<int32_t> stream(Shuffle shuffle, int64_t num_ranks, int64_t microbatch, int64_t steps,
                              StreamCursor& cursor) const {
    const auto step_size = static_cast<size_t>(kBatch * kSeqLen);
    std::vector<int32_t> all(static_cast<size_t>(steps) * 2 * step_size);
    StreamCursor end;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      StreamSchedule schedule(plan_);
      schedule.seek(cursor);
      const auto datasets = sets();
      const SequenceReader reader(plan_, datasets, shuffle, 5);
      for (int64_t step = 0; step < steps; ++step) {
        std::vector<SequenceRef> refs;
        schedule.take(kBatch, refs);
        const RankSlice slice = rank_slice(kBatch, rank, num_ranks);
        const std::span step_inputs = std::span(all).subspan(static_cast<size_t>(step) * 2 * step_size, step_size);
        const std::span step_targets =
            std::span(all).subspan((static_cast<size_t>(step) * 2 + 1) * step_size, step_size);
        for (int64_t begin = slice.begin; begin < slice.end; begin += microbatch) {
          const int64_t count = std::min(microbatch, slice.end - begin);
          const auto place = [&](std::span<int32_t> batch) {
            return batch.subspan(static_cast<size_t>(begin * kSeqLen), static_cast<size_t>(count * kSeqLen));
          };
          reader.read(std::span(refs).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), kSeqLen,
                      place(step_inputs), place(step_targets), {});
        }
      }
      EXPECT_TRUE(rank == 0 || schedule.cursor() == end);
      end = schedule.cursor();
    }
    cursor = end;
    return all;
  }

  void expect_the_same_for_any_ranks() const;

  StreamCursor start() const { return StreamSchedule(plan_).cursor(); }

  std::vector<TokenDataset> datasets_;
  StreamPlan plan_, aligned_plan_;
};

TEST_F(StreamTest, TargetsFollowInputs) {
  StreamCursor cursor = start();
  const auto all = stream(Shuffle::kWindows, 1, kBatch, 1, cursor);
  for (int64_t s = 0; s < kBatch; ++s) {
    for (int64_t i = 0; i + 1 < kSeqLen; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(s * kSeqLen + i + 1)], all[static_cast<size_t>((kBatch + s) * kSeqLen + i)]);
    }
  }
}

// One rank straight through against 1, 2, 4 and 8 ranks and several microbatches, stopped and resumed with another
// number of ranks in the middle of every stage, at its borders, and anywhere else.
TEST_F(StreamTest, TheStreamIsTheSameForAnyRanksBeforeAndAfterAResume) { expect_the_same_for_any_ranks(); }

TEST_F(StreamTest, SoItIsWithAlignedDocuments) {
  StreamCursor cursor = start();
  const auto plain = stream(Shuffle::kNone, 1, kBatch, 1, cursor);
  plan_ = aligned_plan_;
  cursor = start();
  EXPECT_NE(stream(Shuffle::kNone, 1, kBatch, 1, cursor), plain);
  expect_the_same_for_any_ranks();
}

void StreamTest::expect_the_same_for_any_ranks() const {
  const int64_t steps = plan_.num_sequences() / kBatch;
  ASSERT_EQ(steps, 30);  // stages end after 15, 25 and 30 steps
  for (const Shuffle shuffle : {Shuffle::kNone, Shuffle::kWindows, Shuffle::kDocuments}) {
    StreamCursor cursor = start();
    const auto straight = stream(shuffle, 1, kBatch, steps, cursor);
    const StreamCursor end = cursor;
    EXPECT_EQ(end.stage, 3);
    for (const int64_t ranks_before : {1, 2, 4, 8}) {
      for (const int64_t ranks_after : {1, 2, 4, 8}) {
        for (const int64_t cut : {0, 1, 7, 15, 16, 20, 25, 27, 30}) {
          cursor = start();
          auto resumed = stream(shuffle, ranks_before, 1 + cut % 3, cut, cursor);
          EXPECT_EQ(cursor.sequence, cut * kBatch);
          const auto rest = stream(shuffle, ranks_after, 2, steps - cut, cursor);
          resumed.insert(resumed.end(), rest.begin(), rest.end());
          ASSERT_EQ(resumed, straight) << ranks_before << " then " << ranks_after << " ranks, cut at " << cut;
          ASSERT_EQ(cursor, end);
        }
      }
    }
  }
}

// A stage with sequences of another length goes on in the text, or the order of documents, where the one before ended.
TEST_F(StreamTest, LongerSequencesGoOnWhereShorterOnesEnded) {
  Mixture mixture;
  mixture.sources = {{"web", "web", 0.0}};
  mixture.stages = {{"pretrain", 240, {1}}, {"long", 96, {1}, 12}, {"short", 48, {1}, 3}};
  const std::vector<SourceFacts> facts = {{"web", datasets_[0].num_tokens(), "web"}};
  const int64_t total = 384, step = 48;
  ASSERT_GT(datasets_[0].num_tokens(), total);
  const StreamPlan plan = make_stream_plan(mixture, facts, kSeqLen, total, step);
  const TokenDataset* const sets[] = {&datasets_[0]};
  for (const Shuffle shuffle : {Shuffle::kNone, Shuffle::kDocuments}) {
    const SequenceReader reader(plan, sets, shuffle, 5);
    const auto read = [&](const SequenceRef& ref, int64_t seq_len, std::vector<int32_t>& text) {
      std::vector<int32_t> inputs(static_cast<size_t>(seq_len)), targets(inputs.size());
      reader.read({&ref, 1}, seq_len, inputs, targets, {});
      text.insert(text.end(), inputs.begin(), inputs.end());
    };
    std::vector<int32_t> text, expected;
    StreamSchedule schedule(plan);
    while (schedule.cursor().sequence < plan.num_sequences()) {
      const int64_t seq_len = schedule.seq_len();
      std::vector<SequenceRef> refs;
      schedule.take(step / seq_len, refs);
      for (const SequenceRef& ref : refs) read(ref, seq_len, text);
    }
    for (int64_t k = 0; k < total / kSeqLen; ++k) read({0, k}, kSeqLen, expected);
    EXPECT_EQ(text, expected);
  }
  StreamSchedule schedule(plan);
  std::vector<SequenceRef> refs;
  EXPECT_THROW(schedule.take(41, refs), CheckFailure);  // of two lengths
}

// Targets that a mask leaves out have no loss; they stay as inputs.
TEST_F(StreamTest, MaskedTokensAreNoTargets) {
  std::mt19937 random(4);
  SplitWriter writer(dir_ / "masked", {.dataset = "test",
                                       .tokenizer = "bytes",
                                       .tokenizer_hash = "abc",
                                       .vocab_size = 257,
                                       .eos_id = 256,
                                       .tokens_per_shard = 40,
                                       .masks = true});
  for (int d = 0; d < 12; ++d) {
    std::vector<int32_t> ids(3 + random() % 9);
    std::vector<uint8_t> mask(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      mask[i] = static_cast<uint8_t>(random() % 2);
      ids[i] = static_cast<int32_t>(random() % 100) + (mask[i] != 0 ? 100 : 0);  // below 100: masked
    }
    writer.add_document(ids, 0, "'test.txt'", mask);
  }
  writer.close();
  writer.commit();
  const TokenDataset masked(dir_ / "masked");
  ASSERT_GT(masked.num_shards(), 1u);
  const StreamPlan plan = single_source_plan({"masked", masked.num_tokens(), ""}, kSeqLen);
  const TokenDataset* const sets[] = {&masked};
  for (const Shuffle shuffle : {Shuffle::kNone, Shuffle::kWindows, Shuffle::kDocuments}) {
    const SequenceReader reader(plan, sets, shuffle, 5);
    const SourceOrder order(masked, shuffle, 5, "masked");
    std::vector<int32_t> inputs(kSeqLen), targets(kSeqLen), window(kSeqLen + 1);
    for (int64_t k = 0; k < 2 * order.num_windows(kSeqLen); ++k) {
      const SequenceRef ref{0, k};
      reader.read({&ref, 1}, kSeqLen, inputs, targets, {});
      order.read(k, window, {}, {});
      for (size_t i = 0; i < kSeqLen; ++i) {
        EXPECT_EQ(inputs[i], window[i]);
        EXPECT_EQ(targets[i], window[i + 1] < 100 ? kNoTarget : window[i + 1]);
      }
    }
  }
}

// Documents end where the index says, however often the id that ends them stands within one: every order's flags are
// those of its tokens, which tell of their document.
TEST_F(StreamTest, DocumentsEndWhereTheIndexSays) {
  constexpr int32_t kEnd = 256;
  std::mt19937 random(6);
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 40; ++d) {
    std::vector<int32_t> ids(random() % 9, kEnd);  // none but ends; or ends and the number of the document
    for (size_t i = 0; i < ids.size(); i += 2) ids[i] = d;
    documents.push_back(ids);
  }
  write_split(dir_ / "turns", documents, kEnd + 1, 60);
  const TokenDataset turns(dir_ / "turns");
  ASSERT_GT(turns.num_shards(), 2u);
  std::vector<uint8_t> expected, all(static_cast<size_t>(turns.num_tokens()));
  for (const auto& ids : documents) {
    expected.insert(expected.end(), ids.size(), 0);
    expected.push_back(1);
  }
  turns.read_ends(0, all);
  EXPECT_EQ(all, expected);

  const StreamPlan plan = single_source_plan({"turns", turns.num_tokens(), ""}, kSeqLen);
  const TokenDataset* const sets[] = {&turns};
  const size_t stride = kSeqLen + 1;
  for (const Shuffle shuffle : {Shuffle::kNone, Shuffle::kDocuments}) {
    const SequenceReader reader(plan, sets, shuffle, 5);
    std::vector<int32_t> inputs(2 * kSeqLen), targets(2 * kSeqLen), stream;
    std::vector<uint8_t> ends(2 * stride), flags;
    for (int64_t k = 0; k + 1 < reader.num_windows(0); k += 2) {
      const SequenceRef refs[] = {{0, k}, {0, k + 1}};
      reader.read(refs, kSeqLen, inputs, targets, ends);
      EXPECT_EQ(ends[stride - 1], ends[stride]);  // the look-ahead is the next one's first token
      stream.insert(stream.end(), inputs.begin(), inputs.end());
      for (const size_t s : {size_t{0}, size_t{1}}) {
        flags.insert(flags.end(), ends.begin() + static_cast<std::ptrdiff_t>(s * stride),
                     ends.begin() + static_cast<std::ptrdiff_t>(s * stride + kSeqLen));
      }
    }
    std::multiset<std::vector<int32_t>> seen;
    std::vector<int32_t> document;
    for (size_t i = 0; i < stream.size(); ++i) {
      if (flags[i] != 0) {
        EXPECT_EQ(stream[i], kEnd);
        seen.insert(document);
        document.clear();
      } else {
        document.push_back(stream[i]);
      }
    }
    EXPECT_GT(seen.size(), 30u);
    EXPECT_TRUE(std::ranges::includes(std::multiset(documents.begin(), documents.end()), seen));
  }
}

TEST_F(StreamTest, ASplitThatIsTooShortIsNamed) {
  write_counting_split(dir_ / "valid", 6);
  const TokenDataset valid(dir_ / "valid");
  expect_error(ErrorKind::kUsage, (dir_ / "valid").string() + " has 6 tokens; one sequence and its look-ahead need 7",
               [&] { split_reader(valid, kSeqLen); });
}

TEST_F(StreamTest, ASplitIsReadInFileOrder) {
  const SequenceReader split = split_reader(datasets_[0], kSeqLen);
  std::vector<int32_t> inputs(kSeqLen), targets(kSeqLen), expected(kSeqLen + 1);
  for (int64_t window = 0; window < split.num_windows(0); ++window) {
    const SequenceRef ref{0, window};
    split.read({&ref, 1}, kSeqLen, inputs, targets, {});
    datasets_[0].read(window * kSeqLen, expected);
    EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), expected.begin()));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), expected.begin() + 1));
  }
}

}  // namespace
}  // namespace nmoe
