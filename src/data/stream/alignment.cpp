#include "data/stream/alignment.h"

namespace nmoe {

int64_t padding_tokens(const TokenDataset& dataset, int64_t alignment) {
  if (alignment == 1) return 0;
  int64_t tokens = 0;
  for (size_t shard = 0; shard < dataset.num_shards(); ++shard) {
    for (const DocumentSpan& document : dataset.documents(shard)) {
      const auto length = static_cast<int64_t>(document.end - document.begin);
      tokens += aligned(length, alignment) - length;
    }
  }
  return tokens;
}

}  // namespace nmoe
