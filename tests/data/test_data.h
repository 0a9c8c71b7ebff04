// What the data tests share: a folder of their own, files in it, small datasets, a text's ids, expected errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"
#include "support/temp_dir.h"

namespace nmoe {

class FolderTest : public test::TempDirTest {
 protected:
  std::string write(const fs::path& name, const std::string& content) const {
    make_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return (dir_ / name).string();
  }

  // Every file below `root`: its relative path and its content.
  static std::map<std::string, std::string> contents(const fs::path& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string name = fs::relative(entry.path(), root).string();
      if (entry.is_regular_file()) files[name] = read_file(entry.path());
    }
    return files;
  }
};

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

// Overwrites bytes of a file.
inline void patch(const fs::path& path, size_t offset, const std::string& bytes) {
  std::string content = read_file(path);
  content.replace(offset, bytes.size(), bytes);
  std::ofstream(path, std::ios::binary) << content;
}

// Writes one split with the given documents.
inline DatasetManifest write_split(const fs::path& dir, const std::vector<std::vector<int32_t>>& documents,
                                   int64_t vocab_size = 257, int64_t tokens_per_shard = 1000) {
  SplitWriter writer(dir, {.dataset = "test",
                           .tokenizer = "bytes",
                           .tokenizer_hash = "abc",
                           .vocab_size = vocab_size,
                           .eos_id = static_cast<int32_t>(vocab_size - 1),
                           .tokens_per_shard = tokens_per_shard});
  for (const auto& ids : documents) {
    writer.add_document(ids, static_cast<int64_t>(ids.size()), "'test.txt'");
  }
  writer.close();
  return writer.commit();
}

// One document whose tokens, with its end of sequence, are 0, 1, 2, ... num_tokens - 1.
inline DatasetManifest write_counting_split(const fs::path& dir, int64_t num_tokens) {
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens - 1));
  std::iota(ids.begin(), ids.end(), 0);
  return write_split(dir, {ids}, num_tokens, num_tokens);
}

inline std::string random_bytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// `action` must throw an Error of this kind whose message has `part` in it, and that has a remedy.
template <class Action>
void expect_error(ErrorKind kind, const std::string& part, Action&& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

}  // namespace nmoe
