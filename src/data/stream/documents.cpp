#include "data/stream/documents.h"

#include "base/error.h"

namespace nmoe {

void find_documents(std::span<const int32_t> inputs, int64_t num_seqs, int64_t seq_len, int32_t eos_id,
                    Documents& documents) {
  NMOE_CHECK(static_cast<int64_t>(inputs.size()) == num_seqs * seq_len, "{} inputs for {} sequences of {}",
             inputs.size(), num_seqs, seq_len);
  documents.cu_seqlens.clear();
  documents.positions.resize(inputs.size());
  size_t begin = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i % static_cast<size_t>(seq_len) == 0 || inputs[i - 1] == eos_id) {
      begin = i;
      documents.cu_seqlens.push_back(static_cast<int32_t>(i));
    }
    documents.positions[i] = static_cast<int32_t>(i - begin);
  }
  documents.cu_seqlens.push_back(static_cast<int32_t>(inputs.size()));
}

}  // namespace nmoe
