#include "data/shards/dataset.h"

#include <gtest/gtest.h>

#include "data/test_data.h"

namespace nmoe {
namespace {

class DatasetTest : public FolderTest {
 protected:
  // Opening or verifying the dataset must fail and say `part`; `edit` then undone.
  void expect_damaged(const std::string& file, const std::string& from, const std::string& to, const std::string& part,
                      bool on_verify = false) {
    const std::string good = read_file(dir_ / file);
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    write(file, bad.replace(bad.find(from), from.size(), to));
    if (on_verify) {
      const TokenDataset dataset(dir_);
      expect_error(ErrorKind::kRuntime, part, [&] { dataset.verify(); });
    } else {
      expect_error(ErrorKind::kRuntime, part, [&] { TokenDataset dataset(dir_); });
    }
    write(file, good);
  }
};

TEST_F(DatasetTest, ReadsAcrossShards) {
  write_split(dir_, {{1, 2, 3}, {4, 5}, {6}, {7, 8, 9, 10}}, 257, 6);
  const TokenDataset dataset(dir_);
  const std::vector<int32_t> all = {1, 2, 3, 256, 4, 5, 256, 6, 256, 7, 8, 9, 10, 256};
  EXPECT_EQ(dataset.num_tokens(), 14);
  EXPECT_EQ(dataset.num_documents(), 4);
  EXPECT_EQ(dataset.total_bytes(), 10);
  EXPECT_EQ(dataset.vocab_size(), 257);
  EXPECT_EQ(dataset.eos_id(), 256);
  EXPECT_EQ(dataset.manifest().tokenizer_hash, "abc");
  EXPECT_EQ(dataset.mapped_bytes(), 3 * 128 + 14 * 2);
  dataset.verify();
  for (size_t first = 0; first <= all.size(); ++first) {
    for (size_t count = 0; first + count <= all.size(); ++count) {
      std::vector<int32_t> read(count, -1);
      dataset.read(static_cast<int64_t>(first), read);
      EXPECT_EQ(read, std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                           all.begin() + static_cast<std::ptrdiff_t>(first + count)));
    }
  }
  std::vector<int32_t> two(2);
  EXPECT_THROW(dataset.read(13, two), CheckFailure);
  EXPECT_THROW(dataset.read(-1, two), CheckFailure);
}

TEST_F(DatasetTest, MasksAcrossShards) {
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3}, {4, 5}, {6}};
  {
    SplitWriter writer(dir_, {.dataset = "test",
                              .tokenizer = "bytes",
                              .tokenizer_hash = "abc",
                              .vocab_size = 257,
                              .eos_id = 256,
                              .tokens_per_shard = 4,
                              .masks = true});
    for (const auto& ids : documents) {
      std::vector<uint8_t> mask(ids.size(), 1);
      mask[0] = 0;
      writer.add_document(ids, 1, "'a'", mask);
    }
    writer.close();
    writer.commit();
  }
  const TokenDataset dataset(dir_);
  dataset.verify();
  EXPECT_TRUE(dataset.has_mask());
  std::vector<uint8_t> mask(9);
  dataset.read_mask(0, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 1, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(dataset.num_shards(), 3U);
  EXPECT_EQ(dataset.shard_begin(2), 7);
  EXPECT_EQ(dataset.documents(1).size(), 1U);

  const std::string mask_file = "test-v1-shard-000001.mask.npy";
  const std::string good = read_file(dir_ / mask_file);
  patch(dir_ / mask_file, kNpyHeaderBytes, std::string(1, '\x01'));
  expect_error(ErrorKind::kRuntime, mask_file, [&] { dataset.verify(); });
  write(mask_file, npy_mask_header(2) + "\x01\x01");
  expect_error(ErrorKind::kRuntime, "it is of 2 tokens", [&] { TokenDataset other(dir_); });
  fs::remove(dir_ / mask_file);
  expect_error(ErrorKind::kRuntime, mask_file, [&] { TokenDataset other(dir_); });
  write(mask_file, good);
  expect_damaged("manifest.json", "\"mask_path\": \"test-v1-shard-000001", "\"mask_\": \"test-v1-shard-000001",
                 "only one of");
}

TEST_F(DatasetTest, WithoutAMaskAllIsLearned) {
  write_split(dir_, {{1, 2}});
  const TokenDataset dataset(dir_);
  EXPECT_FALSE(dataset.has_mask());
  std::vector<uint8_t> mask(3);
  dataset.read_mask(0, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 1, 1}));
}

