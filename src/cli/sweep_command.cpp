#include "cli/sweep_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/command_options.h"
#include "cli/standard_output.h"
#include "cli/text_table.h"
#include "research/ladder/ladder_file.h"
#include "research/report/sweep_report.h"
#include "research/sweep/sweep.h"
#include "train/loop/run_config.h"

namespace nmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

// Where the sweep of a file is kept, without planning its runs.
fs::path folder_of(const std::string& path) {
  const SweepFile file = read_sweep_file(path);
  return fs::path(load_run_config(file.base, file.overrides).run.dir) / "sweeps" / file.name;
}

std::string state_text(const SweepEntry& run, bool at_work) {
  if (run.state == SweepRunState::kBegun && !at_work) return "interrupted";
  return std::string(sweep_run_state_name(run.state));
}

std::string counts(const SweepState& state, bool at_work) {
  std::map<std::string, int64_t> by_state;
  for (const SweepEntry& run : state.runs) ++by_state[state_text(run, at_work)];
  std::string text;
  for (const auto& [name, count] : by_state) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

}  // namespace

SweepState sweep_state_of(const fs::path& folder, const std::string& file) {
  const std::optional<SweepState> state = read_sweep_state(folder);
  if (!state) {
    throw usage_error(
        fmt::format("the sweep of {} has not begun: {} does not exist", file, sweep_state_path(folder).string()),
        "begin it with n research sweep " + file);
  }
  return *state;
}

bool has_open_runs(const SweepState& state) {
  return std::ranges::any_of(state.runs, [](const SweepEntry& run) {
    return run.state == SweepRunState::kWaiting || run.state == SweepRunState::kBegun;
  });
}

double seconds_per_flop(const fs::path& folder) {
  double flops = 0.0, seconds = 0.0;
  if (const std::optional<SweepState> before = read_sweep_state(folder)) {
    for (const SweepEntry& run : before->runs) {
      if (run.state == SweepRunState::kDone) flops += run.flops, seconds += run.seconds;
    }
  }
  return flops > 0.0 ? seconds / flops : 0.0;
}

void print_sweep_state(const SweepState& state, bool at_work) {
  using enum TextTable::Side;
  TextTable table({{"run"},
                   {"state"},
                   {state.goal, kRight},
                   {"time", kRight},
                   {"crashes", kRight},
                   {"seed", kRight},
                   {"point"},
                   {"reason"}});
  for (const SweepEntry& run : state.runs) {
    table.add({run.name, state_text(run, at_work), run.goal ? fmt::format("{:.4f}", *run.goal) : "-",
               run.seconds > 0.0 ? human_seconds(run.seconds) : "-", std::to_string(run.crashes),
               std::to_string(run.seed), run.values, run.reason});
  }
  print("sweep {}: {} ({}); {} at work in all\n{}", state.name, counts(state, at_work),
        at_work ? "at work" : "not at work", human_seconds(state.seconds), table.text());
}

