#include "data/shards/shard.h"

#include <gtest/gtest.h>

#include "data/test_data.h"

namespace nmoe {
namespace {

using namespace std::string_literals;

class ShardTest : public FolderTest {};

TEST_F(ShardTest, FileIsByteForByteNumpys) {
  write_split(dir_, {{1, 2}, {0x0102}}, 1000);
  // What numpy.save writes for np.array([1, 2, 999, 258, 999], dtype='<u2').
  const std::string header = "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }"s;
  const std::string npy =
      header + std::string(127 - header.size(), ' ') + "\n" + "\x01\x00\x02\x00\xE7\x03\x02\x01\xE7\x03"s;
  EXPECT_EQ(read_file(dir_ / "test-v1-shard-000000.npy"), npy);

  const std::string idx =
      "NMOEIDX\0"
      "\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"
      "\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0"s;
  EXPECT_EQ(read_file(dir_ / "test-v1-shard-000000.idx"), idx);
}

TEST_F(ShardTest, HeaderIsAlignedForAnyCount) {
  for (const int64_t count : {int64_t{0}, int64_t{9}, int64_t{500'000'000}, INT64_MAX}) {
    const std::string header = npy_header(TokenType::kUint32, count);
    EXPECT_EQ(header.size(), kNpyHeaderBytes);
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_EQ(header.back(), '\n');
  }
}

TEST_F(ShardTest, WidthFollowsTheVocabulary) {
  EXPECT_EQ(token_type_for(65536), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65537), TokenType::kUint32);
  const std::vector<int32_t> ids = {0, 65535, 65536, 199998};
  EXPECT_EQ(write_split(dir_, {ids}, 200000).dtype, "uint32");
  const ShardReader reader(dir_ / "test-v1-shard-000000.npy");
  std::vector<int32_t> read(4);
  reader.read(0, read, 200000);
  EXPECT_EQ(read, ids);
}

TEST_F(ShardTest, RotatesWithoutSplittingDocuments) {
  const DatasetManifest manifest = write_split(dir_, {{1, 2, 3}, {4, 5}, {6}, {7, 8, 9, 10}}, 257, 6);
  ASSERT_EQ(manifest.num_shards, 3);  // 4 tokens; 3 + 2; 5
  EXPECT_EQ(manifest.shards[0].num_tokens, 4);
  EXPECT_EQ(manifest.shards[1].num_tokens, 5);
  EXPECT_EQ(manifest.shards[1].num_documents, 2);
  EXPECT_EQ(manifest.shards[2].path, "test-v1-shard-000002.npy");
  EXPECT_EQ(manifest.total_tokens, 14);
  EXPECT_EQ(manifest.total_documents, 4);
  EXPECT_EQ(manifest.total_bytes, 10);
  EXPECT_EQ(read_manifest(dir_).shards[1].checksum, manifest.shards[1].checksum);
  EXPECT_EQ(contents(dir_).size(), 7U);
}

TEST_F(ShardTest, DocumentLongerThanAShard) {
  expect_error(ErrorKind::kUsage, "'test.txt' has 8 tokens; a shard holds 7", [&] {
    write_split(dir_ / "new", {{1}, {1, 2, 3, 4, 5, 6, 7}}, 257, 7);
  });
  EXPECT_FALSE(fs::exists(dir_ / "new"));
}

TEST_F(ShardTest, AbandonedWriterLeavesNothing) {
  write("train/notes.txt", "keep");
  write("train/old-v1-shard-000003.npy.tmp", "left by an interrupted writer");
  const std::vector<int32_t> ids(5, 1);
  {
    SplitWriter writer(dir_ / "train", {.dataset = "test",
                                        .tokenizer = "bytes",
                                        .tokenizer_hash = "abc",
                                        .vocab_size = 257,
                                        .eos_id = 256,
                                        .tokens_per_shard = 7});
    for (int i = 0; i < 3; ++i) writer.add_document(ids, 5, "'test.txt'");
    EXPECT_GT(contents(dir_).size(), 4U);
    writer.close();
  }
  EXPECT_EQ(contents(dir_), (std::map<std::string, std::string>{{"train/notes.txt", "keep"}}));
}

// Interrupted after any document, and after another that is then forgotten, the files are the same.
TEST_F(ShardTest, GoesOnFromACheckpoint) {
  const SplitOptions options{.dataset = "test",
                             .tokenizer = "bytes",
                             .tokenizer_hash = "abc",
                             .vocab_size = 257,
                             .eos_id = 256,
                             .tokens_per_shard = 12,
                             .masks = true};
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3}, {4, 5}, {6}, {7, 8, 9, 10}, {}, {11, 12, 13}, {14}};
  const auto add = [&](SplitWriter& writer, size_t document) {
    const auto& ids = documents[document];
    writer.add_document(ids, 1, "'a'", std::vector<uint8_t>(ids.size(), document % 2));
  };
  const auto finished = [&](const fs::path& dir) {
    auto files = contents(dir);
    std::string& manifest = files["manifest.json"];
    const size_t time = manifest.find("\"created_at\"");
    manifest.erase(time, manifest.find('\n', time) - time);
    return files;
  };
  {
    SplitWriter writer(dir_ / "whole", options);
    for (size_t i = 0; i < documents.size(); ++i) add(writer, i);
    writer.close();
    writer.commit();
  }
  for (size_t stop = 0; stop <= documents.size(); ++stop) {
    const fs::path dir = dir_ / fmt::format("stopped{}", stop);
    DatasetManifest state;
    {
      SplitWriter writer(dir, options);
      for (size_t i = 0; i < stop; ++i) add(writer, i);
      state = writer.checkpoint();
      for (size_t i = stop; i < std::min(stop + 3, documents.size()); ++i) add(writer, i);
      writer.keep();
    }
    {
      SplitWriter writer(dir, options, state);
      EXPECT_EQ(writer.num_documents(), static_cast<int64_t>(stop));
      for (size_t i = stop; i < documents.size(); ++i) add(writer, i);
      writer.close();
      state = writer.checkpoint();
      writer.commit();
    }
    EXPECT_EQ(finished(dir), finished(dir_ / "whole")) << stop;
    // A commit that was interrupted is done again.
    fs::rename(dir / "test-v1-shard-000001.idx", dir / "test-v1-shard-000001.idx.tmp");
    fs::remove(dir / "manifest.json");
    SplitWriter(dir, options, state).commit();
    EXPECT_EQ(finished(dir), finished(dir_ / "whole")) << stop;
  }
}

