#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "track/runs.h"

namespace nmoe::cli {

void runs_command(const RunsArguments& arguments) {
  const fs::path database = fs::path(arguments.dir) / "experiments.db";
  if (!fs::exists(database)) {
    throw usage_error(fmt::format("no runs: {} does not exist", database.string()),
                      "train something first, or name the runs' folder with --dir");
  }
  RunStore store(database, RunStore::Access::kRead);
  fmt::print("{:<26}{:<20}{:<17}{:>9}{:>10}{:>12}  {:<21}{}\n", "run", "name", "status", "step", "loss", "tokens/s",
             "started", "reason");
  for (const RunRow& run : store.list(arguments.limit)) {
    const std::string loss = run.last_loss ? fmt::format("{:.4f}", *run.last_loss) : "-";
    const std::string rate = run.tokens_per_s ? human_count(*run.tokens_per_s) : "-";
    fmt::print("{:<26}{:<20}{:<17}{:>9}{:>10}{:>12}  {:<21}{}\n", run.id, run.name, run_status_name(run.status),
               run.step, loss, rate, run.started_at, run.reason);
  }
}

}  // namespace nmoe::cli
