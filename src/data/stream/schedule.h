// The global order of a run's sequences: which source gives the next one.
//
// Smooth weighted round robin, weighted by the quotas of a stage: for every sequence, each source's credit grows by its
// quota; the source with the most credit (the first of several) is taken and pays the sum of quotas. Over a stage, each
// source is thus taken exactly quota times, evenly spread, and credits return to 0.
//
// The order depends on the plan alone: not on ranks, batch sizes or threads.
#pragma once

#include <cstdint>
#include <vector>

#include "data/stream/cursor.h"
#include "data/stream/plan.h"

namespace nmoe {

// Sequence `index` of `source` in its order (data/stream/order.h), with the length that its stage uses.
struct SequenceRef {
  int32_t source = 0;
  int64_t index = 0;
  bool operator==(const SequenceRef&) const = default;
};

class StreamSchedule {
 public:
  // `plan` must outlive the schedule.
  explicit StreamSchedule(const StreamPlan& plan);

  const StreamCursor& cursor() const { return cursor_; }
  // Error (runtime) if the plan cannot lead there: a cursor of another plan.
  void seek(const StreamCursor& cursor);

  // Tokens of the next sequence; at the end, of the last.
  int64_t seq_len() const;

  // Appends the next `count` sequences, which are of one length. Error (runtime) if the plan has fewer left.
  void take(int64_t count, std::vector<SequenceRef>& out);

 private:
  // Whether stage, sequences, what was taken and what is owed agree with the plan and with each other.
  bool leads_to(const StreamCursor& cursor) const;

  const StreamPlan& plan_;
  std::vector<std::vector<int64_t>> taken_before_;  // by stage and source: sequences of the stages before
  StreamCursor cursor_;
};

}  // namespace nmoe
