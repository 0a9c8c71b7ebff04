#include "data/shards/dataset.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/sha256.h"
#include "data/tokenizer/tokenizer.h"

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
    indexes_.emplace_back(index);
    if (!entry.mask_path.empty()) {
      const MaskReader& mask = masks_.emplace_back(dir_ / entry.mask_path);
      if (mask.num_tokens() != shard.num_tokens()) {
        throw damaged_file(mask.path(),
                           fmt::format("it is of {} tokens; the shard has {}", mask.num_tokens(), shard.num_tokens()));
      }
    }
    shard_begin_.push_back(begin);
    begin += shard.num_tokens();
  }
  shard_begin_.push_back(begin);
}

// Manifests that older nmoe wrote have a hash over the id that ends documents, too.
bool TokenDataset::is_of(const Tokenizer& tokenizer) const {
  return manifest_.tokenizer_hash == tokenizer.hash() || manifest_.tokenizer_hash == tokenizer.hash_with_end(eos_id());
}

int64_t TokenDataset::mapped_bytes() const {
  int64_t bytes = 0;
  for (const ShardReader& shard : shards_) bytes += shard.file_bytes();
  for (const MaskReader& mask : masks_) bytes += mask.file_bytes();
  return bytes;
}

int64_t TokenDataset::mapped_index_bytes() const {
  int64_t bytes = 0;
  for (const IndexReader& index : indexes_) bytes += index.file_bytes();
  return bytes;
}

template <class Fn>
void TokenDataset::for_each_part(int64_t first_token, size_t count, Fn&& fn) const {
  NMOE_CHECK(first_token >= 0 && first_token + static_cast<int64_t>(count) <= num_tokens(), "tokens [{}, {}) of {}",
             first_token, first_token + static_cast<int64_t>(count), num_tokens());
  auto shard_idx = static_cast<size_t>(std::ranges::upper_bound(shard_begin_, first_token) - shard_begin_.begin() - 1);
  for (size_t done = 0; done < count; ++shard_idx) {
    const int64_t first = first_token + static_cast<int64_t>(done) - shard_begin_[shard_idx];
    const int64_t left = shard_begin_[shard_idx + 1] - shard_begin_[shard_idx] - first;
    const size_t part = std::min(count - done, static_cast<size_t>(left));
    fn(shard_idx, first, done, part);
    done += part;
  }
}

void TokenDataset::read(int64_t first_token, std::span<int32_t> out) const {
  for_each_part(first_token, out.size(), [&](size_t shard_idx, int64_t first, size_t offset, size_t count) {
    shards_[shard_idx].read(first, out.subspan(offset, count), vocab_size());
  });
}

void TokenDataset::read_mask(int64_t first_token, std::span<uint8_t> out) const {
  if (!has_mask()) {
    std::ranges::fill(out, uint8_t{1});
    return;
  }
  for_each_part(first_token, out.size(), [&](size_t shard_idx, int64_t first, size_t offset, size_t count) {
    masks_[shard_idx].read(first, out.subspan(offset, count));
  });
}

void TokenDataset::read_ends(int64_t first_token, std::span<uint8_t> out) const {
  std::ranges::fill(out, uint8_t{0});
  for_each_part(first_token, out.size(), [&](size_t shard_idx, int64_t first, size_t offset, size_t count) {
    read_shard_ends(shard_idx, first, out.subspan(offset, count));
  });
}

// Looks the first document up, and goes on from there.
void TokenDataset::read_shard_ends(size_t shard_idx, int64_t first, std::span<uint8_t> out) const {
  const std::span<const DocumentSpan> documents = indexes_[shard_idx].documents();
  const uint64_t begin = static_cast<uint64_t>(first), end = begin + out.size();
  auto document = std::ranges::upper_bound(documents, begin, {}, &DocumentSpan::end);
  for (uint64_t place = begin; place < end; ++document) {
    const bool holds = document != documents.end() && document->begin <= place && document->end > place &&
                       (place == begin || document->begin == place);
    if (!holds) {
      throw damaged_file(indexes_[shard_idx].path(), fmt::format("no document of it has the token at {}", place));
    }
    place = document->end;
    if (place > end) break;
    check_end(shard_idx, place);
    out[place - 1 - begin] = 1;
  }
}

void TokenDataset::check_end(size_t shard_idx, uint64_t end) const {
  int32_t last = 0;
  shards_[shard_idx].read(static_cast<int64_t>(end) - 1, {&last, 1}, vocab_size());
  if (last == eos_id()) return;
  throw damaged_file(indexes_[shard_idx].path(),
                     fmt::format("the document that ends at {} has {} there, not {}", end, last, eos_id()));
}

std::span<const DocumentSpan> TokenDataset::documents(size_t shard_idx) const {
  const fs::path& path = indexes_[shard_idx].path();
  const std::span<const DocumentSpan> documents = indexes_[shard_idx].documents();
  const auto num_tokens = static_cast<uint64_t>(shards_[shard_idx].num_tokens());
  uint64_t end = 0;
  for (const DocumentSpan& document : documents) {
    if (document.begin != end || document.end <= document.begin || document.end > num_tokens) {
      throw damaged_file(path, fmt::format("the document after position {} is [{}, {}) of {}", end, document.begin,
                                           document.end, num_tokens));
    }
    end = document.end;
  }
  if (end != num_tokens) {
    throw damaged_file(path, fmt::format("its documents end at {}, the tokens at {}", end, num_tokens));
  }
  return documents;
}

void TokenDataset::verify(const std::function<void(const ShardEntry&)>& passed) const {
  for (size_t shard_idx = 0; shard_idx < shards_.size(); ++shard_idx) {
    verify_shard(shard_idx);
    if (passed) passed(manifest_.shards[shard_idx]);
  }
}

void TokenDataset::verify_shard(size_t shard_idx) const {
  constexpr int64_t kBlock = 1 << 20;
  const ShardReader& shard = shards_[shard_idx];
  const ShardEntry& entry = manifest_.shards[shard_idx];
  const auto check_sum = [](const fs::path& path, const std::string& expected) {
    if (sha256_of_file(path) != expected) {
      throw damaged_file(path, "its SHA-256 is not the manifest's: the file has changed");
    }
  };
  check_sum(shard.path(), entry.checksum);
  if (has_mask()) check_sum(masks_[shard_idx].path(), entry.mask_checksum);

  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  for (int64_t first = 0; first < shard.num_tokens(); first += kBlock) {
    const auto count = static_cast<size_t>(std::min(kBlock, shard.num_tokens() - first));
    tokens.resize(count);
    shard.read(first, tokens, vocab_size());
    if (has_mask()) {
      mask.resize(count);
      masks_[shard_idx].read(first, mask);
    }
  }

  for (const DocumentSpan& document : documents(shard_idx)) check_end(shard_idx, document.end);
}

}  // namespace nmoe
