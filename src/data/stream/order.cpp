#include "data/stream/order.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "data/stream/alignment.h"
#include "data/stream/documents.h"

namespace nmoe {

namespace {

// Positions kept of an epoch.
constexpr size_t kMaxMarks = 1 << 16;
constexpr size_t kEpochsKept = 2;

}  // namespace

// The documents of a dataset in the order of an epoch, permuted or as they are, with the padding behind each one:
// addressed by token.
class SourceOrder::DocumentOrder {
 public:
  DocumentOrder(const TokenDataset& dataset, bool permutes, int64_t alignment)
      : num_documents_(static_cast<uint64_t>(dataset.num_documents())), permutes_(permutes), alignment_(alignment) {
    uint64_t first = 0;
    for (size_t shard = 0; shard < dataset.num_shards(); ++shard) {
      shards_.push_back({first, dataset.shard_begin(shard), dataset.documents(shard)});
      first += shards_.back().documents.size();
    }
    while (num_documents_ / stride_ >= kMaxMarks) stride_ *= 2;
  }

  // A document in the dataset's tokens.
  struct Extent {
    int64_t begin = 0;
    int64_t length = 0;
  };

  // Calls read(document, skipped, count) for each document's part of the tokens [first, first + count) of the epoch
  // whose permutation `key` makes: `count` of the document's tokens and padding, behind the first `skipped`.
  template <class Read>
  void for_each_part(uint64_t key, int64_t first, int64_t count, const Read& read) const {
    const Numbers numbers = numbers_of(key);
    for (Place place = find(numbers, key, first); count > 0; ++place.rank) {
      const Extent document = extent(numbers(place.rank));
      const int64_t length = aligned(document.length, alignment_);
      const int64_t skipped = first - place.position, part = std::min(length - skipped, count);
      read(document, skipped, part);
      first += part;
      count -= part;
      place.position += length;
    }
  }

  int64_t documents_passed() const {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

 private:
  struct Shard {
    uint64_t first = 0;       // number of its first document
    int64_t token_begin = 0;  // of it in the dataset
    std::span<const DocumentSpan> documents;
  };
  // The numbers of documents by their ranks in an epoch.
  struct Numbers {
    std::optional<KeyedPermutation> permutation;
    uint64_t operator()(uint64_t rank) const { return permutation ? (*permutation)(rank) : rank; }
  };
  // The document at `rank` of an epoch's order begins at `position` of its tokens.
  struct Place {
    uint64_t rank = 0;
    int64_t position = 0;
  };
  struct Epoch {
    uint64_t key = 0;
    std::vector<int64_t> marks = {0};  // the positions of every stride_-th document, as far as they are known
    Place last;                        // that was found
  };

  Numbers numbers_of(uint64_t key) const {
    Numbers numbers;
    if (permutes_) numbers.permutation.emplace(num_documents_, key);
    return numbers;
  }

  Extent extent(uint64_t document) const {
    const auto after = std::ranges::upper_bound(shards_, document, {}, &Shard::first);
    const Shard& shard = *(after - 1);
    const DocumentSpan& span = shard.documents[document - shard.first];
    return {shard.token_begin + static_cast<int64_t>(span.begin), static_cast<int64_t>(span.end - span.begin)};
  }

  // The document that has a token of the epoch. Reading on goes on from the last one found.
  Place find(const Numbers& numbers, uint64_t key, int64_t token) const {
    const std::lock_guard lock(mutex_);
    Epoch& epoch = epoch_of(key);
    const auto mark = static_cast<uint64_t>(std::ranges::upper_bound(epoch.marks, token) - epoch.marks.begin() - 1);
    Place place{mark * stride_, epoch.marks[mark]};
    if (epoch.last.position <= token && epoch.last.rank > place.rank) place = epoch.last;
    for (;; ++passed_) {
      const int64_t length = aligned(extent(numbers(place.rank)).length, alignment_);
      if (token < place.position + length) break;
      ++place.rank;
      place.position += length;
      if (place.rank == epoch.marks.size() * stride_) epoch.marks.push_back(place.position);
    }
    epoch.last = place;
    return place;
  }

  // At its end an epoch and the next are read side by side.
  Epoch& epoch_of(uint64_t key) const {
    const auto found = std::ranges::find(epochs_, key, &Epoch::key);
    if (found != epochs_.end()) return *found;
    if (epochs_.size() == kEpochsKept) epochs_.erase(epochs_.begin());
    Epoch& epoch = epochs_.emplace_back();
    epoch.key = key;
    epoch.marks.reserve(num_documents_ / stride_ + 1);
    return epoch;
  }

  std::vector<Shard> shards_;
  uint64_t num_documents_;
  bool permutes_;
  int64_t alignment_;
  uint64_t stride_ = 32;
  mutable std::mutex mutex_;
  mutable std::vector<Epoch> epochs_;
  mutable int64_t passed_ = 0;
};

// What read() fills, or a part of it.
struct SourceOrder::Destination {
  std::span<int32_t> tokens;
  std::span<uint8_t> mask, ends;  // may be empty

