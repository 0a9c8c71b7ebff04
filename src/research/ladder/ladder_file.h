// What a ladder is: a sweep over one dial that makes a family of models, each trained on tokens in proportion to its
// size, and larger models whose loss is predicted before they run (docs/research.md has every key).
//
//   [sweep], [sweep.keys]  as in sweep_file.h: the dial is the one key with a list or range, its values the sizes that
//                          laws are fitted to; other keys follow from it by expressions
//   [ladder]               targets, and either tokens_per_parameter or flops; target_tokens_per_parameter
//   [ladder.laws]          batch, rate, decay
#pragma once

#include <string>
#include <vector>

#include "research/sweep/sweep_file.h"

namespace nmoe {

struct LadderFile {
  SweepFile sweep;
  std::vector<Value> targets;  // of the dial
  // Every size is trained with each of these: tokens per active parameter, or, where that is empty, FLOPs (which is
  // rounded to whole steps).
  std::vector<double> tokens_per_parameter;
  std::vector<double> flops;
  double target_tokens_per_parameter = 0.0;
  // By which factor the batch, all rates and all decays differ from the base's (expression.h). They see, each over the
  // base's: `tokens`, `parameters` (active ones), `width` (model.dim), and rate and decay also `batch`, as it was
  // rounded. By default as nanochat has them: batch tokens^0.383, rate its root, decay that over tokens.
  std::string batch_law = "tokens ^ 0.383";
  std::string rate_law = "sqrt(batch)";
  std::string decay_law = "sqrt(batch) / tokens";

  const SweepAxis& sizes() const { return sweep.axes.front(); }
};

// Whether a file has a table [ladder]. Errors (usage): it cannot be read as TOML.
bool is_ladder_file(const fs::path& path);

// Errors (usage), with the file's place: read_sweep_file's; no [ladder]; unknown keys; more than one key with a list or
// range, drawn keys, halving, a budget in steps or FLOPs, a goal other than a loss; targets that are sizes.
LadderFile read_ladder_file(const fs::path& path);
LadderFile parse_ladder(std::string_view toml, const fs::path& path);  // the same of text

}  // namespace nmoe
