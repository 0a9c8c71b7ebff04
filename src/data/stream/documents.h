// Which of a microbatch's tokens belong together: the documents packed into its sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

// T tokens of a microbatch.
struct Documents {
  // First token of each document, in order, and T at the end. A document cut by a sequence's border counts as two.
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> positions;  // [T]: of each token in its document

  bool empty() const { return cu_seqlens.empty(); }
};

// Finds the documents in `num_seqs` sequences of `seq_len` tokens: one starts with each sequence and behind each token
// that is the last of its document. `ends`, [num_seqs, seq_len + 1] row-major, is 1 at those and 0 elsewhere, as
// SequenceReader::read (data/stream/loader.h) gives it; empty: each sequence is one document. Replaces the contents of
// `documents`, reusing its storage.
void find_documents(std::span<const uint8_t> ends, int64_t num_seqs, int64_t seq_len, Documents& documents);

}  // namespace nmoe