  Destination part(int64_t first, int64_t count) const {
    const auto offset = static_cast<size_t>(first), size = static_cast<size_t>(count);
    return {tokens.subspan(offset, size), mask.empty() ? mask : mask.subspan(offset, size),
            ends.empty() ? ends : ends.subspan(offset, size)};
  }
};

int64_t SourceOrder::memory_bytes(Shuffle shuffle, int64_t alignment) {
  return shuffle == Shuffle::kDocuments || alignment > 1
             ? static_cast<int64_t>(kEpochsKept * (kMaxMarks + 1) * sizeof(int64_t))
             : 0;
}

int64_t SourceOrder::documents_passed() const { return documents_ ? documents_->documents_passed() : 0; }

SourceOrder::SourceOrder(const TokenDataset& dataset, Shuffle shuffle, uint64_t seed, const std::string& name,
                         int64_t alignment)
    : dataset_(&dataset),
      shuffle_(shuffle),
      seed_(seed),
      stream_("data.order." + name),
      alignment_(alignment),
      epoch_tokens_(dataset.num_tokens() + padding_tokens(dataset, alignment)) {
  const bool permutes = shuffle == Shuffle::kDocuments;
  if (permutes || alignment > 1) documents_ = std::make_unique<DocumentOrder>(dataset, permutes, alignment);
}
SourceOrder::~SourceOrder() = default;
SourceOrder::SourceOrder(SourceOrder&&) noexcept = default;

int64_t SourceOrder::num_windows(int64_t seq_len) const {
  NMOE_CHECK(seq_len > 0 && seq_len % alignment_ == 0, "sequences of {} tokens, documents at multiples of {}", seq_len,
             alignment_);
  if (epoch_tokens_ <= seq_len) {
    throw runtime_error(fmt::format("'{}' has {} tokens; one sequence and its look-ahead need {}",
                                    dataset_->dir().string(), epoch_tokens_, seq_len + 1),
                        "lower data.seq_len, or prepare more text");
  }
  return (epoch_tokens_ - 1) / seq_len;
}

uint64_t SourceOrder::epoch_key(int64_t epoch) const {
  return Philox(seed_, stream_).bits(static_cast<uint64_t>(epoch));
}

void SourceOrder::read_text(int64_t first_token, const Destination& to) const {
  dataset_->read(first_token, to.tokens);
  if (!to.mask.empty()) dataset_->read_mask(first_token, to.mask);
  if (!to.ends.empty()) dataset_->read_ends(first_token, to.ends);
}

void SourceOrder::read_padding(int64_t first_token, int64_t length, int64_t skipped, const Destination& to) const {
  const int64_t count = std::ssize(to.tokens), end = aligned(length, alignment_) - length;
  for (int64_t done = 0, part = 0; done < count; done += part) {
    const int64_t at = (skipped + done) % length;
    part = std::min(length - at, count - done);
    dataset_->read(first_token + at, to.part(done, part).tokens);
  }
  std::ranges::fill(to.mask, uint8_t{0});
  std::ranges::fill(to.ends, uint8_t{0});
  if (!to.ends.empty() && skipped + count == end) to.ends.back() = kEndsPadding;
}

void SourceOrder::read(int64_t k, std::span<int32_t> tokens, std::span<uint8_t> mask, std::span<uint8_t> ends) const {
  NMOE_CHECK(k >= 0 && tokens.size() > 1 && (mask.empty() || mask.size() == tokens.size()) &&
                 (ends.empty() || ends.size() == tokens.size()),
             "sequence {} into {} tokens, mask {}, ends {}", k, tokens.size(), mask.size(), ends.size());
  const int64_t seq_len = static_cast<int64_t>(tokens.size()) - 1, windows = num_windows(seq_len);
  const int64_t epoch = k / windows;
  int64_t window = k % windows;
  if (shuffle_ == Shuffle::kWindows) {
    const KeyedPermutation order(static_cast<uint64_t>(windows), epoch_key(epoch));
    window = static_cast<int64_t>(order(static_cast<uint64_t>(window)));
  }
  const Destination all = {tokens, mask, ends};
  if (!documents_) return read_text(window * seq_len, all);
  // Documents in their own order lie where they lie in every epoch.
  const uint64_t key = shuffle_ == Shuffle::kDocuments ? epoch_key(epoch) : 0;
  int64_t done = 0;
  documents_->for_each_part(key, window * seq_len, seq_len + 1,
                            [&](const auto& document, int64_t skipped, int64_t count) {
                              const int64_t text = std::clamp<int64_t>(document.length - skipped, 0, count);
                              if (text > 0) read_text(document.begin + skipped, all.part(done, text));
                              if (text > 0 && skipped == 0 && alignment_ > 1 && !mask.empty())
                                mask[static_cast<size_t>(done)] = 0;
                              if (text < count) {
                                read_padding(document.begin, document.length, skipped + text - document.length,
                                             all.part(done + text, count - text));
                              }
                              done += count;
                            });
}

}  // namespace nmoe
