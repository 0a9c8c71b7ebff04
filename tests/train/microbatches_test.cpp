// How steps are cut into microbatches, what these carry, and that engines refuse what they have no place for.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "support/errors.h"
#include "support/tiny_corpus.h"
#include "train/tiny_engine.h"

namespace nmoe {
namespace {

using namespace test;

TEST(Microbatches, ThoseOfAllRanksAreTheStep) {
  for (const int64_t ranks : {1, 2, 4}) {
    const Config config = tiny_config(
        "/nowhere", {fmt::format("parallel.ranks={}", ranks), "train.microbatch_seqs=2", "model.vocab_size=50"});
    const BatchShape shape = batch_shape(config, config.data.seq_len);
    std::set<int64_t> sequences;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < shape.num_microbatches(ranks); ++i) {
        const SequencePart part = shape.part(rank, ranks, i);
        EXPECT_TRUE(part.is_whole(shape.seq_len));
        for (int64_t s = 0; s < shape.microbatch_seqs; ++s) EXPECT_TRUE(sequences.insert(part.first_seq + s).second);
      }
    }
    EXPECT_EQ(std::ssize(sequences), config.train.batch_seqs);
    EXPECT_EQ(*sequences.begin(), 0);
    EXPECT_EQ(*sequences.rbegin(), config.train.batch_seqs - 1);
  }
}

TEST(Microbatches, PartsOfSequencesHaveTheirPositions) {
  std::vector<int32_t> positions(6);
  const Batch batch{.num_seqs = 2,
                    .seq_len = 3,
                    .tokens = {},
                    .positions = Tensor(positions.data(), DType::kI32, {6}),
                    .part = {.first_position = 6, .whole_len = 12}};
  EXPECT_FALSE(batch.part.is_whole(batch.seq_len));
  fill_positions(batch, [](Tensor destination, std::span<const std::byte> values) {
    std::ranges::copy(values, static_cast<std::byte*>(destination.raw()));
  });
  EXPECT_EQ(positions, (std::vector<int32_t>{6, 7, 8, 6, 7, 8}));
}

// A row that a step has no place for would be dropped in silence, as would one that it waits for.
TEST(Microbatches, RowsThatDoNotFitAreRefusedByName) {
  const Config config = tiny_config("/nowhere", {"model.vocab_size=50"});
  ReadyEngine ready(config);
  const auto tokens = static_cast<size_t>(config.train.microbatch_seqs * config.data.seq_len);
  const std::vector<int32_t> ids(tokens, 1);
  const std::vector<float> weights(tokens, 1.0F);
  Microbatch microbatch = microbatch_of(ids, ids, {});
  microbatch.rows[BatchRow::kTargetWeights] = std::as_bytes(std::span(weights));
  const auto message = [&] {
    try {
      ready.engine.load(0, microbatch);
    } catch (const CheckFailure& failure) {
      return std::string(failure.what());
    }
    return std::string("loaded");
  };
  EXPECT_TRUE(contains(message(), "of target_weights")) << message();
  microbatch.rows = {};
  EXPECT_TRUE(contains(message(), "of targets")) << message();
  microbatch = microbatch_of(ids, ids, {});
  EXPECT_EQ(message(), "loaded");
}

}  // namespace
}  // namespace nmoe
