#include "data/shards/dataset.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
TokenDataset::TokenDataset(const fs::path& dir) : dir_(dir), manifest_(read_manifest(dir)) {
  const TokenType type = token_type_for(manifest_.vocab_size);
  int64_t begin = 0;
  for (const ShardEntry& entry : manifest_.shards) {
    const ShardReader& shard = shards_.emplace_back(dir_ / entry.path);
    if (shard.type() != type) {
      throw damaged_file(shard.path(), fmt::format("its tokens are {}; the manifest says {}",
                                                   token_type_name(shard.type()), manifest_.dtype));
    }
    if (shard.num_tokens() != entry.num_tokens) {
      throw damaged_file(shard.path(),
                         fmt::format("it has {} tokens; the manifest says {}", shard.num_tokens(), entry.num_tokens));
    }
    const fs::path index = dir_ / entry.index_path;
    std::error_code error;
    const auto index_size = fs::file_size(index, error);
    if (error || index_size != index_bytes(entry.num_documents)) {
      throw damaged_file(index, error ? error.message()
                                      : fmt::format("{} bytes; an index of {} documents has {}", index_size,
                                                    entry.num_documents, index_bytes(entry.num_documents)));
    }
    shard_begin_.push_back(begin);
    begin += shard.num_tokens();
  }
  shard_begin_.push_back(begin);
}

int64_t TokenDataset::mapped_bytes() const {
  int64_t bytes = 0;
  for (const ShardReader& shard : shards_) bytes += shard.file_bytes();
  return bytes;
}

void TokenDataset::read(int64_t first_token, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  NMOE_CHECK(first_token >= 0 && first_token + count <= num_tokens(), "tokens [{}, {}) of {}", first_token,
             first_token + count, num_tokens());
  auto shard_idx = static_cast<size_t>(std::ranges::upper_bound(shard_begin_, first_token) - shard_begin_.begin() - 1);
  for (; !out.empty(); ++shard_idx) {
    const int64_t first = first_token - shard_begin_[shard_idx];
    const int64_t left = shard_begin_[shard_idx + 1] - first_token;
    const auto part = out.first(std::min(out.size(), static_cast<size_t>(left)));
    shards_[shard_idx].read(first, part, vocab_size());
    first_token += left;
    out = out.subspan(part.size());
  }
}

void TokenDataset::verify() const {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<int32_t> tokens;
  for (size_t shard_idx = 0; shard_idx < shards_.size(); ++shard_idx) {
    const ShardReader& shard = shards_[shard_idx];
    const ShardEntry& entry = manifest_.shards[shard_idx];
    if (sha256_of_file(shard.path()) != entry.checksum) {
      throw damaged_file(shard.path(), "its SHA-256 is not the manifest's: the file has changed");
    }
    for (int64_t first = 0; first < shard.num_tokens(); first += kBlock) {
      tokens.resize(static_cast<size_t>(std::min(kBlock, shard.num_tokens() - first)));
      shard.read(first, tokens, vocab_size());
    }
    uint64_t end = 0;
    const fs::path index_path = dir_ / entry.index_path;
    for (const DocumentSpan& document : read_index(index_path)) {
      if (document.begin != end || document.end <= document.begin ||
          document.end > static_cast<uint64_t>(shard.num_tokens())) {
        throw damaged_file(index_path, fmt::format("the document after position {} is [{}, {}) of {}", end,
                                                   document.begin, document.end, shard.num_tokens()));
      }
      end = document.end;
      int32_t last = 0;
      shard.read(static_cast<int64_t>(end) - 1, {&last, 1}, vocab_size());
      if (last != eos_id()) {
        throw damaged_file(index_path,
                           fmt::format("the document that ends at {} has {} there, not {}", end, last, eos_id()));
      }
    }
    if (end != static_cast<uint64_t>(shard.num_tokens())) {
      throw damaged_file(index_path, fmt::format("its documents end at {}, the tokens at {}", end, shard.num_tokens()));
    }
  }
}

}  // namespace nmoe
