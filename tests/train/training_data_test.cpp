#include "train/loop/training_data.h"

#include <gtest/gtest.h>

#include "data/stream/order.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

class TrainingDataTest : public test::TempDirTest {
 protected:
  Config config() const { return test::tiny_config(dir_); }
  fs::path data() const { return dir_ / "data"; }
};

TEST_F(TrainingDataTest, OpensBothSplits) {
  test::write_corpus(data(), "twelve bytes", "seven b");
  const TrainingData opened = open_training_data(config());
  ASSERT_EQ(opened.sources.size(), 1u);
  const DataSource& source = opened.sources[0];
  EXPECT_EQ(source.train.num_tokens(), 13);
  ASSERT_TRUE(source.valid.has_value());
  EXPECT_EQ(source.valid->num_tokens(), 8);
  EXPECT_EQ(opened.tokenizer->vocab_size(), 257);
  Config shuffled = config();
  const int64_t files = source.train.mapped_bytes() + source.valid->mapped_bytes();
  EXPECT_EQ(opened.host_bytes(shuffled), files);
  EXPECT_GE(files, 2 * (13 + 8));
  // Documents are found by the index, and their order keeps positions in every rank.
  shuffled.data.shuffle = Shuffle::kDocuments;
  shuffled.parallel.ranks = 3;
  EXPECT_EQ(opened.host_bytes(shuffled),
            files + source.train.mapped_index_bytes() + 3 * SourceOrder::memory_bytes(Shuffle::kDocuments));
  // So does that of aligned documents, also of those that are validated, which ranks share.
  shuffled.data.align_documents = 4;
  EXPECT_EQ(opened.host_bytes(shuffled), files + source.train.mapped_index_bytes() +
                                             3 * SourceOrder::memory_bytes(Shuffle::kDocuments, 4) +
                                             SourceOrder::memory_bytes(Shuffle::kNone, 4));
  EXPECT_GT(SourceOrder::memory_bytes(Shuffle::kNone, 4), 0);

  fs::remove_all(data() / "valid");
  EXPECT_FALSE(open_training_data(config()).sources[0].valid.has_value());
}

TEST_F(TrainingDataTest, TheFingerprintFollowsTheTrainingTokens) {
  const auto fingerprint_of = [&](const std::string& train, const std::string& name) {
    test::write_corpus(dir_ / name / "data", train, "held out");
    const Config config = test::tiny_config(dir_ / name, {"data.seq_len=4"});
    const TrainingData data = open_training_data(config);
    return data_fingerprint(data, plan_training_data(config, data, 0));
  };
  const std::string first = fingerprint_of("the cat sat", "a");
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(fingerprint_of("the cat sat", "b"), first);  // wherever it lies
  EXPECT_NE(fingerprint_of("the cat sad", "c"), first);
}

TEST_F(TrainingDataTest, SaysWhatIsMissing) {
  Config pathless = config();
  pathless.data.path = "";
  EXPECT_TRUE(contains(error_of([&] { open_training_data(pathless); }).what(), "data.path"));

  const Error error = error_of([&] { open_training_data(config()); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), data().string()));
  EXPECT_TRUE(contains(error.remedy(), "n prep"));

  test::write_tiny_corpus(data());
  fs::remove(data() / "tokenizer.json");
  EXPECT_TRUE(contains(error_of([&] { open_training_data(config()); }).what(), "tokenizer.json"));
}

TEST_F(TrainingDataTest, ShardsAndTokenizerBelongTogether) {
  test::write_tiny_corpus(data());
  std::string manifest = read_file(data() / "valid" / "manifest.json");
  const std::string hash = byte_tokenizer()->hash();
  const size_t place = manifest.find(hash);
  ASSERT_NE(place, std::string::npos);
  manifest[place] = manifest[place] == '0' ? '1' : '0';
  write_file_atomically(data() / "valid" / "manifest.json", manifest);
  const Error error = error_of([&] { open_training_data(config()); });
  EXPECT_TRUE(contains(error.what(), (data() / "valid").string()));
  EXPECT_TRUE(contains(error.what(), "another tokenizer"));
}

TEST_F(TrainingDataTest, TheVocabularyIsAtLeastTheTokenizers) {
  const auto resolved = [&](int64_t vocab_size) {
    Config c = config();
    c.model.vocab_size = vocab_size;
    return resolve_vocab_size(c, *byte_tokenizer()).model.vocab_size;
  };
  EXPECT_EQ(resolved(0), 257);
  EXPECT_EQ(resolved(257), 257);
  EXPECT_EQ(resolved(320), 320);
  const Error error = error_of([&] { resolved(256); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "model.vocab_size = 256"));
  EXPECT_TRUE(contains(error.what(), "257 ids"));
}

}  // namespace
}  // namespace nmoe
