#include "data/stream/schedule.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/error.h"

namespace nmoe {

StreamSchedule::StreamSchedule(const StreamPlan& plan) : plan_(plan) {
  cursor_.credits.assign(plan.sources.size(), 0);
  cursor_.taken.assign(plan.sources.size(), 0);
  std::vector<int64_t> taken = cursor_.taken;
  for (const PlannedStage& stage : plan.stages) {
    taken_before_.push_back(taken);
    for (size_t i = 0; i < taken.size(); ++i) taken[i] += stage.quotas[i];
  }
}

int64_t StreamSchedule::seq_len() const {
  return plan_.stages[std::min(static_cast<size_t>(cursor_.stage), plan_.stages.size() - 1)].seq_len;
}

void StreamSchedule::seek(const StreamCursor& cursor) {
  if (!leads_to(cursor)) {
    throw runtime_error(
        fmt::format("sequence {} of the checkpoint is no place in this run's data plan", cursor.sequence),
        "resume with the mixture and profile that the run began with");
  }
  cursor_ = cursor;
}

bool StreamSchedule::leads_to(const StreamCursor& cursor) const {
  const size_t num_sources = plan_.sources.size();
  const auto num_stages = static_cast<int64_t>(plan_.stages.size());
  if (cursor.credits.size() != num_sources || cursor.taken.size() != num_sources || cursor.stage < 0 ||
      cursor.stage > num_stages) {
    return false;
  }
  int64_t sequence = cursor.stage_sequence;
  std::vector<int64_t> taken = cursor.taken;  // in the cursor's stage
  for (const PlannedStage& stage : std::span(plan_.stages).first(static_cast<size_t>(cursor.stage))) {
    sequence += stage.num_sequences;
    for (size_t i = 0; i < num_sources; ++i) taken[i] -= stage.quotas[i];
  }
  const PlannedStage end{.num_sequences = 1, .quotas = std::vector<int64_t>(num_sources, 0)};
  const PlannedStage& stage = cursor.stage < num_stages ? plan_.stages[static_cast<size_t>(cursor.stage)] : end;
  if (cursor.sequence != sequence || cursor.stage_sequence < 0 || cursor.stage_sequence >= stage.num_sequences) {
    return false;
  }
  for (size_t i = 0; i < num_sources; ++i) {
    // Modulo 2^64: the products of an endless stage are longer.
    const uint64_t grown = static_cast<uint64_t>(stage.quotas[i]) * static_cast<uint64_t>(cursor.stage_sequence);
    const uint64_t paid = static_cast<uint64_t>(stage.num_sequences) * static_cast<uint64_t>(taken[i]);
    if (taken[i] < 0 || taken[i] > stage.quotas[i] || static_cast<uint64_t>(cursor.credits[i]) != grown - paid) {
      return false;
    }
  }
  return std::accumulate(taken.begin(), taken.end(), int64_t{0}) == cursor.stage_sequence;
}

void StreamSchedule::take(int64_t count, std::vector<SequenceRef>& out) {
  const int64_t length = seq_len();
  for (int64_t i = 0; i < count; ++i) {
    if (cursor_.stage == static_cast<int64_t>(plan_.stages.size())) {
      throw runtime_error(fmt::format("the data plan ends after {} sequences", plan_.num_sequences()),
                          "choose a larger data.profile, or fewer train.steps");
    }
    const auto number = static_cast<size_t>(cursor_.stage);
    const PlannedStage& stage = plan_.stages[number];
    NMOE_CHECK(stage.seq_len == length, "sequences of {} and {} tokens in one step", length, stage.seq_len);
    size_t chosen = 0;
    for (size_t source = 0; source < stage.quotas.size(); ++source) {
      cursor_.credits[source] += stage.quotas[source];
      if (cursor_.credits[source] > cursor_.credits[chosen]) chosen = source;
    }
    cursor_.credits[chosen] -= stage.num_sequences;
    const int64_t of_stage = cursor_.taken[chosen]++ - taken_before_[number][chosen];
    out.push_back({static_cast<int32_t>(chosen), stage.first[chosen] + of_stage});
    ++cursor_.sequence;
    if (++cursor_.stage_sequence == stage.num_sequences) {
      ++cursor_.stage;
      cursor_.stage_sequence = 0;
    }
  }
}

}  // namespace nmoe
