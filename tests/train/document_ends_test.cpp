// Documents of a run end where its corpus says, whatever ids they have within them: conversations whose template writes
// the end of a document, or what the tokenizer takes for it, after every turn.
#include <gtest/gtest.h>

#include <cmath>

#include "base/sha256.h"
#include "data/shards/shard.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_train.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/loop/batch_stream.h"
#include "train/loop/training_data.h"
#include "train/loop/validation.h"
#include "train/tiny_engine.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

constexpr int32_t kDocumentEnd = 256;  // of the bytes
constexpr size_t kQuestion = 6, kLength = 16;

class DocumentEndsTest : public test::TempDirTest {
 protected:
  // Documents of kLength tokens: a question, the end of its turn, an answer that is learned, and the end of both.
  void write_split_of(const fs::path& dir, int question) const {
    SplitWriter writer(dir, {.dataset = "talks",
                             .tokenizer = "bytes",
                             .tokenizer_hash = byte_tokenizer()->hash(),
                             .vocab_size = kDocumentEnd + 1,
                             .eos_id = kDocumentEnd,
                             .tokens_per_shard = 3 * kLength,
                             .masks = true});
    for (int document = 0; document < 10; ++document) {
      std::vector<int32_t> ids(kLength - 1, 'a' + document);
      std::vector<uint8_t> mask(ids.size(), 1);
      for (size_t i = 0; i <= kQuestion; ++i) {
        ids[i] = i < kQuestion ? question + document : kDocumentEnd;
        mask[i] = 0;
      }
      writer.add_document(ids, 0, "'talks'", mask);
    }
    writer.close();
    writer.commit();
  }

  fs::path corpus(int question) const {
    const fs::path root = dir_ / fmt::format("talks{}", question);
    write_split_of(root / "train", question);
    write_split_of(root / "valid", question + 1);
    write_file_atomically(root / "tokenizer.json", byte_tokenizer()->json());
    return root;
  }

  Config config(const fs::path& data, const std::string& masks, int64_t seq_len) const {
    return test::tiny_config(dir_, {"model.vocab_size=257", "data.path=" + data.string(),
                                    "data.mask_documents=" + masks, fmt::format("data.seq_len={}", seq_len)});
  }

  // Nats of the answers, with weights that nothing has trained.
  ValidationResult validated(const fs::path& data, const std::string& masks) const {
    const Config of_run = config(data, masks, kLength);
    const TrainingData opened = open_training_data(of_run);
    test::ReadyEngine ready(of_run);
    return validate(ready.engine, split_reader(*opened.sources[0].valid, kLength), token_byte_counts(*opened.tokenizer),
                    0, of_run.train.microbatch_seqs);
  }
};

// A sequence is one conversation: masks leave it whole, and a reply depends on the question that it answers.
TEST_F(DocumentEndsTest, AReplySeesItsQuestion) {
  const fs::path one = corpus('0'), other = corpus('A');
  const ValidationResult masked = validated(one, "true"), plain = validated(one, "false");
  EXPECT_NEAR(masked.nats, plain.nats, 1e-4);
  EXPECT_GT(std::abs(masked.nats - validated(other, "true").nats), 1e-3);
  EXPECT_EQ(masked.answers, 9);  // the tenth is no whole window with its look-ahead
}

// Windows of another length than documents: each microbatch has the index's documents, cut where sequences are.
TEST_F(DocumentEndsTest, MicrobatchesHaveTheIndexsDocuments) {
  constexpr int64_t kSeqLen = 12;
  Config of_run = config(corpus('0'), "true", kSeqLen);
  of_run.data.shuffle = Shuffle::kNone;
  const TrainingData data = open_training_data(of_run);
  const StreamPlan plan = plan_training_data(of_run, data, 0);
  BatchStream batches(of_run, data, plan);
  for (int step = 0; step < 3; ++step) {
    const int64_t first = batches.cursor().sequence;
    batches.next();
    for (int64_t m = 0; m < batches.num_microbatches(); ++m) {
      const Microbatch microbatch = batches.microbatch(m);
      std::vector<int32_t> starts;
      for (int64_t s = 0; s < 4; ++s) {
        const int64_t window = (first + m * 4 + s) % 13;  // of 160 tokens, one of them a look-ahead
        for (int64_t i = 0; i < kSeqLen; ++i) {
          if (i == 0 || (window * kSeqLen + i) % static_cast<int64_t>(kLength) == 0) {
            starts.push_back(static_cast<int32_t>(s * kSeqLen + i));
          }
        }
      }
      starts.push_back(static_cast<int32_t>(4 * kSeqLen));
      EXPECT_EQ(microbatch.documents->cu_seqlens, starts) << step << ' ' << m;
    }
  }
}

