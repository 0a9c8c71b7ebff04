// Choosing among runs, as people ask for them on a command line.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "track/runs.h"

namespace nmoe {

// What a run's row has under a name; nothing of what is not known.
using RunField = std::variant<std::monostate, double, std::string>;
// Names: id, name, experiment, status, reason, host, started, updated, ended, note, step, tokens, loss (smoothed),
// last_loss (of one batch), valid, bpb, rate (tokens/s), checkpoint (step). Error (usage) for another, with the
// nearest.
RunField run_field(const RunRow& run, std::string_view name);

// A condition such as "loss<2.5", "status=completed", "name~quick" (contains), "step>=1k"; also != and <=, >. A number
// is compared with numbers, as are words with words; of what is not known only != is true. Error (usage) for what is
// none.
class RunFilter {
 public:
  explicit RunFilter(std::string_view text);
  bool matches(const RunRow& run) const;

 private:
  std::string field_;
  std::string op_;
  std::string word_;
  std::optional<double> number_;
};

// By a field; "-loss": falling. What is not known comes last.
void sort_runs(std::vector<RunRow>& runs, std::string_view by);

// The run that `word` means: the one of this id, else the newest of this name, else the one whose id begins so. Error
// (usage) when there is none or several.
const RunRow& find_run(std::span<const RunRow> runs, const std::string& word);

}  // namespace nmoe
