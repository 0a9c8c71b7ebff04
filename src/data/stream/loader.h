// Training sequences from a dataset.
//
// The dataset is cut into windows of S = seq_len tokens: window w has inputs [w S, w S + S) and
// targets one token further, so its last target is the next window's first input. Windows cross
// documents. A tail shorter than a window is left out.
//
// The stream of sequences has no end and no state: sequence g is position g mod W (of W windows) in
// epoch g / W, and each epoch has its own permutation of the windows, keyed by seed and epoch. So
// how sequences are grouped into batches, or spread over readers, cannot change their order, and g
// is all that a checkpoint has to keep.
#pragma once

#include <cstdint>
#include <span>

#include "data/shards/dataset.h"

namespace nmoe {

class SequenceLoader {
 public:
  // `dataset` must outlive the loader. Without `shuffle` every epoch is in file order and `seed` is
  // not used. Error (runtime) when the dataset is shorter than one window.
  SequenceLoader(const TokenDataset& dataset, int64_t seq_len, uint64_t seed, bool shuffle);

  int64_t num_windows() const { return num_windows_; }
  int64_t seq_len() const { return seq_len_; }
  int32_t eos_id() const { return dataset_.eos_id(); }  // ends every document

  // The window of sequence `sequence` >= 0.
  int64_t window(int64_t sequence) const;

  // Sequences [first_sequence, first_sequence + num_sequences): `inputs` and `targets` are
  // [num_sequences, seq_len], row-major. Thread-safe. Errors: TokenDataset::read.
  void read(int64_t first_sequence, int64_t num_sequences, std::span<int32_t> inputs, std::span<int32_t> targets) const;

 private:
  const TokenDataset& dataset_;
  int64_t seq_len_;
  uint64_t seed_;
  bool shuffle_;
  int64_t num_windows_ = 0;
};

}  // namespace nmoe
