#include "research/report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "config/config.h"
#include "config/schema.h"
#include "track/metrics_reader.h"
#include "track/tags/losses.h"
#include "track/tags/validation.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;
using End = Contender::End;

constexpr const char* kSeed = "run.seed";

// Keys that may differ between seeds of one configuration.
std::set<std::string> free_keys() {
  std::set<std::string> keys = {kSeed};
  Config config;
  for (const Field& field : describe(config)) {
    if (!field.defines_run && !field.key.starts_with("train.")) keys.insert(field.key);
  }
  for (const char* cadence : {"train.log_every", "train.valid_every"}) keys.insert(cadence);
  return keys;
}

End end_of(RunStatus status) {
  switch (status) {
    case RunStatus::kCompleted:
      return End::kFinished;
    case RunStatus::kRunning:
    case RunStatus::kInterrupted:
      return End::kOpen;
    default:
      return End::kFailed;
  }
}

// The runs in the order of their rows, with their configurations.
struct Gathered {
  std::vector<Contender> runs;
  std::map<int64_t, std::string> config_of;  // JSON, of each point its first run's
};

Gathered gather(RunStore& store, std::span<const RunRow> rows) {
  const std::set<std::string> free = free_keys();
  Gathered gathered;
  std::map<std::string, int64_t> points;
  for (const RunRow& row : rows) {
    const std::string config = store.config(row.id);
    const std::map<std::string, std::string> keys = config_keys(config);
    std::string text;
    for (const auto& [key, value] : keys) {
      if (!is_place(key) && !free.contains(key)) text += fmt::format("{}={}\n", key, value);
    }
    const auto [point, is_new] = points.emplace(text, std::ssize(points) + 1);
    if (is_new) gathered.config_of[point->second] = config;
    Contender run{.name = row.id,
                  .point = point->second,
                  .values = row.id == row.name ? row.id : fmt::format("{} {}", row.id, row.name),
                  .end = end_of(row.status),
                  .state = std::string(run_status_name(row.status)),
                  .reason = row.reason,
                  .curve = {}};
    if (const auto seed = keys.find(kSeed); seed != keys.end()) {
      const auto number = try_parse_json<Json>(seed->second);
      if (number.is_number_integer()) run.seed = number.get<int64_t>();
    }
    gathered.runs.push_back(std::move(run));
  }
  return gathered;
}

void read_curves(const fs::path& run_dir, const std::string& goal, std::vector<Contender>& runs) {
  for (Contender& run : runs) run.curve = read_run_curve(metrics_path(run_dir, run.name), goal);
}

// Whether the runs that count first have a goal, all of them.
bool have_goal(const std::vector<Contender>& runs) {
  for (const End end : {End::kFinished, End::kOpen, End::kFailed}) {
    const auto is_such = [&](const Contender& run) { return run.end == end; };
    const auto has = [&](const Contender& run) { return !is_such(run) || !run.curve.points.empty(); };
    if (std::ranges::any_of(runs, is_such)) return std::ranges::all_of(runs, has);
  }
  return false;
}

}  // namespace

RunReport report_runs(RunStore& store, const fs::path& run_dir, std::span<const RunRow> rows,
                      const RunReportOptions& options) {
  Gathered gathered = gather(store, rows);
  std::string goal = options.goal.empty() ? std::string(tags::kValidLoss.tag) : options.goal;
  read_curves(run_dir, goal, gathered.runs);
  if (options.goal.empty() && !have_goal(gathered.runs)) {
    goal = tags::kLoss.tag;
    read_curves(run_dir, goal, gathered.runs);
  }
  RunReport report;
  report.ranking.title = "runs";
  report.ranking.goal = goal;
  report.ranking.goal_is_largest = options.goal_is_largest;
  report.ranking.by = options.by;
  report.ranking = rank_runs(std::move(report.ranking), gathered.runs);
  std::vector<std::string> configs;
  for (const PointReport& point : report.ranking.ranked) configs.push_back(gathered.config_of.at(point.point));
  report.differences = config_differences(configs);
  std::erase_if(report.differences, [](const ConfigDifference& difference) { return difference.key == kSeed; });
  return report;
}

std::string print_run_report(const RunReport& report, bool markdown) {
  std::string text = print_ranking(report.ranking, markdown);
  if (report.ranking.ranked.size() < 2) return text;
  text += report.differences.empty() ? "\none configuration, but for what a resumed run may change\n"
                                     : "\nconfigurations differ in, the best first\n";
  if (markdown && !report.differences.empty()) text += "\n";
  for (const ConfigDifference& difference : report.differences) {
    text += fmt::format("{}{:<30}", markdown ? "- " : "  ", difference.key);
    for (const std::string& value : difference.values) text += fmt::format(" {:<14}", value.empty() ? "-" : value);
    text = text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string run_report_json(const RunReport& report) {
  Json json = ranking_json(report.ranking);
  json["config"] = Json::object();
  for (const ConfigDifference& difference : report.differences) {
    for (const std::string& value : difference.values) {
      json["config"][difference.key].push_back(value.empty() ? Json(nullptr) : try_parse_json<Json>(value));
    }
  }
  return printed_json(json, 2);
}

}  // namespace nmoe
