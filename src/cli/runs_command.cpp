// n runs, show, compare, note, rm, prune, tags.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/runs_store.h"
#include "cli/standard_output.h"
#include "cli/text_table.h"
#include "research/report/run_report.h"
#include "track/alerts.h"
#include "track/catalogue.h"
#include "track/metrics_reader.h"
#include "track/run_json.h"
#include "track/run_query.h"
#include "track/runs.h"

namespace nmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string decimal(const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "-"; }

void print_table(std::span<const RunRow> runs) {
  TextTable table({{"run"},
                   {"name"},
                   {"status"},
                   {"step", TextTable::kRight},
                   {"loss", TextTable::kRight},
                   {"valid", TextTable::kRight},
                   {"saved", TextTable::kRight},
                   {"tokens/s", TextTable::kRight},
                   {"started"},
                   {"reason"}});
  for (const RunRow& run : runs) {
    table.add(
        {run.id, run.name, std::string(run_status_name(run.status)), std::to_string(run.step), decimal(run.smooth_loss),
         decimal(run.valid_loss), run.checkpoint ? std::to_string(*run.checkpoint) : "-",
         run.tokens_per_s ? human_count(*run.tokens_per_s) : "-", run.started_at,
         run.reason.empty() || run.note.empty() ? run.reason + run.note : fmt::format("{}; {}", run.reason, run.note)});
  }
  print("{}", table.text());
}

// All that meet every condition of --filter, newest first.
std::vector<RunRow> filtered_runs(RunStore& store, const RunsArguments& arguments) {
  const std::vector<RunFilter> filters(arguments.filters.begin(), arguments.filters.end());
  std::vector<RunRow> runs = store.list();
  std::erase_if(runs, [&](const RunRow& run) {
    return !std::ranges::all_of(filters, [&](const RunFilter& filter) { return filter.matches(run); });
  });
  return runs;
}

// Those that are named, or those that --filter lets through.
std::vector<RunRow> compared_runs(RunStore& store, const RunsArguments& arguments) {
  if (arguments.filters.empty() == arguments.runs.empty()) {
    throw usage_error(arguments.runs.empty() ? "n runs compare: no runs" : "n runs compare: both runs and --filter",
                      "name the runs, or give conditions that they meet with --filter");
  }
  if (arguments.filters.empty()) return named_runs(store, arguments);
  std::vector<RunRow> runs = filtered_runs(store, arguments);
  if (runs.empty()) throw usage_error("no run meets the conditions of --filter", "n runs lists them");
  return runs;
}

}  // namespace

RunStore open_runs(const RunsArguments& arguments, RunStore::Access access) {
  return RunStore(runs_database(arguments.dir), access);
}

std::vector<RunRow> named_runs(RunStore& store, const RunsArguments& arguments) {
  const std::vector<RunRow> all = store.list();
  std::vector<RunRow> named;
  for (const std::string& word : arguments.runs) named.push_back(find_run(all, word));
  return named;
}

void runs_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  std::vector<RunRow> runs = filtered_runs(store, arguments);
  if (!arguments.sort.empty()) sort_runs(runs, arguments.sort);
  if (arguments.limit > 0 && std::ssize(runs) > arguments.limit) runs.resize(static_cast<size_t>(arguments.limit));
  if (arguments.json) {
    Json list = Json::array();
    for (const RunRow& run : runs) list.push_back(run_json(run));
    print("{}\n", printed_json(list, 2));
    return;
  }
  if (!arguments.grouped) return print_table(runs);
  // Experiments in the order of their first run; runs in theirs.
  std::vector<std::pair<std::string, std::vector<RunRow>>> groups;
  for (RunRow& run : runs) {
    auto group = std::ranges::find(groups, run.experiment, &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {run.experiment, {}});
    group->second.push_back(std::move(run));
  }
  for (const auto& [experiment, members] : groups) {
    print("{}experiment {}\n", &experiment == &groups.front().first ? "" : "\n", experiment);
    print_table(members);
  }
}

