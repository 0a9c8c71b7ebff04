// What a sweep is to try, as its TOML file says it (docs/research.md has every key).
//
//   [sweep]       base, name, seeds, goal, direction, run_name, draws, draw_seed, parallel, retries, budget, halving
//   [sweep.keys]  a key of the configuration with its values: a list; a range { from, to } with num, step or factor;
//                 drawn, { from, to, draw = "log" or "linear" } or { choose = [...] }; or "= an expression"
//   [[sweep.together]]  keys with lists of one length, which change together
//
// All other tables but [ladder] are keys of the configuration, of every run, in place of the base's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "config/value.h"

namespace nmoe {

// Keys that change together: values[i] has one for each of them.
struct SweepAxis {
  std::vector<std::string> keys;
  std::vector<std::vector<Value>> values;
  bool rounds = false;  // to whole numbers, where the key takes these alone: of ranges
  std::string place;    // "sweep.toml:12"
};

// A key whose value is drawn, for each draw anew.
struct SweepDraw {
  std::string key;
  double from = 0.0, to = 0.0;
  enum class Scale { kLinear, kLog } scale = Scale::kLinear;
  std::vector<Value> choices;  // instead, unless empty: each as often
  std::string place;
};

struct SweepExpression {
  std::string key;
  std::string text;  // behind the "="
  std::string place;
};

enum class GoalDirection { kLeast, kLargest };

// Of the whole sweep; 0: none.
struct SweepBudget {
  double hours = 0.0;
  int64_t steps = 0;
  double flops = 0.0;
};

// Successive halving (arXiv 1502.07943): at each share of their steps, only the best go on.
struct SweepHalving {
  std::vector<double> at;  // rising, between 0 and 1; empty: all runs go to their end
  double keep = 0.5;       // share of the points that goes on
};

struct SweepFile {
  bool is_ladder = false;  // it has [ladder], too: research/ladder/ladder_file.h
  std::string name;
  fs::path path, base;
  std::vector<std::string> overrides;  // of every run: "section.key=value"
  std::vector<SweepAxis> axes;
  std::vector<SweepDraw> draws;
  std::vector<SweepExpression> expressions;
  int64_t num_draws = 0;
  uint64_t draw_seed = 0;
  int64_t num_seeds = 1;       // from the configuration's own run.seed on, unless there are
  std::vector<int64_t> seeds;  // these
  std::string goal;            // a metric's tag
  GoalDirection direction = GoalDirection::kLeast;
  std::string run_name;  // with {sweep}, {point}, {seed} and {key} of any key that the sweep sets
  int64_t parallel = 0;  // runs at a time; 0: as many as devices or CPUs allow
  int64_t retries = 2;   // of a run that crashed
  SweepBudget budget;
  SweepHalving halving;
};

// Errors (usage), with file and line: no TOML; unknown keys, values of other kinds, a key that is set twice or belongs
// to the sweep itself. Whether the configuration has such keys is not looked at.
SweepFile read_sweep_file(const fs::path& path);
SweepFile parse_sweep(std::string_view toml, const fs::path& path);  // the same of text

}  // namespace nmoe
