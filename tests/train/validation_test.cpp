#include "train/loop/validation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/thread_group.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/tiny_corpus.h"
#include "train/loop/training_data.h"
#include "train/tiny_engine.h"

namespace nmoe {
namespace {

// 24 bytes and the end of the document: six windows of four targets, the last target being the end.
constexpr std::string_view kText = "abcaabbaacabaaaabbbcabca";

// Whatever came before: half of what follows is "a", a quarter "b", and the other 255 ids share
// the rest.
double probability(int64_t id) {
  if (id == 'a') return 0.5;
  return id == 'b' ? 0.25 : 0.25 / 255.0;
}

class ValidationTest : public test::TempDirTest {
 protected:
  ValidationTest() {
    test::write_corpus(dir_ / "data", std::string(kText), std::string(kText));
    config_ = test::tiny_config(dir_, {"data.seq_len=4", "model.vocab_size=257"});
    data_.emplace(open_training_data(config_));
    split_.emplace(split_reader(*data_->sources[0].valid, 4));
    engine_.emplace(config_);
    set_weights(*engine_);
  }

  // A stream of ones, to which no layer adds, meets rows of log p / D in the head.
  static void set_weights(test::ReadyEngine& ready) {
    for (const Weight& weight : ready.engine.model().weights().all()) {
      const std::string& name = weight.spec.name;
      const Tensor tensor = weight.value;
      const bool is_one = name == "embedding" || name == "final_norm";
      ready.ops().fill({tensor, is_one ? 1.0 : 0.0});
      if (name != "head") continue;
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        test::set(tensor, i, std::log(probability(i / tensor.dim(1))) / 16.0);
      }
    }
  }

  ValidationResult run(const std::vector<int32_t>& token_bytes, int64_t max_seqs, int64_t microbatch) {
    return validate(engine_->engine, *split_, token_bytes, max_seqs, microbatch);
  }

  // Documents "question? answer" of which the mask hides the question.
  void prepare_pairs() const {
    write_file_atomically(dir_ / "pairs.jsonl", R"({"prompt": "x?", "text": "a"})"
                                                "\n"
                                                R"({"prompt": "y?", "text": "aa"})"
                                                "\n"
                                                R"({"prompt": "z?", "text": "ab"})"
                                                "\n"
                                                R"({"prompt": "w?", "text": "b"})"
                                                "\n");
    prepare_dataset({.inputs = {(dir_ / "pairs.jsonl").string()},
                     .records = {.prompt_field = "prompt"},
                     .out = dir_ / "pairs",
                     .threads = 1});
  }

  // -log of the probabilities of kText[1] ... kText[num_targets].
  static double nats(int64_t num_targets) {
    double sum = 0;
    for (const char c : kText.substr(1, static_cast<size_t>(num_targets))) {
      sum -= std::log(probability(c));
    }
    return sum;
  }

