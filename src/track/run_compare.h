// What runs have in common and what not: configurations key by key, losses at equal amounts of training.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "track/runs.h"

namespace nmoe {

struct ConfigDifference {
  std::string key;                  // "optim.matrices.lr"
  std::vector<std::string> values;  // of each run, JSON; "" of one that has no such key
};
// Every key of a configuration (JSON) with its value: "optim.matrices.lr", "0.02". JsonError where it is none.
std::map<std::string, std::string> config_keys(const std::string& config);

// By key; run.name, run.dir and the like, which say where a run is and not what, are left out. `configs` are JSON.
std::vector<ConfigDifference> config_differences(std::span<const std::string> configs);

enum class Progression { kSteps, kTokens, kFlops };

struct RunLosses {
  // Of train/loss and valid/loss: at the last logged step that is not beyond the amount compared at, of a run that
  // reached it; of all steps the last, and the least that is finite. Nothing where there is none.
  struct Loss {
    std::optional<double> at, last, best;
  };
  Loss train, valid;
  int64_t at_step = 0;  // of `train.at`
  double reached = 0;   // how much was trained in all
};

struct RunComparison {
  std::vector<ConfigDifference> differences;
  double at = 0;  // the least that a run with losses reached; of runs that failed only if all did
  std::vector<RunLosses> losses;
  // Runs with a train.at whose configurations differ in run.seed alone, at least two: mean over them and standard
  // deviation (with n - 1) of train.at and valid.at.
  struct Seeds {
    std::vector<size_t> runs;  // by their place in what was compared
    double train_mean = 0, train_deviation = 0;
    std::optional<double> valid_mean, valid_deviation;  // where all have been validated
  };
  std::vector<Seeds> seeds;
};

// `ids` in `run_dir`, whose database `store` is. Error (usage) where none has recorded a loss.
RunComparison compare_runs(RunStore& store, const fs::path& run_dir, std::span<const std::string> ids,
                           Progression progression);

}  // namespace nmoe
