#include "train/loop/batch_source.h"

#include <algorithm>
#include <functional>

#include "data/stream/loader.h"
#include "train/step/look_ahead.h"

namespace nmoe {

int64_t BatchSource::num_targets() const { return std::ssize(targets()) - std::ranges::count(targets(), kNoTarget); }

std::vector<int64_t> BatchSource::num_targets_ahead(int64_t depth) {
  std::vector<int64_t> counts(static_cast<size_t>(depth));
  for (int64_t i = 0; depth > 0 && i < num_microbatches(); ++i) {
    const std::vector<int64_t> more = count_targets_ahead(microbatch(i), shape().seq_len, depth);
    std::ranges::transform(counts, more, counts.begin(), std::plus());
  }
  return counts;
}

}  // namespace nmoe
