// What a part of a layer keeps of a sequence between passes of generation, so that a later token costs one row of work.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// A state of the same size however long the sequence is, which each token replaces: of a recurrence, or the tail that
// a convolution goes on from. A token at position 0 goes on from none: whatever the memory holds is not read.
struct FixedState {
  Shape shape;           // of one sequence
  bool is_stat = false;  // of the device's stat dtype, else act
};

struct StateSpec {
  // Widths of what is kept of every position, act, in the order of PartStates::by_position (model/states.h).
  std::vector<int64_t> widths;
  std::vector<FixedState> fixed;

  // Whether a sequence can go on from an earlier position than its last: what was kept of each position is still there,
  // a state that was replaced is not.
  bool goes_back() const { return fixed.empty(); }
};

}  // namespace nmoe
