// A position in a run's global order of sequences, with everything needed to resume there (data/stream/schedule.h).
#pragma once

#include <cstdint>
#include <vector>

namespace nmoe {

struct StreamCursor {
  int64_t sequence = 0;          // of the whole run
  int64_t stage = 0;             // the number of stages at the end
  int64_t stage_sequence = 0;    // within the stage
  std::vector<int64_t> credits;  // by source, within the stage
  std::vector<int64_t> taken;    // by source, within the run
  bool operator==(const StreamCursor&) const = default;
};

}  // namespace nmoe