  Config config_;
  std::optional<TrainingData> data_;
  std::optional<SequenceReader> split_;
  std::optional<test::ReadyEngine> engine_;
};

TEST_F(ValidationTest, BitsPerByteByHand) {
  const auto token_bytes = token_byte_counts(*data_->tokenizer);
  ASSERT_EQ(split_->num_windows(0), 6);
  for (const int64_t microbatch : {1, 2, 4}) {  // six windows: with and without a rest
    const ValidationResult all = run(token_bytes, 0, microbatch);
    // The end of the document is a target like the others, but no text: bits per byte are of 23 targets of 24.
    const double end = -std::log(probability(256));
    EXPECT_EQ(all.tokens, 24);
    EXPECT_EQ(all.bytes, 23);
    EXPECT_LE(std::abs(all.loss() - (nats(23) + end) / 24), 1e-5);
    EXPECT_LE(std::abs(all.bits_per_byte() - nats(23) / 23 / std::log(2.0)), 1e-5);
    EXPECT_EQ(all.special, 1);
    EXPECT_EQ(all.special_share(), 1.0 / 24.0);
    EXPECT_LE(std::abs(all.special_loss() - end), 1e-5);

    const ValidationResult five = run(token_bytes, 5, microbatch);
    EXPECT_EQ(five.tokens, 20);
    EXPECT_LE(std::abs(five.loss() - nats(20) / 20), 1e-5);
  }
  EXPECT_EQ(run(token_bytes, 100, 4).tokens, 24);
}

// Were a "b" three bytes of text, the same nats would be spread over more of them.
TEST_F(ValidationTest, BytesAreThoseThatTokensStandFor) {
  auto token_bytes = token_byte_counts(*data_->tokenizer);
  token_bytes['b'] = 3;
  const auto num_b = std::count(kText.begin() + 1, kText.end(), 'b');
  const ValidationResult result = run(token_bytes, 0, 4);
  EXPECT_EQ(result.tokens, 24);
  EXPECT_EQ(result.bytes, 23 + 2 * num_b);
  EXPECT_LE(std::abs(result.bits_per_byte() - nats(23) / std::log(2.0) / static_cast<double>(23 + 2 * num_b)), 1e-5);
}

TEST_F(ValidationTest, BytesOfTokens) {
  const auto counts = token_byte_counts(*byte_tokenizer());
  ASSERT_EQ(counts.size(), 257u);
  EXPECT_EQ(std::count(counts.begin(), counts.begin() + 256, 1), 256);
  EXPECT_EQ(counts[256], 0);  // the end of a document
}

// The model says "a" whatever comes.
TEST_F(ValidationTest, AnswersByHand) {
  prepare_pairs();
  const TokenDataset pairs(dir_ / "pairs/train");
  ASSERT_EQ(pairs.num_tokens(), 4 + 5 + 5 + 4);
  const auto token_bytes = token_byte_counts(*data_->tokenizer);
  for (const int64_t microbatch : {1, 3, 4}) {
    // Inputs "x?a." "y?aa" ".z?a" "b.w?": nothing is cut but the last answer, whose end is not read.
    const ValidationResult result = validate(engine_->engine, split_reader(pairs, 4), token_bytes, 0, microbatch);
    EXPECT_EQ(result.tokens, 6 + 3);
    EXPECT_EQ(result.special, 3);
    EXPECT_EQ(result.special_predicted, 0);  // the model never stops
    EXPECT_EQ(result.answers, 3);
    EXPECT_EQ(result.answers_correct, 2);
    EXPECT_EQ(result.answers_correct_share(), 2.0 / 3.0);
  }
  const ValidationResult plain = run(token_bytes, 0, 4);
  EXPECT_EQ(plain.answers, 0);
  ValidationResult sum = validate(engine_->engine, split_reader(pairs, 4), token_bytes, 0, 4);
  sum += plain;
  sum += sum;
  EXPECT_EQ(sum.answers, 6);
  EXPECT_EQ(sum.answers_correct, 4);
}

// However many ranks divide the windows, they count what one counts; some have none.
TEST_F(ValidationTest, RanksDivideTheWindows) {
  prepare_pairs();
  const TokenDataset pairs(dir_ / "pairs/train");
  const SequenceReader pairs_split = split_reader(pairs, 4);
  const auto token_bytes = token_byte_counts(*data_->tokenizer);
  const ValidationResult text = run(token_bytes, 0, 4),
                         answers = validate(engine_->engine, pairs_split, token_bytes, 0, 4);
  for (const int64_t ranks : {2, 3, 6}) {
    const Config config =
        test::tiny_config(dir_, {"data.seq_len=4", "model.vocab_size=257", fmt::format("parallel.ranks={}", ranks),
                                 fmt::format("train.batch_seqs={}", 4 * ranks)});
    run_ranks(ranks, std::chrono::minutes(1), [&](Communicator& communicator) {
      test::ReadyEngine ready(config, 1, communicator);
      set_weights(ready);
      for (const int64_t microbatch : {1, 3, 4}) {
        const ValidationResult divided = validate(ready.engine, *split_, token_bytes, 0, microbatch);
        EXPECT_EQ(divided.tokens, text.tokens);
        EXPECT_EQ(divided.bytes, text.bytes);
        EXPECT_EQ(divided.special, text.special);
        EXPECT_NEAR(divided.text_nats, text.text_nats, 1e-6 * text.text_nats);
        EXPECT_NEAR(divided.nats, text.nats, 1e-6 * text.nats);  // fp32 rounds another batch otherwise
        const ValidationResult asked = validate(ready.engine, pairs_split, token_bytes, 0, microbatch);
        EXPECT_EQ(asked.tokens, answers.tokens);
        EXPECT_EQ(asked.answers, answers.answers);
        EXPECT_EQ(asked.answers_correct, answers.answers_correct);
      }
    });
  }
}

}  // namespace
}  // namespace nmoe
