#include "train/loop/batch_source.h"

#include <algorithm>

#include "data/stream/loader.h"

namespace nmoe {

int64_t BatchSource::num_targets() const { return std::ssize(targets()) - std::ranges::count(targets(), kNoTarget); }

}  // namespace nmoe
