// Runs with data.align_documents: what they count, that they go on where they stopped, and that a document's losses are
// the same bits wherever it lies.
#include <numeric>

#include "eval/scorer.h"
#include "model/spec/cost.h"
#include "train/loop/batch_stream.h"
#include "train/loop/in_loop_evaluation.h"
#include "train/loop/training_data.h"
#include "train/tiny_engine.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class AlignedDocumentsTest : public TrainerTest {
 protected:
  // Documents of 5 to 24 tokens.
  AlignedDocumentsTest() {
    std::string text;
    for (size_t i = 0; i < 300; ++i) text += std::string(i * 7 % 20 + 3, "abcde"[i % 5]) + "\n--\n";
    make_directories(dir_ / "text");
    write_file_atomically(dir_ / "text/text.txt", text);
    prepare_dataset({.inputs = {(dir_ / "text/text.txt").string()},
                     .valid_fraction = 0.3,
                     .records = {.split_on = "--"},
                     .out = dir_ / "short",
                     .threads = 1});
  }

  std::vector<std::string> aligned(std::vector<std::string> overrides) const {
    overrides.insert(overrides.begin(),
                     {"data.path=" + (dir_ / "short").string(), "data.mask_documents=true", "data.align_documents=8"});
    return overrides;
  }

  // Of the first steps of a run: tokens without padding, FLOPs, targets.
  struct Counts {
    int64_t tokens = 0, targets = 0;
    double flops = 0.0;
  };
  Counts counts(int64_t steps, int64_t ranks) const {
    const Config raw = test::tiny_config(dir_, aligned({fmt::format("parallel.ranks={}", ranks)}));
    const TrainingData data = open_training_data(raw);
    const Config config = resolve_vocab_size(raw, *data.tokenizer);
    const StreamPlan plan = plan_training_data(config, data, 0);
    const ModelCost cost = model_cost(config.model);
    Counts all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchStream batches(config, data, plan, rank);
      for (int64_t step = 0; step < steps; ++step) {
        batches.next();
        all.tokens += batches.num_tokens();
        all.targets += batches.num_targets();
        all.flops += batches.flops(cost);
      }
    }
    return all;
  }
};

// Of the microbatches themselves: what is no target for want of a next token is each document's last, and its padding.
TEST_F(AlignedDocumentsTest, PaddingIsNoTokenAndNoTarget) {
  const Config raw = test::tiny_config(dir_, aligned({}));
  const TrainingData data = open_training_data(raw);
  const Config config = resolve_vocab_size(raw, *data.tokenizer);
  const StreamPlan plan = plan_training_data(config, data, 0);
  BatchStream batches(config, data, plan);
  const ModelCost cost = model_cost(config.model);
  int64_t padding = 0;
  for (int step = 0; step < 6; ++step) {
    batches.next();
    int64_t tokens = 0;
    double flops = 0.0;
    for (int64_t m = 0; m < batches.num_microbatches(); ++m) {
      const Microbatch microbatch = batches.microbatch(m);
      const Documents& documents = *microbatch.documents;
      const auto* targets = reinterpret_cast<const int32_t*>(microbatch.rows[BatchRow::kTargets].data());
      for (int32_t number = 0; number < documents.count(); ++number) {
        const int64_t begin = documents.cu_seqlens[static_cast<size_t>(number)], length = documents.length(number);
        const bool is_padding = std::ranges::count(documents.padding, number) > 0;
        EXPECT_EQ(is_padding, begin % 8 != 0);
        if (is_padding) {
          EXPECT_EQ((begin + length) % 8, 0);
          for (int64_t i = 0; i < length; ++i) EXPECT_EQ(targets[begin + i], kNoTarget);
          padding += length;
          continue;
        }
        for (int64_t i = 0; i + 1 < length; ++i) {
          EXPECT_EQ(targets[begin + i], microbatch.tokens[static_cast<size_t>(begin + i + 1)]);
        }
        const bool is_cut = (begin + length) % 16 == 0 && targets[begin + length - 1] != kNoTarget;
        const bool ends = microbatch.tokens[static_cast<size_t>(begin + length - 1)] == data.tokenizer->eos_id();
        EXPECT_NE(is_cut, ends);
        tokens += length;
        flops += cost.document_flops(length);
      }
    }
    EXPECT_EQ(batches.num_tokens(), tokens);
    EXPECT_DOUBLE_EQ(batches.flops(cost), flops);
  }
  EXPECT_GT(padding, 0);
}

TEST_F(AlignedDocumentsTest, ARunCountsTokensAndGoesOnAnywhere) {
  run("straight", aligned({"train.steps=5", "train.valid_every=5"}));
  const Counts all = counts(5, 1);
  EXPECT_LT(all.tokens, 5 * 8 * 16);
  EXPECT_LT(all.targets, all.tokens);
  EXPECT_EQ(series("straight", "train/tokens_seen").at(5), static_cast<double>(all.tokens));
  EXPECT_DOUBLE_EQ(series("straight", "train/flops").at(5), all.flops);
  EXPECT_EQ(CheckpointReader::open(checkpoints("straight")).info().tokens, all.tokens);
  EXPECT_EQ(row("straight").tokens, all.tokens);
  const double seconds = series("straight", "throughput/ms_per_step").at(5) / 1e3;
  EXPECT_NEAR(series("straight", "throughput/tokens_per_s").at(5) * seconds,
              static_cast<double>(all.tokens - counts(4, 1).tokens), 1e-6 * static_cast<double>(all.tokens));
  for (const int cut : {1, 2, 3, 4}) {
    const std::string name = fmt::format("cut_{}", cut);
    run(name, aligned({fmt::format("train.steps={}", cut)}));
    resume(name, aligned({"train.steps=5"}));
    expect_same_state(checkpoints(name), checkpoints("straight"));
    EXPECT_EQ(series(name, "train/tokens_seen"), series("straight", "train/tokens_seen"));
  }
  for (const char* other : {"data.align_documents=1", "data.align_documents=4"}) {
    std::vector<std::string> overrides = aligned({"train.steps=9"});
    overrides.emplace_back(other);
    const Error error = error_of([&] { resume("straight", overrides); });
    EXPECT_TRUE(contains(error.what(), "data.align_documents: 8 != ")) << error.what();
  }
}