// The tokenizer of a model for chats: two ids may end documents.
class OldCorpusTest : public test::TempDirTest {
 protected:
  OldCorpusTest() : model_(train_bpe_model({{"ab", 2}}, 258)) {
    model_.added.push_back({.text = "<|im_end|>", .id = static_cast<int32_t>(model_.tokens.size())});
    model_.tokens.emplace_back();
  }

  // A corpus as nmoe wrote it when a tokenizer's hash was over the end of documents, or as it does now.
  TrainingData corpus(const std::string& name, int32_t end, bool old, int32_t told_end) {
    model_.eos_id = end;
    const auto tokenizer = make_bpe_tokenizer(model_);
    SplitWriter writer(dir_ / name / "train",
                       {.dataset = "old",
                        .tokenizer = "bpe",
                        .tokenizer_hash = old ? tokenizer->hash_with_end(end) : tokenizer->hash(),
                        .vocab_size = tokenizer->vocab_size(),
                        .eos_id = end});
    writer.add_document(std::vector<int32_t>(40, 5), 40, "'text'");
    writer.close();
    writer.commit();
    model_.eos_id = told_end;
    write_file_atomically(dir_ / name / "tokenizer.json", make_bpe_tokenizer(model_)->json());
    return open_training_data(test::tiny_config(dir_, {"data.path=" + (dir_ / name).string()}));
  }

  static std::string fingerprint(const TrainingData& data) {
    return data_fingerprint(data, single_source_plan(data.sources[0].facts(), 16));
  }

  BpeModel model_;
};

TEST_F(OldCorpusTest, IsKnownByTheManifestsEndAndHasItsOldFingerprint) {
  const int32_t text_end = model_.eos_id, turn_end = text_end + 1;
  for (const int32_t end : {text_end, turn_end}) {
    const std::string name = fmt::format("end_{}", end);
    const TrainingData old = corpus(name + "_old", end, true, end), now = corpus(name, end, false, end);
    EXPECT_EQ(old.tokenizer->eos_id(), end);
    EXPECT_EQ(fingerprint(old), fingerprint(now));
    Sha256 sha;
    sha.update(old.sources[0].train.manifest().tokenizer_hash);
    sha.update(single_source_plan(old.sources[0].facts(), 16).hash());
    EXPECT_EQ(fingerprint(old), sha.finish());
  }
  const Error error = error_of([&] { corpus("moved", turn_end, false, text_end); });
  EXPECT_TRUE(contains(error.what(), fmt::format("documents end with id {}, with {}", turn_end, text_end)));
}

// What hashes no longer tell.
TEST_F(OldCorpusTest, SourcesOfAMixtureEndDocumentsAlike) {
  const int32_t text_end = model_.eos_id;
  corpus("web", text_end, false, text_end);
  corpus("chats", text_end + 1, false, text_end + 1);
  write_file_atomically(dir_ / "mixture.toml", fmt::format(R"(
[sources.web]
path = "{0}/web"
[sources.chats]
path = "{0}/chats"
[stages.all]
tokens = 32
weights = {{ web = 1, chats = 1 }}
[profiles.dev]
scale = 1
)",
                                                           dir_.string()));
  const Error error = error_of([&] {
    open_training_data(test::tiny_config(
        dir_, {"data.path=", "data.mixture=" + (dir_ / "mixture.toml").string(), "data.profile=dev"}));
  });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "source web end with <|endoftext|>, those of source chats with <|im_end|>"))
      << error.what();
}

}  // namespace
}  // namespace nmoe
