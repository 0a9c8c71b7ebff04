#include "data/synthetic/write.h"

#include <nlohmann/json.hpp>

#include "data/shards/dataset.h"
#include "data/synthetic/kinds.h"
#include "data/test_data.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {
namespace {

class SynthesizeTest : public FolderTest {
 protected:
  SynthesizeOptions options(const std::string& kind, const fs::path& out) const {
    return {.kind = kind, .seed = 5, .documents = 2500, .valid_documents = 30, .out = dir_ / out, .threads = 1};
  }
};

TEST_F(SynthesizeTest, ShardsHoldTheSourcesDocuments) {
  for (const std::string& kind : synthetic_kinds()) {
    SCOPED_TRACE(kind);
    const SynthesizeReport report = synthesize(options(kind, kind));
    const auto source = make_synthetic_source(kind, 5, {});
    const auto tokenizer = load_tokenizer((dir_ / kind / "tokenizer.json").string());
    uint64_t index = 0;
    for (const auto& [split, num_documents] : {std::pair{"train", 2500}, {"valid", 30}}) {
      const TokenDataset dataset(dir_ / kind / split);
      dataset.verify();
      EXPECT_EQ(dataset.manifest().tokenizer_hash, tokenizer->hash());
      EXPECT_EQ(dataset.eos_id(), source->eos_id());
      EXPECT_EQ(dataset.vocab_size(), tokenizer->vocab_size());
      EXPECT_EQ(dataset.num_documents(), num_documents);
      std::vector<int32_t> expected, found(static_cast<size_t>(dataset.num_tokens()));
      std::vector<uint8_t> expected_mask;
      std::string text;
      for (int document = 0; document < num_documents; ++document) {
        std::vector<int32_t> tokens;
        std::vector<uint8_t> mask;
        source->document(index++, tokens, mask);
        for (const int32_t id : tokens) text += source->words()[static_cast<size_t>(id)] + ' ';
        expected.insert(expected.end(), tokens.begin(), tokens.end());
        expected.push_back(source->eos_id());
        expected_mask.insert(expected_mask.end(), mask.begin(), mask.end());
        expected_mask.push_back(1);  // the end is to be learned
      }
      EXPECT_EQ(dataset.has_mask(), kind != "cfg");
      std::vector<uint8_t> found_mask(found.size());
      dataset.read_mask(0, found_mask);
      EXPECT_EQ(found_mask, expected_mask);
      dataset.read(0, found);
      EXPECT_EQ(found, expected);
      EXPECT_EQ(dataset.total_bytes(), static_cast<int64_t>(text.size()));
      EXPECT_EQ(tokenizer->decode(found), text);
    }
    EXPECT_EQ(report.train_tokens, TokenDataset(dir_ / kind / "train").num_tokens());
  }
}

TEST_F(SynthesizeTest, GroundTruthTellsTheFloor) {
  SynthesizeOptions with_settings = options("cfg", "out");
  with_settings.settings = {"depth=3"};
  const SynthesizeReport report = synthesize(with_settings);
  const auto truth = nlohmann::json::parse(read_file(dir_ / "out/ground_truth.json"));
  EXPECT_EQ(truth["kind"], "cfg");
  EXPECT_EQ(truth["seed"], 5);
  EXPECT_EQ(truth["settings"]["depth"], 3);
  EXPECT_EQ(truth["settings"]["symbols"], 3);
  EXPECT_EQ(truth["vocab_size"], 4);
  const EntropyFloor floor = make_synthetic_source("cfg", 5, with_settings.settings)->floor();
  EXPECT_DOUBLE_EQ(truth["floor"]["nats_per_token"], floor.nats_per_token());
  EXPECT_DOUBLE_EQ(truth["floor"]["document_nats"], floor.document_nats);
  EXPECT_DOUBLE_EQ(report.floor.nats_per_token(), floor.nats_per_token());
}

TEST_F(SynthesizeTest, SameBytesForAnyNumberOfThreads) {
  SynthesizeOptions one = options("khop", "one"), three = options("khop", "three");
  one.tokens_per_shard = three.tokens_per_shard = 40'000;
  three.threads = 3;
  synthesize(one);
  synthesize(three);
  auto first = contents(dir_ / "one"), second = contents(dir_ / "three");
  for (const char* split : {"train", "valid"}) {
    EXPECT_EQ(read_manifest(dir_ / "one" / split).num_shards, split == std::string("train") ? 3 : 1);
    const std::string manifest = std::string(split) + "/manifest.json";  // has the time
    first.erase(manifest);
    second.erase(manifest);
  }
  EXPECT_EQ(first, second);
}

TEST_F(SynthesizeTest, ReplacesADatasetOnlyWhenTold) {
  synthesize(options("cfg", "out"));
  const auto before = contents(dir_ / "out");
  expect_error(ErrorKind::kUsage, "there is a dataset already", [&] { synthesize(options("khop", "out")); });
  EXPECT_EQ(contents(dir_ / "out"), before);
  SynthesizeOptions forced = options("arithmetic", "out");
  forced.force = true;
  forced.valid_documents = 0;
  synthesize(forced);
  EXPECT_EQ(read_manifest(dir_ / "out/train").dataset, "arithmetic");
  EXPECT_FALSE(fs::exists(manifest_path(dir_ / "out/valid")));
  // What cannot be made leaves what is there.
  forced.settings = {"modulus=0"};
  expect_error(ErrorKind::kUsage, "modulus = 0", [&] { synthesize(forced); });
  TokenDataset(dir_ / "out/train").verify();
}

// The validation split keeps its masks, which say what the answers are.
TEST_F(SynthesizeTest, AllTokensAreTrainedOnWhenTold) {
  SynthesizeOptions all = options("arithmetic", "out");
  all.all_tokens = true;
  EXPECT_TRUE(synthesize(all).has_answers);
  EXPECT_FALSE(TokenDataset(dir_ / "out/train").has_mask());
  EXPECT_TRUE(TokenDataset(dir_ / "out/valid").has_mask());
  EXPECT_EQ(nlohmann::json::parse(read_file(dir_ / "out/ground_truth.json"))["all_tokens"], true);
  all = options("cfg", "cfg");
  all.all_tokens = true;
  expect_error(ErrorKind::kUsage, "cfg has no answers", [&] { synthesize(all); });
  EXPECT_FALSE(fs::exists(dir_ / "cfg"));
}

TEST_F(SynthesizeTest, KeepsTheTokenizerOfAnother) {
  write("out/tokenizer.json", "{}");
  expect_error(ErrorKind::kUsage, "is another tokenizer", [&] { synthesize(options("khop", "out")); });
  EXPECT_EQ(contents(dir_ / "out").size(), 1u);
}

// A folder stands where the second of the files belongs that get their names.
TEST_F(SynthesizeTest, TakesBackWhatItHasPlacedWhenItFails) {
  write("out/ground_truth.json/file", "");
  const auto before = contents(dir_ / "out");
  expect_error(ErrorKind::kRuntime, "ground_truth.json", [&] { synthesize(options("khop", "out")); });
  EXPECT_EQ(contents(dir_ / "out"), before);
  for (const char* split : {"train", "valid"}) EXPECT_FALSE(fs::exists(dir_ / "out" / split));
}

}  // namespace
}  // namespace nmoe
