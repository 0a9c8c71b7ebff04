// Shards: files of token ids.
//
// {dataset}-{version}-shard-{i:06d}.npy: numpy.save's format 1.0, one dimension, little-endian
// uint16 when every id fits, else uint32. Documents are consecutive, each ended by one
// end-of-sequence id, which conversations may have within them, too; none is split over two shards.
//
// The .idx of the same stem, little-endian u64: magic "NMOEIDX\0", 1, number of documents, 0; then
// for each document its first position and the one past its end-of-sequence id. It alone tells documents apart.
//
// The .mask.npy of the same stem, only if not all tokens have a loss: one uint8 per token, 1 if it is a target of the
// loss, and 0 if it is only context (a prompt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/shards/manifest.h"
#include "data/shards/token_type.h"

namespace nmoe {

// The bytes before the tokens, as numpy.save writes them: always 128.
inline constexpr size_t kNpyHeaderBytes = 128;
std::string npy_header(TokenType type, int64_t num_tokens);
std::string npy_mask_header(int64_t num_tokens);

struct SplitOptions {
  std::string dataset;
  std::string tokenizer;
  std::string tokenizer_hash;
  int64_t vocab_size = 0;
  int32_t eos_id = 0;
  int64_t tokens_per_shard = 500'000'000;
  bool masks = false;  // every document comes with a mask
};

// Writes the shards of one split into a folder, under temporary names until commit(). Destroyed
// before that, it removes what it wrote, and the folder if it made it.
class SplitWriter {
 public:
  SplitWriter(fs::path dir, SplitOptions options);
  // Continues from what checkpoint() of an interrupted writer with the same options returned: with the
  // calls that this one would have received, the bytes are the same. keep() is in effect from the start.
  // Error (runtime) if files are missing or too short.
  SplitWriter(fs::path dir, SplitOptions options, DatasetManifest state);
  ~SplitWriter();
  SplitWriter(const SplitWriter&) = delete;
  SplitWriter& operator=(const SplitWriter&) = delete;

  // One document without its end-of-sequence id, the size of its text, and its place ("'a.txt'") for errors. `mask` has
  // one entry per token if the options say so, else none; the end-of-sequence id always has a loss. Error (usage) if
  // the document is longer than a shard.
  void add_document(std::span<const int32_t> tokens, int64_t source_bytes, const std::string& source,
                    std::span<const uint8_t> mask = {});

  // What has been added so far.
  int64_t num_tokens() const { return manifest_.total_tokens; }
  int64_t num_documents() const { return manifest_.total_documents; }

  // Makes all that has been added durable, still under temporary names. In what it returns, the last shard has no
  // checksum while it is being written.
  DatasetManifest checkpoint();

  // Makes the destructor keep the files, for a later writer to continue.
  void keep() { keep_ = true; }

  // Closes the last shard and syncs it. Everything that may fail for lack of space is done now.
  void close();

  // After close(): renames the files and writes the manifest. The folder must not hold another dataset (remove_split).
  // If interrupted, it can be repeated by a writer that continues from checkpoint().
  DatasetManifest commit();

 private:
  struct OpenShard;
  void close_shard();
  void discard() noexcept;

  fs::path dir_;
  bool made_dir_ = false;
  SplitOptions options_;
  TokenType type_;
  DatasetManifest manifest_;
  std::unique_ptr<OpenShard> shard_;
  bool keep_ = false;
};

// Removes the dataset in `dir`, if there is one: its manifest first, then shards, indexes and masks. Other files stay.
void remove_split(const fs::path& dir);

// Removes what a writer left in `dir` without committing.
void remove_unfinished_split(const fs::path& dir);

// A shard mapped for reading. Thread-safe.
class ShardReader {
 public:
  // Checks the header and that the file holds what it announces. Error (runtime) otherwise.
  explicit ShardReader(const fs::path& path);

  int64_t num_tokens() const { return num_tokens_; }
  TokenType type() const { return type_; }
  const fs::path& path() const { return file_.path(); }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }

  // Tokens [first, first + out.size()), which must be in range. Error (runtime) naming shard and
  // position on an id of `vocab_size` or more.
  void read(int64_t first, std::span<int32_t> out, int64_t vocab_size) const;

 private:
  MappedFile file_;
  TokenType type_ = TokenType::kUint16;
  int64_t num_tokens_ = 0;
  const std::byte* tokens_ = nullptr;
};

// The mask of a shard, mapped for reading. Thread-safe.
class MaskReader {
 public:
  // Error (runtime): as ShardReader.
  explicit MaskReader(const fs::path& path);

  int64_t num_tokens() const { return num_tokens_; }
  const fs::path& path() const { return file_.path(); }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }

  // Entries [first, first + out.size()), which must be in range. Error (runtime) on one that is neither 0 nor 1.
  void read(int64_t first, std::span<uint8_t> out) const;

 private:
  MappedFile file_;
  int64_t num_tokens_ = 0;
  const std::byte* entries_ = nullptr;
};

// A document's range in its shard: [begin, end), end-of-sequence id included.
struct DocumentSpan {
  uint64_t begin = 0;
  uint64_t end = 0;
};

uint64_t index_bytes(int64_t num_documents);

// A shard's index, mapped for reading. Thread-safe.
class IndexReader {
 public:
  // Error (runtime) if the file is missing, or has a wrong header or length.
  explicit IndexReader(const fs::path& path);

  std::span<const DocumentSpan> documents() const { return documents_; }
  const fs::path& path() const { return file_.path(); }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }

 private:
  MappedFile file_;
  std::span<const DocumentSpan> documents_;
};

}  // namespace nmoe
