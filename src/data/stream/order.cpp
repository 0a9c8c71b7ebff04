#include "data/stream/order.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

namespace {

// Positions kept of an epoch.
constexpr size_t kMaxMarks = 1 << 16;
constexpr size_t kEpochsKept = 2;

}  // namespace

// The documents of a dataset in the permuted order of an epoch, addressed by token.
class SourceOrder::DocumentOrder {
 public:
  explicit DocumentOrder(const TokenDataset& dataset) : num_documents_(static_cast<uint64_t>(dataset.num_documents())) {
    uint64_t first = 0;
    for (size_t shard = 0; shard < dataset.num_shards(); ++shard) {
      shards_.push_back({first, dataset.shard_begin(shard), dataset.documents(shard)});
      first += shards_.back().documents.size();
    }
    while (num_documents_ / stride_ >= kMaxMarks) stride_ *= 2;
  }

  // Calls read(first token in the dataset, count) for each document's part of the tokens [first, first + count) of the
  // epoch whose permutation `key` makes.
  template <class Read>
  void for_each_part(uint64_t key, int64_t first, int64_t count, const Read& read) const {
    const KeyedPermutation permutation(num_documents_, key);
    for (Place place = find(permutation, key, first); count > 0; ++place.rank) {
      const Extent document = extent(permutation(place.rank));
      const int64_t skipped = first - place.position, part = std::min(document.length - skipped, count);
      read(document.begin + skipped, part);
      first += part;
      count -= part;
      place.position += document.length;
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
  // A document in the dataset's tokens.
  struct Extent {
    int64_t begin = 0;
    int64_t length = 0;
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

  Extent extent(uint64_t document) const {
    const auto after = std::ranges::upper_bound(shards_, document, {}, &Shard::first);
    const Shard& shard = *(after - 1);
    const DocumentSpan& span = shard.documents[document - shard.first];
    return {shard.token_begin + static_cast<int64_t>(span.begin), static_cast<int64_t>(span.end - span.begin)};
  }

  // The document that has a token of the epoch. Reading on goes on from the last one found.
  Place find(const KeyedPermutation& permutation, uint64_t key, int64_t token) const {
    const std::lock_guard lock(mutex_);
    Epoch& epoch = epoch_of(key);
    const auto mark = static_cast<uint64_t>(std::ranges::upper_bound(epoch.marks, token) - epoch.marks.begin() - 1);
    Place place{mark * stride_, epoch.marks[mark]};
    if (epoch.last.position <= token && epoch.last.rank > place.rank) place = epoch.last;
    for (;; ++passed_) {
      const int64_t length = extent(permutation(place.rank)).length;
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
  uint64_t stride_ = 32;
  mutable std::mutex mutex_;
  mutable std::vector<Epoch> epochs_;
  mutable int64_t passed_ = 0;
};

int64_t SourceOrder::memory_bytes(Shuffle shuffle) {
  return shuffle == Shuffle::kDocuments ? static_cast<int64_t>(kEpochsKept * (kMaxMarks + 1) * sizeof(int64_t)) : 0;
}

int64_t SourceOrder::documents_passed() const { return documents_ ? documents_->documents_passed() : 0; }

SourceOrder::SourceOrder(const TokenDataset& dataset, Shuffle shuffle, uint64_t seed, const std::string& name)
    : dataset_(&dataset), shuffle_(shuffle), seed_(seed), stream_("data.order." + name) {
  if (shuffle == Shuffle::kDocuments) documents_ = std::make_unique<DocumentOrder>(dataset);
}
SourceOrder::~SourceOrder() = default;
SourceOrder::SourceOrder(SourceOrder&&) noexcept = default;

int64_t SourceOrder::num_windows(int64_t seq_len) const {
  NMOE_CHECK(seq_len > 0, "sequences of {} tokens", seq_len);
  if (dataset_->num_tokens() <= seq_len) {
    throw runtime_error(fmt::format("'{}' has {} tokens; one sequence and its look-ahead need {}",
                                    dataset_->dir().string(), dataset_->num_tokens(), seq_len + 1),
                        "lower data.seq_len, or prepare more text");
  }
  return (dataset_->num_tokens() - 1) / seq_len;
}

uint64_t SourceOrder::epoch_key(int64_t epoch) const {
  return Philox(seed_, stream_).bits(static_cast<uint64_t>(epoch));
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
  const auto read_part = [&](int64_t first_token, int64_t count) {
    const auto size = static_cast<size_t>(count);
    dataset_->read(first_token, tokens.first(size));
    tokens = tokens.subspan(size);
    if (!mask.empty()) {
      dataset_->read_mask(first_token, mask.first(size));
      mask = mask.subspan(size);
    }
    if (!ends.empty()) {
      dataset_->read_ends(first_token, ends.first(size));
      ends = ends.subspan(size);
    }
  };
  if (documents_) {
    documents_->for_each_part(epoch_key(epoch), window * seq_len, seq_len + 1, read_part);
  } else {
    read_part(window * seq_len, seq_len + 1);
  }
}

}  // namespace nmoe
