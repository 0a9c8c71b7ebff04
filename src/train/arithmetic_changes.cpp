#include "train/arithmetic_changes.h"

#include <fmt/format.h>

#include <vector>

namespace nmoe {
namespace {

bool rates_decay(const Config& config) { return config.optim.schedule.decay > 0; }

}  // namespace

std::span<const ArithmeticChange> arithmetic_changes() {
  static const std::vector<ArithmeticChange> changes = {
      {"optim.schedule's decay counts what was done before a step, so that its last step has a rate above 0",
       rates_decay},
  };
  return changes;
}

std::string warn_of_changed_arithmetic(std::span<const ArithmeticChange> changes, int64_t before,
                                       const Config& config) {
  const auto count = std::ssize(changes);
  if (before > count) {
    return fmt::format(
        "warning: this checkpoint is of a later nmoe, whose arithmetic has {} more changes than this one's: "
        "from here on this run's bits are not those that it would give",
        before - count);
  }
  std::string list;
  for (const ArithmeticChange& change : changes.subspan(static_cast<size_t>(before))) {
    if (change.affects(config)) list += fmt::format("\n  {}", change.now);
  }
  if (list.empty()) return "";
  return fmt::format(
      "warning: nmoe's arithmetic has changed since this checkpoint was written; the run goes on with the new one, and "
      "its bits are not those of a run that had it from the start:{}",
      list);
}

}  // namespace nmoe
