// Runs of any origin ranked as a sweep's are: by configuration, over the seeds that each has.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "research/report/ranking.h"
#include "track/config_differences.h"
#include "track/runs.h"

namespace nmoe {

struct RunReport {
  Ranking ranking;
  std::vector<ConfigDifference> differences;  // with a value for each that is ranked, in its order
};

struct RunReportOptions {
  std::string goal;  // a tag; empty: valid/loss, or train/loss where a run that would be ranked has no validation
  bool goal_is_largest = false;
  TrainingAmount by = TrainingAmount::kTokens;
};

// `runs` are rows of `store`, the database in `run_dir`; of those that repeat a configuration and seed, the first
// counts. Runs are of one point if their configurations differ alone in run.seed, in places (is_place()), in how often
// they log and validate, and in keys outside [train] of which a run may be resumed with another value
// (Field::defines_run): devices, threads, checkpoints. Error (usage): no run has a goal.
RunReport report_runs(RunStore& store, const fs::path& run_dir, std::span<const RunRow> runs,
                      const RunReportOptions& options);

std::string print_run_report(const RunReport& report, bool markdown);
std::string run_report_json(const RunReport& report);

}  // namespace nmoe