TEST_F(DatasetTest, IdBeyondTheVocabulary) {
  write_split(dir_, {{1, 2, 3}, {4, 5, 6}}, 257, 5);
  patch(dir_ / "test-v1-shard-000001.npy", kNpyHeaderBytes + 2, "\x01\x01");  // 257
  const TokenDataset dataset(dir_);
  std::vector<int32_t> read(5);
  dataset.read(0, read);  // the shard before, and one token of the damaged one
  read.resize(8);
  expect_error(ErrorKind::kRuntime, "shard-000001.npy': id 257 at position 1 of a vocabulary of 257",
               [&] { dataset.read(0, read); });
}

TEST_F(DatasetTest, MissingFiles) {
  expect_error(ErrorKind::kRuntime, (dir_ / "train").string() + "': it has no manifest.json",
               [&] { TokenDataset dataset(dir_ / "train"); });
  for (const char* extension : {"npy", "idx"}) {
    write_split(dir_, {{1, 2, 3}});
    const std::string name = fmt::format("test-v1-shard-000000.{}", extension);
    fs::remove(dir_ / name);
    expect_error(ErrorKind::kRuntime, name, [&] { TokenDataset dataset(dir_); });
    remove_split(dir_);
  }
}

TEST_F(DatasetTest, ManifestThatDisagrees) {
  write_split(dir_, {{1, 2, 3}, {4, 5, 6}}, 257, 5);
  const std::string file = "manifest.json";
  expect_damaged(file, "{", "", "not a JSON object");
  expect_damaged(file, "\"schema_version\": 1", "\"schema_version\": 2", "schema_version is 2");
  expect_damaged(file, "\"vocab_size\": 257,", "", "vocab_size is missing");
  expect_damaged(file, "\"vocab_size\": 257", "\"vocab_size\": \"257\"", "not a count");
  expect_damaged(file, "\"vocab_size\": 257", "\"vocab_size\": 256", "eos_token_id 256");
  expect_damaged(file, "\"vocab_size\": 257", "\"vocab_size\": 70000", "stored as uint32");
  expect_damaged(file, "\"tokenizer_hash\": \"abc\"", "\"tokenizer_hash\": 1", "not a string");
  expect_damaged(file, "\"total_tokens\": 8", "\"total_tokens\": 9", "the shards have 8");
  expect_damaged(file, "\"total_documents\": 2", "\"total_documents\": 3", "the shards have 2");
  expect_damaged(file, "\"num_shards\": 2", "\"num_shards\": 3", "but 2 are listed");
  expect_damaged(file, "\"num_documents\": 1", "\"num_documents\": -1", "shards[0].num_documents is -1");
  expect_damaged(file, "\"num_tokens\": 4", "\"num_tokens\": 18446744073709551612", "not a count");
  expect_damaged(file, "\"num_tokens\": 4", "\"num_tokens\": 9223372036854775807", "no sum");
  expect_damaged(file, "\"eos_token_id\": 256", "\"eos_token_id\": 4294967552", "not a count");
  expect_damaged(file, "\"path\": \"test", "\"path\": \"../test", "not a path below its folder");
  expect_damaged(file, "\"index_path\": \"test", "\"index_path\": \"/test", "not a path below its folder");
}

TEST_F(DatasetTest, ShardThatDisagrees) {
  write_split(dir_, {{1, 2, 3}, {4, 5, 6}}, 257, 5);
  const std::string shard = "test-v1-shard-000001.npy";
  const std::string index = "test-v1-shard-000001.idx";
  const std::string content = read_file(dir_ / shard);
  const std::string tokens = content.substr(kNpyHeaderBytes);
  expect_damaged(shard, content, npy_header(TokenType::kUint16, 3) + tokens.substr(0, 6),
                 shard + "': it has 3 tokens; the manifest says 4");
  expect_damaged(shard, content, npy_header(TokenType::kUint32, 2) + tokens,
                 shard + "': its tokens are uint32; the manifest says uint16");
  expect_damaged(index, read_file(dir_ / index), "short", index + "': 5 bytes");
}

TEST_F(DatasetTest, VerifyReadsEverything) {
  write_split(dir_, {{1, 2}, {4, 5, 6}});
  const std::string shard = "test-v1-shard-000000.npy";
  const std::string index = "test-v1-shard-000000.idx";
  TokenDataset(dir_).verify();
  const std::string content = read_file(dir_ / shard);
  std::string altered = content;
  altered[kNpyHeaderBytes] = 7;
  expect_damaged(shard, content, altered, "SHA-256", true);
  const std::string spans = read_file(dir_ / index).substr(32);
  std::string moved = spans;
  moved[8] = moved[16] = 2;
  expect_damaged(index, spans, moved, "ends at 2 has 2 there, not 256", true);
  std::string overlapping = spans;
  overlapping[16] = 2;
  expect_damaged(index, spans, overlapping, "the document after position 3 is [2, 7)", true);
}

}  // namespace
}  // namespace nmoe