void runs_show_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  const RunRow run = named_runs(store, arguments).front();
  const fs::path metrics = metrics_path(arguments.dir, run.id);
  std::vector<MetricsView::Last> last;
  if (has_metrics(metrics)) last = MetricsReader(metrics).tags();
  const std::vector<Alert> alerts = read_alerts(alerts_path(metrics));
  Json json = run_json(run);
  json["checkpoint_dir"] = run.checkpoint_dir;
  if (arguments.json) {
    json["config"] = try_parse_json<Json>(store.config(run.id));
    for (const MetricsView::Last& value : last) {
      if (!value.is_array) json["last"][value.tag] = {{"step", value.step}, {"value", value.value}};
    }
    for (const Alert& alert : alerts) json["alerts"].push_back(try_parse_json<Json>(alert_json(alert)));
    print("{}\n", printed_json(json, 2));
    return;
  }
  std::string text;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_null())
      text += fmt::format("{:<16}{}\n", name, value.is_string() ? value.get<std::string>() : json_text(value));
  }
  text += fmt::format("\n{:<44}{:>14}  {:<12}{}\n", "last value of", "", "unit", "step");
  for (const MetricsView::Last& value : last) {
    if (value.is_array) continue;
    const Metric* metric = find_tag(value.tag);
    text += fmt::format("{:<44}{:>14.6g}  {:<12}{}\n", value.tag, value.value, metric == nullptr ? "" : metric->unit,
                        value.step);
  }
  if (!alerts.empty()) text += "\nalerts\n";
  for (const Alert& alert : alerts) {
    text += fmt::format("{:%Y-%m-%dT%H:%M:%SZ}  {:<12} {}\n", fmt::gmtime(static_cast<std::time_t>(alert.ts_ms / 1000)),
                        alert_kind_name(alert.kind), alert.text);
  }
  print("{}", text);
}

void runs_compare_command(const RunsArguments& arguments) {
  check_format(arguments.json, arguments.markdown);
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  const std::vector<RunRow> runs = compared_runs(store, arguments);
  const RunReport report = report_runs(
      store, arguments.dir, runs,
      {.goal = arguments.goal, .goal_is_largest = arguments.direction == "max", .by = training_amount(arguments.by)});
  if (arguments.json) return print("{}\n", run_report_json(report));
  print("{}", print_run_report(report, arguments.markdown));
}

void runs_note_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kWrite);
  store.set_note(named_runs(store, arguments).front().id, arguments.note);
}

void runs_rm_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kWrite);
  for (const RunRow& run : named_runs(store, arguments)) {
    const fs::path metrics = metrics_path(arguments.dir, run.id).parent_path();
    store.remove(run.id);
    remove_tree(metrics);
    print("removed {}{}\n", run.id,
          fs::exists(run.checkpoint_dir) ? fmt::format("; its checkpoints stay in {}", run.checkpoint_dir) : "");
  }
}

void runs_prune_command(const RunsArguments& arguments) {
  RunStore store = open_runs(arguments, RunStore::Access::kRead);
  for (const RunRow& run : named_runs(store, arguments)) {
    // One of another host may be alive, where the lock of a folder may not be seen.
    if (run.status == RunStatus::kRunning) {
      throw usage_error(fmt::format("run '{}' is running as process {} of {}", run.id, run.pid, run.host),
                        "stop it first");
    }
    int64_t freed = 0;
    if (latest_checkpoint(run.checkpoint_dir)) {
      const CheckpointFolder mine(run.checkpoint_dir);
      freed = drop_optimizer_states(run.checkpoint_dir);
    }
    print("{}: {} freed in {}\n", run.id, human_bytes(freed), run.checkpoint_dir);
  }
}

void runs_tags_command() { print("{}", tag_reference()); }

}  // namespace nmoe::cli
