// Configurations ranked by what their runs reached at an equal amount of training, with intervals over seeds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "research/report/statistics.h"
#include "track/run_curve.h"

namespace nmoe {

enum class TrainingAmount { kTokens, kFlops };
double amount(const GoalPoint& point, TrainingAmount by);

// One run, as far as a ranking has to know it.
struct Contender {
  std::string name;
  int64_t point = 0;   // runs of one point differ in their seeds alone
  std::string values;  // what the point is called
  int64_t seed = 0;
  bool confirms = false;  // had no part in choosing the best: told of beside those that are ranked
  enum class End {
    kFinished,
    kOpen,    // runs, or can be gone on with
    kFailed,  // crashed, diverged, or was ended early
  } end = End::kOpen;
  std::string state, reason;  // in words
  RunCurve curve;
};

struct PointReport {
  int64_t point = 0;
  std::string values;
  std::vector<std::string> runs;
  std::vector<int64_t> seeds;
  Spread goal;  // over the seeds, at Ranking::at
  // Of goal - that of the first point, over the seeds that both have: nothing for the first, or without such seeds.
  std::optional<Spread> behind_first;
  int64_t paired = 0;  // number of these seeds
  // The largest of all its runs' steps, of those that failed, too; nothing where none was recorded.
  std::optional<double> largest_grad_norm;
  std::optional<double> largest_load;  // %, of a router's fullest expert
  std::optional<Spread> confirmed;     // goal of the runs with fresh seeds, which took no part in the ranking
  int64_t confirming = 0;              // number of these
};

struct Ranking {
  std::string title;  // "sweep rates"
  std::string goal;   // a metric's tag
  bool goal_is_largest = false;
  TrainingAmount by = TrainingAmount::kTokens;
  double at = 0.0;                  // the most training that all finished runs have
  std::vector<PointReport> ranked;  // by the mean, the best first
  std::vector<Contender> others;    // runs that are not ranked
};

// Fills what `ranking` lacks: it has title, goal, direction and amount. Each run counts with its last goal at or before
// `at`, the least that a finished run has reached; runs that are open are ranked where they have got so far. Without a
// finished run, `at` is the least of those that are open, and of failed ones if there is nothing else. Of runs of one
// point and seed, the first counts. Error (usage): no run has a goal.
Ranking rank_runs(Ranking ranking, const std::vector<Contender>& runs);

// A table for a terminal, or Markdown.
std::string print_ranking(const Ranking& ranking, bool markdown);
nlohmann::ordered_json ranking_json(const Ranking& ranking);

}  // namespace nmoe
