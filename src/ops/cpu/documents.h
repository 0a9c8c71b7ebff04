// Documents of a batch of sequences, as AttentionShape (contracts/attention.h) has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/tensor.h"

namespace nmoe::cpu {

// Calls fn(begin, end) for each document in order, as tokens of the batch; some may be empty. Without cu_seqlens every
// sequence is one.
template <class Fn>
void for_each_document(int64_t num_seqs, int64_t seq_len, const Tensor& cu_seqlens, const Fn& fn) {
  const int64_t num_tokens = num_seqs * seq_len;
  if (!cu_seqlens.defined()) {
    for (int64_t seq = 0; seq < num_seqs; ++seq) fn(seq * seq_len, (seq + 1) * seq_len);
    return;
  }
  const std::span<const int32_t> bounds = cu_seqlens.span<int32_t>();
  NMOE_CHECK(!bounds.empty(), "no documents for {} tokens", num_tokens);
  NMOE_CHECK(bounds.front() == 0 && bounds.back() == num_tokens, "documents of {} tokens from {} to {}", num_tokens,
             bounds.front(), bounds.back());
  for (size_t document = 0; document + 1 < bounds.size(); ++document) {
    const int64_t first = bounds[document], end = bounds[document + 1];
    NMOE_CHECK(first <= end && (first == end || first % seq_len + end - first <= seq_len),
               "document {} is [{}, {}), with sequences of {}", document, first, end, seq_len);
    fn(first, end);
  }
}

// begins [T] u8: whether a document begins with the token.
inline void mark_document_begins(int64_t num_seqs, int64_t seq_len, const Tensor& cu_seqlens, const Tensor& begins) {
  std::fill_n(begins.data<uint8_t>(), begins.num_elements(), uint8_t{0});
  for_each_document(num_seqs, seq_len, cu_seqlens, [&](int64_t begin, int64_t end) {
    if (begin < end) begins.data<uint8_t>()[begin] = 1;
  });
}

}  // namespace nmoe::cpu
