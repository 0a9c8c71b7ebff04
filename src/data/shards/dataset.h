// One split of a prepared dataset, opened for reading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/shards/manifest.h"
#include "data/shards/shard.h"

namespace nmoe {

class Tokenizer;

// The folder's tokens as one long sequence, in shard order. The shards are memory-mapped. Thread-safe.
class TokenDataset {
 public:
  // Opens the folder that holds manifest.json, and checks each shard's header, data type and size
  // against it. Error (runtime), naming the file, for whatever is missing or disagrees.
  explicit TokenDataset(const std::filesystem::path& dir);

  int64_t num_tokens() const { return manifest_.total_tokens; }
  int64_t num_documents() const { return manifest_.total_documents; }
  int64_t total_bytes() const { return manifest_.total_bytes; }  // of the documents' text
  int64_t vocab_size() const { return manifest_.vocab_size; }
  int32_t eos_id() const { return manifest_.eos_token_id; }
  // Whether it was prepared with this tokenizer, whatever ends documents for either.
  bool is_of(const Tokenizer& tokenizer) const;
  const DatasetManifest& manifest() const { return manifest_; }
  const std::filesystem::path& dir() const { return dir_; }

  // Whether the tokens have a mask that says which are to be learned (data/shards/shard.h).
  bool has_mask() const { return !masks_.empty(); }

  // Size of the mapped files, which reading everything can add to the process's resident size. Indexes are counted
  // separately, since only what looks for documents touches them.
  int64_t mapped_bytes() const;
  int64_t mapped_index_bytes() const;

  // Tokens [first_token, first_token + out.size()), across shard borders. Error (runtime), naming
  // shard and position, on an id of vocab_size() or more.
  void read(int64_t first_token, std::span<int32_t> out) const;

  // The mask of the same tokens; all 1 if there is none. Error (runtime), naming file and
  // position, on an entry that is neither 0 nor 1.
  void read_mask(int64_t first_token, std::span<uint8_t> out) const;

  // For each of the same tokens whether it is the last of its document (1) or not (0), by the index. Error (runtime)
  // if the index is damaged there, or has another token at an end than eos_id().
  void read_ends(int64_t first_token, std::span<uint8_t> out) const;

  // Shards, in the order of their tokens: the first token of one, and its documents' ranges within it, which are
  // contiguous from its first token to its last; valid as long as the dataset. Error (runtime) if the index is
  // damaged: each call reads all of it.
  size_t num_shards() const { return shards_.size(); }
  int64_t shard_begin(size_t shard_idx) const { return shard_begin_[shard_idx]; }
  std::span<const DocumentSpan> documents(size_t shard_idx) const;

  // Reads everything: checksums, ids, masks, and that each index's documents end with the end-of-sequence id. Error
  // (runtime) on the first shard that fails; `passed` is called after each one that does not.
  void verify(const std::function<void(const ShardEntry&)>& passed = {}) const;

 private:
  void verify_shard(size_t shard_idx) const;
  void read_shard_ends(size_t shard_idx, int64_t first, std::span<uint8_t> out) const;
  void check_end(size_t shard_idx, uint64_t end) const;
  // Calls fn(shard, first token within it, offset into what is asked for, count) for each shard that holds some of
  // these tokens.
  template <class Fn>
  void for_each_part(int64_t first_token, size_t count, Fn&& fn) const;

  std::filesystem::path dir_;
  DatasetManifest manifest_;
  std::vector<ShardReader> shards_;
  std::vector<IndexReader> indexes_;  // one a shard
  std::vector<MaskReader> masks_;     // one a shard, or none
  std::vector<int64_t> shard_begin_;  // first token of each shard, and num_tokens() at the end
};

}  // namespace nmoe
