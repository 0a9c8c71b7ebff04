// The order in which a source's text is read: sequence k of a source to the tokens it is made of.
//
// An epoch is the source's tokens in some order, cut into windows of S tokens: window w has inputs [w S, w S + S) and
// targets one token further, so its last target is the next window's first input. Windows cross documents; what is left
// at an epoch's end, shorter than a window, is not read. Sequence k of S tokens is position k mod W (of W windows) of
// epoch k / W. A source may be read in sequences of several lengths.
//
//   kNone       file order, epoch after epoch
//   kWindows    file order, its windows permuted anew in each epoch
//   kDocuments  documents permuted anew in each epoch, then cut: a window's neighbours differ between epochs
//
// If documents are aligned, an epoch's tokens include the padding behind each document (data/stream/alignment.h).
//
// Permutations are functions (base/rng.h) keyed by seed, source and epoch. Nothing is stored except, for kDocuments and
// aligned documents, the positions of some documents in the last two epochs read: every 32nd, or fewer, so that they
// take at most memory_bytes(). They are found while the epoch is read, so that it begins without a pause; a first read
// far within an epoch, as when a run is resumed, goes through the lengths of all documents before it. Where a document
// begins is looked up in the mapped index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/shards/dataset.h"

namespace nmoe {

class SourceOrder {
 public:
  // `dataset` must outlive the order. `name` distinguishes sources with the same seed. `alignment` of documents divides
  // the length of every sequence. Error (runtime), for kDocuments and aligned documents, if an index is damaged.
  SourceOrder(const TokenDataset& dataset, Shuffle shuffle, uint64_t seed, const std::string& name,
              int64_t alignment = 1);
  ~SourceOrder();
  SourceOrder(SourceOrder&&) noexcept;

  // The most memory that an order uses, besides the dataset's mapped files.
  static int64_t memory_bytes(Shuffle shuffle, int64_t alignment = 1);

  // Of an epoch in sequences of seq_len tokens. Error (runtime) when the dataset is shorter than one.
  int64_t num_windows(int64_t seq_len) const;

  // The number of document lengths added up so far to find positions: 0 except for kDocuments and aligned documents.
  int64_t documents_passed() const;

  bool has_mask() const { return dataset_->has_mask(); }
  // Whether some tokens may have no loss: the dataset has a mask, or documents are aligned.
  bool skips_targets() const { return has_mask() || alignment_ > 1; }

  // Sequence k >= 0 of tokens.size() - 1 tokens, with one of look-ahead; and for each token whether it has a loss (1)
  // or not (0), and what it is the last of (data/stream/documents.h): an empty `mask` and empty `ends` are ignored.
  // Thread-safe. Errors: num_windows, TokenDataset::read, read_mask and read_ends.
  void read(int64_t k, std::span<int32_t> tokens, std::span<uint8_t> mask, std::span<uint8_t> ends) const;

 private:
  class DocumentOrder;
  struct Destination;
  uint64_t epoch_key(int64_t epoch) const;
  // Both read tokens of the dataset from `first_token` on, as many as fit. Padding is of the document that begins there
  // and has `length` tokens, behind `skipped` tokens of it.
  void read_text(int64_t first_token, const Destination& to) const;
  void read_padding(int64_t first_token, int64_t length, int64_t skipped, const Destination& to) const;

  const TokenDataset* dataset_;
  Shuffle shuffle_;
  uint64_t seed_;
  std::string stream_;
  int64_t alignment_;
  int64_t epoch_tokens_;
  std::unique_ptr<DocumentOrder> documents_;
};

}  // namespace nmoe
