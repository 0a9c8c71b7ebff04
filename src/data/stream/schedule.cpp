#include "data/stream/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace nmoe {

StreamSchedule::StreamSchedule(const StreamPlan& plan) : plan_(plan) {
  cursor_.credits.assign(plan.sources.size(), 0);
  cursor_.taken.assign(plan.sources.size(), 0);
}

void StreamSchedule::seek(const StreamCursor& cursor) {
  const auto num_stages = static_cast<int64_t>(plan_.stages.size());
  const auto sum = [](const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  int64_t before = 0;  // sequences of the stages before the cursor's
  for (int64_t stage = 0; stage < std::min(cursor.stage, num_stages); ++stage) {
    before += plan_.stages[static_cast<size_t>(stage)].num_sequences;
  }
  const int64_t length = cursor.stage >= 0 && cursor.stage < num_stages
                             ? plan_.stages[static_cast<size_t>(cursor.stage)].num_sequences
                             : 1;
  const bool fits = cursor.credits.size() == plan_.sources.size() && cursor.taken.size() == plan_.sources.size() &&
                    cursor.stage >= 0 && cursor.stage <= num_stages && cursor.stage_sequence >= 0 &&
                    cursor.stage_sequence < length && cursor.sequence == before + cursor.stage_sequence &&
                    sum(cursor.taken) == cursor.sequence && sum(cursor.credits) == 0;
  if (!fits) {
    throw runtime_error(
        fmt::format("sequence {} of the checkpoint is no place in this run's data plan", cursor.sequence),
        "resume with the mixture and profile that the run began with");
  }
  cursor_ = cursor;
}

void StreamSchedule::take(int64_t count, std::vector<SequenceRef>& out) {
  for (int64_t i = 0; i < count; ++i) {
    if (cursor_.stage == static_cast<int64_t>(plan_.stages.size())) {
      throw runtime_error(fmt::format("the data plan ends after {} sequences", plan_.num_sequences()),
                          "choose a larger data.profile, or fewer train.steps");
    }
    const PlannedStage& stage = plan_.stages[static_cast<size_t>(cursor_.stage)];
    size_t chosen = 0;
    for (size_t source = 0; source < stage.quotas.size(); ++source) {
      cursor_.credits[source] += stage.quotas[source];
      if (cursor_.credits[source] > cursor_.credits[chosen]) chosen = source;
    }
    cursor_.credits[chosen] -= stage.num_sequences;
    out.push_back({static_cast<int32_t>(chosen), cursor_.taken[chosen]++});
    ++cursor_.sequence;
    if (++cursor_.stage_sequence == stage.num_sequences) {
      ++cursor_.stage;
      cursor_.stage_sequence = 0;
    }
  }
}

}  // namespace nmoe
