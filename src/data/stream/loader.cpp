#include "data/stream/loader.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

SequenceLoader::SequenceLoader(const TokenDataset& dataset, int64_t seq_len, uint64_t seed, bool shuffle)
    : dataset_(dataset), seq_len_(seq_len), seed_(seed), shuffle_(shuffle) {
  NMOE_CHECK(seq_len > 0, "sequences of {} tokens", seq_len);
  num_windows_ = (dataset.num_tokens() - 1) / seq_len;
  if (num_windows_ < 1) {
    throw runtime_error(fmt::format("'{}' has {} tokens; one sequence and its look-ahead need {}",
                                    dataset.dir().string(), dataset.num_tokens(), seq_len + 1),
                        "lower data.seq_len, or prepare more text");
  }
}

int64_t SequenceLoader::window(int64_t sequence) const {
  NMOE_CHECK(sequence >= 0, "sequence {}", sequence);
  const int64_t position = sequence % num_windows_;
  if (!shuffle_) return position;
  const auto epoch = static_cast<uint64_t>(sequence / num_windows_);
  const KeyedPermutation order(static_cast<uint64_t>(num_windows_), Philox(seed_, "data.order").bits(epoch));
  return static_cast<int64_t>(order(static_cast<uint64_t>(position)));
}

void SequenceLoader::read(int64_t first_sequence, int64_t num_sequences, std::span<int32_t> inputs,
                          std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(seq_len_);
  NMOE_CHECK(inputs.size() == static_cast<size_t>(num_sequences) * length && targets.size() == inputs.size(),
             "{} inputs and {} targets for {} sequences of {}", inputs.size(), targets.size(), num_sequences, seq_len_);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const int64_t first_token = window(first_sequence + i) * seq_len_;
    const auto input = inputs.subspan(static_cast<size_t>(i) * length, length);
    const auto target = targets.subspan(static_cast<size_t>(i) * length, length);
    dataset_.read(first_token, input.first(1));
    dataset_.read(first_token + 1, target);
    std::ranges::copy(target.first(length - 1), input.begin() + 1);
  }
}

}  // namespace nmoe