namespace {

void sweep_command(const SweepArguments& arguments) {
  const SweepFile file = read_sweep_file(arguments.file);
  if (file.is_ladder) {
    throw usage_error(arguments.file + " has [ladder]: it is a ladder", "n research ladder " + arguments.file);
  }
  const SweepPlan plan = plan_sweep(file, arguments.parallel);
  const std::string text = print_sweep_plan(plan, seconds_per_flop(plan.folder()));
  if (arguments.dry_run) return print("{}", text);
  say("{}", text);
  ignore_broken_pipes();
  const StopSignal stop;
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  SweepState state = run_sweep(plan, program, stop);
  const auto is_done = [](const SweepEntry& run) { return run.state == SweepRunState::kDone && !run.confirms; };
  const bool any_done = std::ranges::any_of(state.runs, is_done);
  if (arguments.confirm > 0 && any_done && !has_open_runs(state)) {
    const PointReport best = report_sweep(state, TrainingAmount::kTokens).ranked.front();
    say("the best point, {}, with {} fresh seeds\n", best.values, arguments.confirm);
    state = run_sweep(confirming_plan(plan, best.point, arguments.confirm), program, stop);
  }
  if (any_done) {
    print("{}", print_ranking(report_sweep(state, TrainingAmount::kTokens), /*markdown=*/false));
  } else {
    print_sweep_state(state, false);
  }
  if (has_open_runs(state)) print("not finished; go on with the same command\n");
}

void report_command(const SweepArguments& arguments) {
  check_format(arguments.json, arguments.markdown);
  if (is_ladder_file(arguments.file)) {
    if (arguments.by != "tokens") {
      throw usage_error("--by has no effect on the report of a ladder", "leave it out");
    }
    return ladder_report_command(arguments);
  }
  const SweepState state = sweep_state_of(folder_of(arguments.file), arguments.file);
  const Ranking ranking = report_sweep(state, training_amount(arguments.by));
  if (arguments.json) return print("{}\n", printed_json(ranking_json(ranking), 2));
  print("{}", print_ranking(ranking, arguments.markdown));
}

void status_command(const SweepArguments& arguments) {
  const fs::path folder = folder_of(arguments.file);
  const SweepState state = sweep_state_of(folder, arguments.file);
  const bool at_work = is_at_work(folder);
  if (!arguments.json) return print_sweep_state(state, at_work);
  Json json = {{"name", state.name},
               {"at_work", at_work},
               {"goal", state.goal},
               {"seconds", state.seconds},
               {"runs", Json::array()}};
  for (const SweepEntry& run : state.runs) {
    json["runs"].push_back({{"name", run.name},
                            {"state", state_text(run, at_work)},
                            {"point", run.point},
                            {"values", run.values},
                            {"seed", run.seed},
                            {"goal", run.goal ? Json(*run.goal) : Json(nullptr)},
                            {"seconds", run.seconds},
                            {"crashes", run.crashes},
                            {"reason", run.reason}});
  }
  print("{}\n", printed_json(json, 2));
}

void stop_command(const SweepArguments& arguments) {
  stop_sweep(folder_of(arguments.file));
  print("the sweep is asked to end: its runs save a checkpoint first\n");
}

}  // namespace

void add_sweep(CLI::App& research, SweepArguments& arguments, std::function<void()>& run) {
  const auto add = [&](const char* name, const char* what, void (*command)(const SweepArguments&)) {
    CLI::App* app = research.add_subcommand(name, what);
    app->add_option("file", arguments.file, "the sweep (TOML): a base configuration and [sweep]")
        ->required()
        ->type_name("FILE");
    app->callback([&arguments, &run, command] { run = [&arguments, command] { command(arguments); }; });
    return app;
  };
  CLI::App* sweep = add("sweep", "train runs that differ in keys and seeds, some at a time", sweep_command);
  CLI::App* ladder =
      add("ladder", "train models of rising size, and predict the loss of larger ones before they run", ladder_command);
  for (CLI::App* app : {sweep, ladder}) {
    app->add_option("--parallel", arguments.parallel,
                    "runs at a time; 0: sweep.parallel, or as many as the machine has room for")
        ->check(number(0, 4096))
        ->capture_default_str();
    app->add_flag("--dry-run", arguments.dry_run, "only print what it would do");
  }
  sweep->add_option("--confirm", arguments.confirm, "then train the best point with so many fresh seeds")
      ->check(number(0, 1000))
      ->capture_default_str();
  add_json(add("status", "how far a sweep is", status_command), arguments.json);
  CLI::App* report =
      add("report", "rank the points of a sweep, or tell the laws of a ladder, with intervals", report_command);
  add_json(report, arguments.json);
  add_ranking(report, arguments.by, arguments.markdown);
  add("stop", "end a sweep; its runs can be gone on with", stop_command);
}

}  // namespace nmoe::cli
