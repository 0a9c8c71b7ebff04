#include "research/report/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nmoe {

Ranking report_sweep(const SweepState& state, TrainingAmount by) {
  const auto is_done = [](const SweepEntry& run) { return run.state == SweepRunState::kDone; };
  if (std::ranges::none_of(state.runs, is_done)) {
    throw usage_error(fmt::format("no run of the sweep {} has ended", state.name),
                      "n research status says how far it is");
  }
  std::vector<Contender> runs;
  for (const SweepEntry& run : state.runs) {
    runs.push_back({.name = run.name,
                    .point = run.point,
                    .values = run.values,
                    .seed = run.seed,
                    .confirms = run.confirms,
                    .end = is_done(run) ? Contender::End::kFinished : Contender::End::kFailed,
                    .state = std::string(sweep_run_state_name(run.state)),
                    .reason = run.reason,
                    .curve = run.curve});
  }
  return rank_runs({.title = "sweep " + state.name,
                    .goal = state.goal,
                    .goal_is_largest = state.goal_is_largest,
                    .by = by,
                    .at = 0.0,
                    .ranked = {},
                    .others = {}},
                   runs);
}

}  // namespace nmoe
