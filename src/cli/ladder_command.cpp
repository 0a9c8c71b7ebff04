// n research ladder, and n research report of one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "base/signals.h"
#include "cli/standard_output.h"
#include "cli/sweep_command.h"
#include "research/ladder/ladder_report.h"
#include "research/sweep/sweep.h"

namespace nmoe::cli {
namespace {

// Sizes that came after the prediction would make another one, and a target has to be in it.
void check_prediction(const LadderPlan& plan, const StoredPrediction& prediction) {
  const std::optional<SweepState> state = read_sweep_state(plan.sweep.folder());
  for (const SweepRun& run : plan.sweep.runs) {
    const LadderPoint& point = plan.points[static_cast<size_t>(run.point) - 1];
    const bool is_known =
        point.is_target
            ? std::ranges::find(prediction.targets, run.point, &LadderPrediction::point) != prediction.targets.end()
            : state && std::ranges::find(state->runs, run.name, &SweepEntry::name) != state->runs.end();
    if (is_known) continue;
    throw usage_error(fmt::format("run {} is new to the ladder, whose prediction has been made", run.name),
                      "give the larger ladder another sweep.name");
  }
}

// The prediction, once the sizes have ended; nothing before.
std::optional<StoredPrediction> predicted(const LadderPlan& plan, const std::string& program, const StopSignal& stop) {
  const fs::path folder = plan.sweep.folder();
  std::optional<StoredPrediction> prediction = read_prediction(folder);
  if (prediction) {
    check_prediction(plan, *prediction);
    return prediction;
  }
  const SweepState state = run_sweep(plan.without_targets(), program, stop);
  if (has_open_runs(state)) {
    print_sweep_state(state, /*at_work=*/false);
    print("not finished; go on with the same command\n");
    return std::nullopt;
  }
  prediction = predict_targets(plan, state);
  write_prediction(folder, *prediction);
  for (const LadderPrediction& target : prediction->targets) {
    say("predicted for {} = {}: {:.4f}{}, kept in {}\n", plan.file.sizes().keys.front(), target.dial, target.size.loss,
        target.half_width ? fmt::format(" +- {:.4f}", *target.half_width) : "", prediction_path(folder).string());
  }
  return prediction;
}

}  // namespace

void ladder_command(const SweepArguments& arguments) {
  const LadderPlan plan = plan_ladder(read_ladder_file(arguments.file), arguments.parallel);
  const std::string text =
      print_sweep_plan(plan.sweep, seconds_per_flop(plan.sweep.folder())) + print_ladder_plan(plan);
  if (arguments.dry_run) return print("{}", text);
  say("{}", text);
  ignore_broken_pipes();
  const StopSignal stop;
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const std::optional<StoredPrediction> prediction = predicted(plan, program, stop);
  if (!prediction) return;
  const SweepState state = run_sweep(plan.sweep, program, stop);
  print("{}", print_ladder_report(report_ladder(plan, state, prediction), /*markdown=*/false));
  if (has_open_runs(state)) print("not finished; go on with the same command\n");
}

void ladder_report_command(const SweepArguments& arguments) {
  const LadderPlan plan = plan_ladder(read_ladder_file(arguments.file));
  const fs::path folder = plan.sweep.folder();
  const LadderReport report = report_ladder(plan, sweep_state_of(folder, arguments.file), read_prediction(folder));
  if (arguments.json) return print("{}\n", printed_json(ladder_report_json(report), 2));
  print("{}", print_ladder_report(report, arguments.markdown));
}

}  // namespace nmoe::cli
