// Which of a microbatch's tokens belong together: the documents packed into its sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

// What a token is the last of (SequenceReader::read, data/stream/loader.h); of most 0, nothing.
inline constexpr uint8_t kEndsDocument = 1;
inline constexpr uint8_t kEndsPadding = 2;  // behind a document: data/stream/alignment.h

// T tokens of a microbatch.
struct Documents {
  // First token of each document, in order, and T at the end. A document cut by a sequence's border counts as two.
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> positions;  // [T]: of each token in its document
  std::vector<int32_t> padding;    // the numbers of those that are padding behind another, in order

  bool empty() const { return cu_seqlens.empty(); }
  int64_t count() const { return empty() ? 0 : std::ssize(cu_seqlens) - 1; }
  int64_t length(int32_t number) const {
    return cu_seqlens[static_cast<size_t>(number) + 1] - cu_seqlens[static_cast<size_t>(number)];
  }
};

// Finds the documents in `num_seqs` sequences of `seq_len` tokens: one starts with each sequence and behind each token
// that is the last of its document or of padding. `ends`, [num_seqs, seq_len + 1] row-major, says which are, as
// SequenceReader::read gives it; empty: each sequence is one document. Replaces the contents of `documents`, reusing
// its storage.
void find_documents(std::span<const uint8_t> ends, int64_t num_seqs, int64_t seq_len, Documents& documents);

}  // namespace nmoe
