#include "data/stream/order.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

// The documents of a dataset in the permuted order of an epoch, addressed by token.
class SourceOrder::DocumentOrder {
 public:
  explicit DocumentOrder(const TokenDataset& dataset) {
    begins_.reserve(static_cast<size_t>(dataset.num_documents()) + 1);
    for (size_t shard = 0; shard < dataset.num_shards(); ++shard) {
      for (const DocumentSpan& span : dataset.documents(shard)) {
        begins_.push_back(dataset.shard_begin(shard) + static_cast<int64_t>(span.begin));
      }
    }
    begins_.push_back(dataset.num_tokens());
  }

  // Calls read(first token in the dataset, count) for each document's part of the tokens [first, first + count) of the
  // epoch whose permutation `key` makes.
  template <class Read>
  void for_each_part(uint64_t key, int64_t first, int64_t count, const Read& read) const {
    const std::shared_ptr<const Epoch> epoch = epoch_of(key);
    const auto mark = std::ranges::upper_bound(epoch->marks, first) - epoch->marks.begin() - 1;
    int64_t position = epoch->marks[static_cast<size_t>(mark)];  // in the epoch, of the document's first token
    for (uint64_t rank = static_cast<uint64_t>(mark) * kStride; count > 0; ++rank) {
      const uint64_t document = epoch->permutation(rank);
      const int64_t begin = begins_[document], length = begins_[document + 1] - begin;
      if (first < position + length) {
        const int64_t skipped = first - position, part = std::min(length - skipped, count);
        read(begin + skipped, part);
        first += part;
        count -= part;
      }
      position += length;
    }
  }

 private:
  static constexpr uint64_t kStride = 32;

  struct Epoch {
    uint64_t key;
    KeyedPermutation permutation;
    std::vector<int64_t> marks;  // where in the epoch every kStride-th document begins
  };

  // The last two epochs asked for are kept: at its end an epoch and the next are read side by side.
  std::shared_ptr<const Epoch> epoch_of(uint64_t key) const {
    const std::lock_guard lock(mutex_);
    for (const auto& kept : kept_) {
      if (kept && kept->key == key) return kept;
    }
    const uint64_t num_documents = begins_.size() - 1;
    auto epoch = std::make_shared<Epoch>(key, KeyedPermutation(num_documents, key), std::vector<int64_t>());
    int64_t position = 0;
    for (uint64_t rank = 0; rank < num_documents; ++rank) {
      if (rank % kStride == 0) epoch->marks.push_back(position);
      const uint64_t document = epoch->permutation(rank);
      position += begins_[document + 1] - begins_[document];
    }
    kept_[0] = std::move(kept_[1]);
    kept_[1] = std::move(epoch);
    return kept_[1];
  }

  std::vector<int64_t> begins_;  // of every document in the dataset's tokens, and their end
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> kept_;
};

SourceOrder::SourceOrder(const TokenDataset& dataset, int64_t seq_len, Shuffle shuffle, uint64_t seed,
                         const std::string& name)
    : dataset_(&dataset),
      seq_len_(seq_len),
      shuffle_(shuffle),
      seed_(seed),
      stream_("data.order." + name),
      num_windows_((dataset.num_tokens() - 1) / seq_len) {
  NMOE_CHECK(seq_len > 0, "sequences of {} tokens", seq_len);
  if (num_windows_ < 1) {
    throw runtime_error(fmt::format("'{}' has {} tokens; one sequence and its look-ahead need {}",
                                    dataset.dir().string(), dataset.num_tokens(), seq_len + 1),
                        "lower data.seq_len, or prepare more text");
  }
  if (shuffle == Shuffle::kDocuments) documents_ = std::make_unique<DocumentOrder>(dataset);
}
SourceOrder::~SourceOrder() = default;
SourceOrder::SourceOrder(SourceOrder&&) noexcept = default;

uint64_t SourceOrder::epoch_key(int64_t epoch) const {
  return Philox(seed_, stream_).bits(static_cast<uint64_t>(epoch));
}

void SourceOrder::read(int64_t k, std::span<int32_t> tokens, std::span<uint8_t> mask) const {
  NMOE_CHECK(
      k >= 0 && tokens.size() == static_cast<size_t>(seq_len_ + 1) && (mask.empty() || mask.size() == tokens.size()),
      "sequence {} into {} tokens, mask {}", k, tokens.size(), mask.size());
  const int64_t epoch = k / num_windows_;
  int64_t window = k % num_windows_;
  if (shuffle_ == Shuffle::kWindows) {
    const KeyedPermutation order(static_cast<uint64_t>(num_windows_), epoch_key(epoch));
    window = static_cast<int64_t>(order(static_cast<uint64_t>(window)));
  }
  const auto read_part = [&](int64_t first_token, int64_t count) {
    dataset_->read(first_token, tokens.first(static_cast<size_t>(count)));
    tokens = tokens.subspan(static_cast<size_t>(count));
    if (mask.empty()) return;
    dataset_->read_mask(first_token, mask.first(static_cast<size_t>(count)));
    mask = mask.subspan(static_cast<size_t>(count));
  };
  if (documents_) {
    documents_->for_each_part(epoch_key(epoch), window * seq_len_, seq_len_ + 1, read_part);
  } else {
    read_part(window * seq_len_, seq_len_ + 1);
  }
}

}  // namespace nmoe
