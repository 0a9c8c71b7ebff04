#include "train/step/look_ahead.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/stream/loader.h"

namespace nmoe {
namespace {

// Calls visit(i, has_token, has_target) for each position: whether the token `depth` further is in its document, and
// the one behind that is, too, or is the look-ahead of the sequence.
template <class Visit>
void for_each_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth, const Visit& visit) {
  const auto run = [&](int64_t begin, int64_t end) {
    const int64_t end_of_targets = end % seq_len == 0 ? end : end - 1;
    for (int64_t i = begin; i < end; ++i) {
      visit(static_cast<size_t>(i), i + depth < end, i + depth < end_of_targets);
    }
  };
  if (microbatch.documents != nullptr) {  // which end where sequences do
    const std::vector<int32_t>& bounds = microbatch.documents->cu_seqlens;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) run(bounds[i], bounds[i + 1]);
    return;
  }
  for (int64_t begin = 0; begin < std::ssize(microbatch.tokens); begin += seq_len) run(begin, begin + seq_len);
}

// Of the i-th token.
int32_t target_of(const Microbatch& microbatch, size_t i) {
  int32_t target = kNoTarget;
  std::memcpy(&target, microbatch.rows[BatchRow::kTargets].data() + i * sizeof(target), sizeof(target));
  return target;
}

}  // namespace

void look_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth, std::span<int32_t> tokens,
                std::span<int32_t> targets) {
  NMOE_CHECK(tokens.size() == microbatch.tokens.size() && targets.size() == tokens.size() &&
                 microbatch.rows[BatchRow::kTargets].size() == targets.size_bytes(),
             "{} tokens and {} targets ahead of {}", tokens.size(), targets.size(), microbatch.tokens.size());
  const auto offset = static_cast<size_t>(depth);
  for_each_ahead(microbatch, seq_len, depth, [&](size_t i, bool has_token, bool has_target) {
    tokens[i] = has_token ? microbatch.tokens[i + offset] : 0;
    targets[i] = has_target ? target_of(microbatch, i + offset) : kNoTarget;
  });
}

std::vector<int64_t> count_targets_ahead(const Microbatch& microbatch, int64_t seq_len, int64_t depth) {
  std::vector<int64_t> counts;
  for (int64_t k = 1; k <= depth; ++k) {
    int64_t& count = counts.emplace_back(0);
    for_each_ahead(microbatch, seq_len, k, [&](size_t i, bool, bool has_target) {
      count += has_target && target_of(microbatch, i + static_cast<size_t>(k)) >= 0 ? 1 : 0;
    });
  }
  return counts;
}

}  // namespace nmoe