TEST_F(ShardTest, ACheckpointWithoutItsFiles) {
  const SplitOptions options{.dataset = "test", .vocab_size = 257, .eos_id = 256};
  const std::vector<int32_t> ids(5, 1);
  DatasetManifest state;
  {
    SplitWriter writer(dir_ / "a", options);
    writer.add_document(ids, 5, "'a'");
    state = writer.checkpoint();
    writer.keep();
  }
  const fs::path shard = dir_ / "a/test-v1-shard-000000.npy.tmp";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_error(ErrorKind::kRuntime, "had been written", [&] { SplitWriter writer(dir_ / "a", options, state); });
  EXPECT_TRUE(fs::exists(shard));
  fs::remove(shard);
  expect_error(ErrorKind::kRuntime, "is gone", [&] { SplitWriter writer(dir_ / "a", options, state); });
}

TEST_F(ShardTest, DamagedMasks) {
  SplitWriter writer(dir_, {.dataset = "test", .vocab_size = 257, .eos_id = 256, .masks = true});
  writer.add_document(std::vector<int32_t>{5, 6, 7}, 3, "'a'", std::vector<uint8_t>{0, 1, 0});
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{5}, 1, "'a'"), CheckFailure);
  writer.close();
  writer.commit();
  const fs::path path = dir_ / "test-v1-shard-000000.mask.npy";
  std::vector<uint8_t> mask(4);
  MaskReader(path).read(0, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 0, 1}));
  patch(path, kNpyHeaderBytes + 2, "\x02");
  expect_error(ErrorKind::kRuntime, "2 at position 2", [&] { MaskReader(path).read(1, {mask.data(), 2}); });
  const std::string good = read_file(path);
  write(path.filename(), good.substr(0, good.size() - 1));
  expect_error(ErrorKind::kRuntime, "its header announces 4", [&] { MaskReader reader(path); });
  fs::copy_file(dir_ / "test-v1-shard-000000.npy", path, fs::copy_options::overwrite_existing);
  expect_error(ErrorKind::kRuntime, "'<u2'; a mask's is |u1", [&] { MaskReader reader(path); });
}

TEST_F(ShardTest, RemovingASplitKeepsOtherFiles) {
  write_split(dir_ / "train", {{1, 2}});
  write("train/notes.txt", "keep");
  write("train/weights.npy", "keep");
  remove_split(dir_ / "train");
  remove_split(dir_ / "nowhere");
  EXPECT_EQ(contents(dir_).size(), 2U);
}

TEST_F(ShardTest, DamagedShards) {
  write_split(dir_, {{1, 2, 3}});
  const fs::path path = dir_ / "test-v1-shard-000000.npy";
  const std::string good = read_file(path);
  const auto expect_damaged = [&](const std::string& content, const std::string& part) {
    write(path.filename(), content);
    expect_error(ErrorKind::kRuntime, part, [&] { ShardReader reader(path); });
    expect_error(ErrorKind::kRuntime, path.string(), [&] { ShardReader reader(path); });
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string content = good;
    return content.replace(content.find(from), from.size(), to);
  };
  expect_damaged("", "does not begin as a .npy");
  expect_damaged(with("\x93NUMPY\x01", "\x93NUMPY\x02"), "does not begin as a .npy");
  expect_damaged(good.substr(0, 60), "header is damaged");
  expect_damaged(good.substr(0, good.size() - 1), "its header announces 4");
  expect_damaged(good.substr(0, good.size() - 2), "its header announces 4");
  expect_damaged(good + "xx", "its header announces 4");
  expect_damaged(with("<u2", "<f2"), "'<f2'");
  expect_damaged(with("(4,)", "(x,)"), "header is damaged");
  expect_damaged(with("(4,)", "(-4,)"), "header is damaged");
  expect_damaged(with("(4,)", "(2,2)"), "header is damaged");
}

TEST_F(ShardTest, DamagedIndexes) {
  write_split(dir_, {{1, 2, 3}});
  const fs::path path = dir_ / "test-v1-shard-000000.idx";
  ASSERT_EQ(IndexReader(path).documents().size(), 1U);
  EXPECT_EQ(IndexReader(path).documents()[0].end, 4U);
  patch(path, 8, "\x02");
  expect_error(ErrorKind::kRuntime, "version 1", [&] { IndexReader index(path); });
  patch(path, 8, "\x01");
  patch(path, 16, "\x09");
  expect_error(ErrorKind::kRuntime, "announces 9 documents", [&] { IndexReader index(path); });
}

}  // namespace
}  // namespace nmoe