// A schedule in tokens goes by positions, which a plan knows.
TEST_F(AlignedDocumentsTest, SchedulesGoByPositions) {
  run("steps", aligned({"train.steps=5"}));
  run("tokens", aligned({"train.steps=5", "optim.schedule.unit=tokens", "optim.schedule.warmup=640",
                         "optim.schedule.hold=1280", "optim.schedule.decay=5120"}));
  EXPECT_EQ(series("tokens", "optimizer/lr"), series("steps", "optimizer/lr"));
  expect_same_state(checkpoints("tokens"), checkpoints("steps"));
}

TEST_F(AlignedDocumentsTest, RanksShareTheSameStream) {
  const auto on = [&](int ranks) {
    return aligned({"train.steps=3", "train.microbatch_seqs=2", "parallel.logical_shards=4",
                    fmt::format("parallel.ranks={}", ranks)});
  };
  run("one", on(1));
  run("two", on(2));
  expect_same_state(checkpoints("two"), checkpoints("one"));
  EXPECT_EQ(counts(3, 2).tokens, counts(3, 1).tokens);
  EXPECT_EQ(series("two", "train/tokens_seen").at(3), static_cast<double>(counts(3, 1).tokens));
}

// Losses of documents that lie alone in a sequence, and packed with others in any order.
TEST_F(AlignedDocumentsTest, ADocumentsLossesAreTheSameBitsAloneAndPacked) {
  constexpr int64_t kSeqLen = 128, kAlignment = 32;
  const Config config = test::tiny_config(
      dir_, {"model.vocab_size=257", "data.mask_documents=true", fmt::format("data.seq_len={}", kSeqLen),
             fmt::format("data.align_documents={}", kAlignment), "train.microbatch_seqs=1"});
  test::ReadyEngine ready(config);
  const std::vector<int64_t> lengths = {40, 9, 32};
  // The losses of documents, by their numbers, which lie one behind the other in the order given.
  const auto losses_of = [&](const std::vector<size_t>& order) {
    std::vector<int32_t> inputs, targets;
    std::vector<uint8_t> ends;
    std::map<size_t, int64_t> begins;
    for (const size_t number : order) {
      const auto ids = test::random_ids(lengths[number], 257, number);
      begins[number] = std::ssize(inputs);
      inputs.insert(inputs.end(), ids.begin(), ids.end());
      targets.insert(targets.end(), ids.begin() + 1, ids.end());
      targets.push_back(kNoTarget);
      ends.resize(inputs.size());
      ends.back() = kEndsDocument;
      while (std::ssize(inputs) % kAlignment != 0) inputs.push_back(ids[(inputs.size() - ends.size()) % ids.size()]);
      if (inputs.size() > ends.size()) {
        ends.resize(inputs.size());
        ends.back() = kEndsPadding;
      }
      targets.resize(inputs.size(), kNoTarget);
    }
    inputs.resize(kSeqLen, 65);
    targets.resize(kSeqLen, kNoTarget);
    ends.resize(kSeqLen + 1);
    Documents documents;
    find_documents(ends, 1, kSeqLen, documents);
    std::vector<float> losses(kSeqLen);
    ready.engine.evaluate(inputs, targets, losses, documents);
    std::map<size_t, std::vector<float>> of_documents;
    for (const auto& [number, begin] : begins) {
      const auto first = losses.begin() + begin;
      of_documents[number].assign(first, first + lengths[number] - 1);
    }
    return of_documents;
  };
  std::vector<size_t> order = {0, 1, 2};
  do {
    const auto packed = losses_of(order);
    for (const size_t number : order) {
      EXPECT_GT(packed.at(number).front(), 0.0f);
      EXPECT_EQ(losses_of({number}).at(number), packed.at(number)) << number;
    }
  } while (std::ranges::next_permutation(order).found);
}

// Texts of in-loop evaluation lie at multiples, too, and their scores are those of texts alone.
TEST_F(AlignedDocumentsTest, TextsThatAreScoredAreAligned) {
  const auto scores = [&](const char* alignment, const std::vector<ScoredText>& texts) {
    const Config config =
        test::tiny_config(dir_, {"model.vocab_size=257", "data.mask_documents=true", "data.seq_len=64",
                                 std::string("data.align_documents=") + alignment, "train.microbatch_seqs=1"});
    test::ReadyEngine ready(config);
    EngineScorer scorer(ready.engine, config);
    std::vector<TextScore> all;
    const std::vector<ScoredText>* const groups[] = {&texts};
    scorer.score(groups,
                 [&](size_t, std::span<const TextScore> of_group) { all.assign(of_group.begin(), of_group.end()); });
    return all;
  };
  std::vector<ScoredText> texts;
  for (const int64_t length : {9, 33, 32, 5}) texts.push_back({test::random_ids(length, 257, 7), 3});
  const std::vector<TextScore> together = scores("32", texts), anywhere = scores("1", texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<TextScore> alone = scores("32", {texts[i]});
    EXPECT_EQ(together[i].nats, alone[0].nats);
    EXPECT_EQ(together[i].tokens, std::ssize(texts[i].tokens) - 3);
    EXPECT_NEAR(together[i].nats, anywhere[i].nats, 1e-4);
  }
}

}  // namespace
}  // namespace nmoe
