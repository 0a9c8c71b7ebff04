#include "data/stream/documents.h"

#include "base/error.h"

namespace nmoe {

void find_documents(std::span<const uint8_t> ends, int64_t num_seqs, int64_t seq_len, Documents& documents) {
  NMOE_CHECK(ends.empty() || static_cast<int64_t>(ends.size()) == num_seqs * (seq_len + 1),
             "ends of documents at {} tokens, for {} sequences of {} and one", ends.size(), num_seqs, seq_len);
  documents.cu_seqlens.clear();
  documents.positions.clear();
  documents.padding.clear();
  for (int64_t sequence = 0; sequence < num_seqs; ++sequence) {
    int64_t begin = 0;  // in the sequence
    const auto ends_at = [&](int64_t i) {
      return ends.empty() ? uint8_t{0} : ends[static_cast<size_t>(sequence * (seq_len + 1) + i)];
    };
    for (int64_t i = 0; i < seq_len; ++i) {
      if (i == 0 || ends_at(i - 1) != 0) {
        begin = i;
        documents.cu_seqlens.push_back(static_cast<int32_t>(sequence * seq_len + i));
      }
      if (ends_at(i) == kEndsPadding) {
        documents.padding.push_back(static_cast<int32_t>(documents.cu_seqlens.size()) - 1);
      }
      documents.positions.push_back(static_cast<int32_t>(i - begin));
    }
  }
  documents.cu_seqlens.push_back(static_cast<int32_t>(num_seqs * seq_len));
}

}  // namespace nmoe
