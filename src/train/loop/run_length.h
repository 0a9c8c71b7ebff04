// How long a run is, and with that the lengths of its schedule.
#pragma once

#include <optional>

#include "base/files.h"
#include "config/config.h"
#include "data/stream/plan.h"

namespace nmoe {

// The step to stop at, by the one of three keys that is set:
//   train.steps   that; 0: as many whole steps as `plan` has
//   train.tokens  floor(train.tokens / step_tokens())
//   train.epochs  floor(train.epochs * sequences of an epoch / train.batch_seqs)
// Tokens are counted as step_tokens() does, with padding, and sequences as PlannedSource::num_windows(). Nothing where
// that takes a plan and `plan` is null. Error (usage): these are no whole step; train.epochs with data.mixture, whose
// profile says how much is read of each source.
std::optional<int64_t> run_steps(const Config& config, const StreamPlan* plan);

// Passes over the corpus by train.steps (resolved); nothing for the plan of a mixture, which says it of each source.
std::optional<double> run_epochs(const Config& config, const StreamPlan& plan);

// The configuration with train.steps in place of whichever key was set, and where optim.schedule has shares and no
// length yet, the run's as its length: what checkpoints keep. What takes a plan, without one: train.steps = 0, and no
// length. Errors: run_steps(); (usage) counts and shares that leave no rest for optim.schedule.hold = "rest".
Config resolve_length(Config config, const StreamPlan* plan);

// The configuration with the length that the schedule of the run's checkpoints in `folder` has, if there are any and
// it has none of its own. To be called before resolve_length() where a run is resumed: so shares stay what they were
// when train.steps has another value.
Config keep_schedule_length(Config config, const fs::path& folder);

}  // namespace nmoe
