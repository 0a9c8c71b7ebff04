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

// Finds the documents in `inputs`, [num_seqs, seq_len] row-major: one starts with each sequence and after each
// `eos_id`. Replaces the contents of `documents`, reusing its storage.
void find_documents(std::span<const int32_t> inputs, int64_t num_seqs, int64_t seq_len, int32_t eos_id,
                    Documents& documents);

}  // namespace nmoe
