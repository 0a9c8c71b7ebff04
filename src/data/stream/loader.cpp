#include "data/stream/loader.h"

#include <algorithm>

#include "base/error.h"
#include "data/stream/alignment.h"

namespace nmoe {

RankSlice rank_slice(int64_t batch, int64_t rank, int64_t num_ranks) {
  NMOE_CHECK(batch >= 0 && rank >= 0 && rank < num_ranks, "rank {} of {} in a batch of {}", rank, num_ranks, batch);
  const int64_t each = batch / num_ranks, longer = batch % num_ranks;
  const int64_t begin = rank * each + std::min(rank, longer);
  return {begin, begin + each + (rank < longer ? 1 : 0)};
}

SequenceReader::SequenceReader(const StreamPlan& plan, std::span<const TokenDataset* const> datasets, Shuffle shuffle,
                               uint64_t seed)
    : seq_len_(plan.seq_len) {
  NMOE_CHECK(datasets.size() == plan.sources.size(), "{} datasets for {} sources", datasets.size(),
             plan.sources.size());
  for (size_t i = 0; i < datasets.size(); ++i) {
    orders_.emplace_back(*datasets[i], shuffle, seed, plan.sources[i].name, plan.alignment);
  }
}

void SequenceReader::read(std::span<const SequenceRef> refs, int64_t seq_len, std::span<int32_t> inputs,
                          std::span<int32_t> targets, std::span<uint8_t> ends) const {
  const auto length = static_cast<size_t>(seq_len);
  NMOE_CHECK(inputs.size() == refs.size() * length && targets.size() == inputs.size() &&
                 (ends.empty() || ends.size() == refs.size() * (length + 1)),
             "{} inputs, {} targets and {} ends for {} sequences of {}", inputs.size(), targets.size(), ends.size(),
             refs.size(), seq_len);
  std::vector<int32_t> window(length + 1);
  std::vector<uint8_t> mask;
  for (size_t s = 0; s < refs.size(); ++s) {
    const SourceOrder& order = orders_[static_cast<size_t>(refs[s].source)];
    mask.resize(order.skips_targets() ? window.size() : 0);
    order.read(refs[s].index, window, mask, ends.empty() ? ends : ends.subspan(s * window.size(), window.size()));
    std::copy_n(window.begin(), length, inputs.begin() + static_cast<std::ptrdiff_t>(s * length));
    std::copy_n(window.begin() + 1, length, targets.begin() + static_cast<std::ptrdiff_t>(s * length));
    for (size_t i = 1; i < mask.size(); ++i) {
      if (mask[i] == 0) targets[s * length + i - 1] = kNoTarget;
    }
  }
  check_mapped_files();
}

SequenceReader split_reader(const TokenDataset& dataset, int64_t seq_len, int64_t alignment) {
  const SourceFacts facts{.name = dataset.dir().string(),
                          .num_tokens = dataset.num_tokens(),
                          .hash = "",
                          .num_padding = padding_tokens(dataset, alignment)};
  const TokenDataset* const datasets[] = {&dataset};
  return {single_source_plan(facts, seq_len, alignment), datasets, Shuffle::kNone, /*seed=*/0};
}

}  // namespace nmoe
