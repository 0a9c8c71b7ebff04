// Random choices for one document, one after the other.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/rng.h"

namespace nmoe {

// The draws of element `index` of the stream that `seed` and `name` make: the same ones every time.
class Draws {
 public:
  Draws(uint64_t seed, std::string_view name, uint64_t index) : random_(seed, Philox(seed, name).bits(index)) {}

  // Uniform in [0, bound), bound > 0 and far below 2^64.
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_.bits(next_++) % static_cast<uint64_t>(bound)); }

 private:
  Philox random_;
  uint64_t next_ = 0;
};

}  // namespace nmoe
