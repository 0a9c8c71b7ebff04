// What a sweep found: its points, the best first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "research/report/statistics.h"
#include "research/sweep/sweep_state.h"

namespace nmoe {

enum class SweepAmount { kTokens, kFlops };

struct PointReport {
  int64_t point = 0;
  std::string values;  // describe_point()
  std::vector<std::string> runs;
  std::vector<int64_t> seeds;
  Spread goal;  // over the seeds, at SweepReport::at
  // Of goal - that of the first point, over the seeds that both have: nothing for the first, or without such seeds.
  std::optional<Spread> behind_first;
  int64_t paired = 0;  // number of these seeds
  // The largest of all its runs' steps; nothing where none was recorded.
  std::optional<double> largest_grad_norm;
  std::optional<double> largest_load;  // %, of a router's fullest expert
  std::optional<Spread> confirmed;     // goal of the runs with fresh seeds, which took no part in the ranking
  int64_t confirming = 0;              // number of these
};

struct SweepReport {
  std::string name, goal;
  bool goal_is_largest = false;
  SweepAmount by = SweepAmount::kTokens;
  double at = 0.0;                  // the most training that all finished runs have
  std::vector<PointReport> ranked;  // of those with finished runs, by the mean
  std::vector<SweepEntry> others;   // runs that diverged, failed, were halted or have not ended
};

// From the state alone. Each finished run counts with its last goal at or before `at`. Error (usage): no run has ended.
SweepReport report_sweep(const SweepState& state, SweepAmount by);

// A table for a terminal, or Markdown.
std::string print_sweep_report(const SweepReport& report, bool markdown);
std::string sweep_report_json(const SweepReport& report);

}  // namespace nmoe
