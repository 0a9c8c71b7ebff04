// What a ladder says: the laws of its sizes, the prediction for its targets, and how far off that was.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "research/ladder/ladder_plan.h"
#include "research/ladder/scaling_law.h"
#include "research/sweep/sweep_state.h"

namespace nmoe {

// Of a target, made before it ran.
struct LadderPrediction {
  int64_t point = 0;
  std::string values;  // describe_point()
  double dial = 0.0;
  ScalingRun size;  // with the loss that is predicted, of the mean over its seeds
  std::optional<double> half_width;
  double naive = 0.0;  // naive_prediction()
  int64_t seeds = 1;
};

// <folder>/prediction.json, written once and never changed.
struct StoredPrediction {
  LawOf law = LawOf::kFlops;
  std::vector<std::string> runs;  // that it was made from
  std::vector<LadderPrediction> targets;
};

struct LadderReport {
  std::string name, goal, dial;
  std::vector<std::string> runs;   // that the laws are fitted to, by name
  std::vector<ScalingRun> sizes;   // theirs
  std::vector<ScalingLaw> laws;    // of parameters, tokens, FLOPs; or, where several lengths were tried, of both
  std::vector<SweepEntry> others;  // runs that are neither in these nor open
  StoredPrediction prediction;
  struct Outcome {
    std::vector<double> losses;                      // of the target's seeds; none: it has not ended
    std::optional<double> mean, error, naive_error;  // relative: predicted / mean - 1
    std::optional<bool> inside;                      // whether the mean is in the predicted interval
  };
  std::vector<Outcome> outcomes;  // of the prediction's targets
  // With a law of both: for each target's FLOPs, the best parameters, and the tokens that leaves.
  struct Optimum {
    double flops = 0.0, tokens = 0.0;
    Estimate parameters;
  };
  std::vector<Optimum> optima;
};

// The prediction by the law that the report singles out: of both quantities, or else of FLOPs. Errors (usage): runs of
// sizes that have not ended; ScalingLaw's.
StoredPrediction predict_targets(const LadderPlan& plan, const SweepState& state);

fs::path prediction_path(const fs::path& folder);
// Error (runtime): a prediction is there already.
void write_prediction(const fs::path& folder, const StoredPrediction& prediction);
// Nothing where there is none. Error (runtime): it is none of ours.
std::optional<StoredPrediction> read_prediction(const fs::path& folder);

// `prediction`: what was stored; nothing: it is made now, of what has ended. Errors (usage): ScalingLaw's.
LadderReport report_ladder(const LadderPlan& plan, const SweepState& state,
                           const std::optional<StoredPrediction>& prediction);

std::string print_ladder_report(const LadderReport& report, bool markdown);
nlohmann::ordered_json ladder_report_json(const LadderReport& report);

}  // namespace nmoe
