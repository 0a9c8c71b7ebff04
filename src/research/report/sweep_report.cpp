#include "research/report/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

double amount(const GoalPoint& point, SweepAmount by) {
  return by == SweepAmount::kTokens ? point.tokens : point.flops;
}

// The last goal at or before `at`.
std::optional<double> goal_at(const SweepEntry& run, SweepAmount by, double at) {
  std::optional<double> goal;
  for (const GoalPoint& point : run.curve) {
    if (amount(point, by) <= at) goal = point.goal;
  }
  return goal;
}

std::optional<double> larger(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

struct Goals {
  std::map<int64_t, double> ranked;  // by seed
  std::vector<double> fresh;         // of runs that confirm
};

std::string number(const std::optional<double>& value, std::string_view format = "{:.4f}") {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}
std::string with_width(const std::optional<Spread>& spread, std::string_view format) {
  if (!spread) return "-";
  const std::string mean = fmt::format(fmt::runtime(format), spread->mean);
  return spread->half_width ? fmt::format("{} +- {:.4f}", mean, *spread->half_width) : mean;
}

// Cells as wide as their columns, as Markdown has them, too.
std::string table_text(const std::vector<std::vector<std::string>>& rows, bool markdown) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = markdown ? "|" : "";
    for (size_t c = 0; c < widths.size(); ++c) {
      line +=
          markdown ? fmt::format(" {:<{}} |", rows[r][c], widths[c]) : fmt::format("{:<{}}  ", rows[r][c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (!markdown || r > 0) continue;
    text += "|";
    for (const size_t width : widths) text += " " + std::string(width, '-') + " |";
    text += "\n";
  }
  return text;
}

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }
Json json_of(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {
      {"mean", spread->mean}, {"deviation", json_of(spread->deviation)}, {"half_width", json_of(spread->half_width)}};
}

}  // namespace

SweepReport report_sweep(const SweepState& state, SweepAmount by) {
  SweepReport report{.name = state.name, .goal = state.goal, .goal_is_largest = state.goal_is_largest, .by = by};
  report.at = std::numeric_limits<double>::infinity();
  for (const SweepEntry& run : state.runs) {
    if (run.state != SweepRunState::kDone) {
      report.others.push_back(run);
    } else {
      report.at = std::min(report.at, amount(run.curve.back(), by));
    }
  }
  if (report.others.size() == state.runs.size()) {
    throw usage_error(fmt::format("no run of the sweep {} has ended", state.name),
                      "n research status says how far it is");
  }
  std::map<int64_t, PointReport> points;
  std::map<int64_t, Goals> goals;
  for (const SweepEntry& run : state.runs) {
    const std::optional<double> goal =
        run.state == SweepRunState::kDone ? goal_at(run, by, report.at) : std::optional<double>();
    PointReport& point = points[run.point];
    point.point = run.point;
    point.values = run.values;
    point.largest_grad_norm = larger(point.largest_grad_norm, run.largest_grad_norm);
    point.largest_load = larger(point.largest_load, run.largest_load);
    if (!goal) continue;
    if (run.confirms) {
      goals[run.point].fresh.push_back(*goal);
    } else {
      goals[run.point].ranked[run.seed] = *goal;
      point.runs.push_back(run.name);
      point.seeds.push_back(run.seed);
    }
  }
  for (auto& [number, point] : points) {
    Goals& of_point = goals[number];
    if (of_point.ranked.empty()) continue;
    std::vector<double> values;
    for (const auto& [seed, goal] : of_point.ranked) values.push_back(goal);
    point.goal = spread_of(values);
    point.confirming = std::ssize(of_point.fresh);
    if (!of_point.fresh.empty()) point.confirmed = spread_of(of_point.fresh);
    report.ranked.push_back(std::move(point));
  }
  std::ranges::stable_sort(report.ranked, [&](const PointReport& a, const PointReport& b) {
    return state.goal_is_largest ? a.goal.mean > b.goal.mean : a.goal.mean < b.goal.mean;
  });
  for (size_t i = 1; i < report.ranked.size(); ++i) {
    const std::map<int64_t, double>& first = goals[report.ranked.front().point].ranked;
    std::vector<double> differences;
    for (const auto& [seed, goal] : goals[report.ranked[i].point].ranked) {
      if (const auto same = first.find(seed); same != first.end()) differences.push_back(goal - same->second);
    }
    report.ranked[i].paired = std::ssize(differences);
    if (!differences.empty()) report.ranked[i].behind_first = spread_of(differences);
  }
  return report;
}

std::string print_sweep_report(const SweepReport& report, bool markdown) {
  const std::string unit = report.by == SweepAmount::kTokens ? "tokens" : "FLOP";
  std::string text =
      fmt::format("sweep {}: {} at {}, {} first; +- are 95 % intervals over seeds\n\n", report.name, report.goal,
                  human_quantity(report.at, unit), report.goal_is_largest ? "largest" : "least");
  const bool confirmed =
      std::ranges::any_of(report.ranked, [](const PointReport& point) { return point.confirmed.has_value(); });
  std::vector<std::vector<std::string>> rows = {
      {"", "point", "seeds", "mean", "deviation", "behind the first", "gradient norm", "router load"}};
  if (confirmed) rows.front().emplace_back("fresh seeds");
  for (size_t i = 0; i < report.ranked.size(); ++i) {
    const PointReport& point = report.ranked[i];
    rows.push_back({std::to_string(i + 1), point.values, std::to_string(point.seeds.size()),
                    fmt::format("{:.4f}", point.goal.mean), number(point.goal.deviation),
                    with_width(point.behind_first, "{:+.4f}"), number(point.largest_grad_norm, "{:.3g}"),
                    point.largest_load ? fmt::format("{:.1f} %", *point.largest_load) : "-"});
    if (!confirmed) continue;
    rows.back().push_back(
        point.confirmed ? fmt::format("{} of {}", with_width(point.confirmed, "{:.4f}"), point.confirming) : "-");
  }
  text += table_text(rows, markdown);
  if (report.others.empty()) return text;
  text += "\nnot among them:\n\n";
  rows = {{"run", "state", "point", "seed", "reason"}};
  for (const SweepEntry& run : report.others) {
    rows.push_back({run.name, std::string(sweep_run_state_name(run.state)), run.values, std::to_string(run.seed),
                    run.reason.empty() ? "-" : run.reason});
  }
  return text + table_text(rows, markdown);
}

std::string sweep_report_json(const SweepReport& report) {
  Json json = {{"name", report.name},
               {"goal", report.goal},
               {"direction", report.goal_is_largest ? "max" : "min"},
               {"by", report.by == SweepAmount::kTokens ? "tokens" : "flops"},
               {"at", report.at},
               {"ranked", Json::array()},
               {"others", Json::array()}};
  for (const PointReport& point : report.ranked) {
    json["ranked"].push_back({{"point", point.point},
                              {"values", point.values},
                              {"runs", point.runs},
                              {"seeds", point.seeds},
                              {"goal", json_of(std::optional(point.goal))},
                              {"behind_first", json_of(point.behind_first)},
                              {"paired", point.paired},
                              {"largest_grad_norm", json_of(point.largest_grad_norm)},
                              {"largest_load", json_of(point.largest_load)},
                              {"confirmed", json_of(point.confirmed)},
                              {"confirming", point.confirming}});
  }
  for (const SweepEntry& run : report.others) {
    json["others"].push_back({{"run", run.name},
                              {"state", sweep_run_state_name(run.state)},
                              {"values", run.values},
                              {"seed", run.seed},
                              {"reason", run.reason}});
  }
  return printed_json(json, 2);
}

}  // namespace nmoe
