#include "research/report/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "research/report/json_number.h"
#include "research/report/table.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

// The last goal at or before `at`.
std::optional<double> goal_at(const Contender& run, TrainingAmount by, double at) {
  std::optional<double> goal;
  for (const GoalPoint& point : run.curve.points) {
    if (amount(point, by) <= at) goal = point.goal;
  }
  return goal;
}

// How far a run got; nothing without a goal.
std::optional<double> reached(const Contender& run, TrainingAmount by) {
  if (run.curve.points.empty()) return std::nullopt;
  return amount(run.curve.points.back(), by);
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

Json json_of(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"mean", spread->mean},
          {"deviation", number_json(spread->deviation)},
          {"half_width", number_json(spread->half_width)}};
}

}  // namespace

double amount(const GoalPoint& point, TrainingAmount by) {
  return by == TrainingAmount::kTokens ? point.tokens : point.flops;
}

Ranking rank_runs(Ranking ranking, const std::vector<Contender>& runs) {
  using End = Contender::End;
  std::optional<End> least_end;  // of those with a goal
  for (const Contender& run : runs) {
    if (!run.curve.points.empty() && (!least_end || run.end < *least_end)) least_end = run.end;
  }
  if (!least_end) {
    throw usage_error(fmt::format("{}: no run has recorded {}", ranking.title, ranking.goal),
                      "choose another goal, or wait for a run that has it");
  }
  ranking.at = std::numeric_limits<double>::infinity();
  for (const Contender& run : runs) {
    const std::optional<double> end = reached(run, ranking.by);
    if (end && run.end == *least_end) ranking.at = std::min(ranking.at, *end);
  }
  std::map<int64_t, PointReport> points;
  std::map<int64_t, Goals> goals;
  std::map<std::pair<int64_t, int64_t>, std::string> first_of;  // by point and seed
  for (const Contender& run : runs) {
    PointReport& point = points[run.point];
    point.point = run.point;
    if (point.values.empty()) point.values = run.values;
    point.largest_grad_norm = larger(point.largest_grad_norm, run.curve.largest_grad_norm);
    point.largest_load = larger(point.largest_load, run.curve.largest_load);
    const std::optional<double> end = reached(run, ranking.by);
    const bool may_rank = run.end != End::kFailed || *least_end == End::kFailed;
    if (!may_rank || !end || *end < ranking.at) {
      ranking.others.push_back(run);
      continue;
    }
    const auto [first, is_first] = first_of.emplace(std::pair(run.point, run.seed), run.name);
    if (!is_first) {
      ranking.others.push_back(run);
      ranking.others.back().reason = fmt::format("repeats {}", first->second);
      continue;
    }
    const double goal = *goal_at(run, ranking.by, ranking.at);
    if (run.confirms) {
      goals[run.point].fresh.push_back(goal);
    } else {
      goals[run.point].ranked[run.seed] = goal;
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
    ranking.ranked.push_back(std::move(point));
  }
  std::ranges::stable_sort(ranking.ranked, [&](const PointReport& a, const PointReport& b) {
    return ranking.goal_is_largest ? a.goal.mean > b.goal.mean : a.goal.mean < b.goal.mean;
  });
  for (size_t i = 1; i < ranking.ranked.size(); ++i) {
    const std::map<int64_t, double>& first = goals[ranking.ranked.front().point].ranked;
    std::vector<double> differences;
    for (const auto& [seed, goal] : goals[ranking.ranked[i].point].ranked) {
      if (const auto same = first.find(seed); same != first.end()) differences.push_back(goal - same->second);
    }
    ranking.ranked[i].paired = std::ssize(differences);
    if (!differences.empty()) ranking.ranked[i].behind_first = spread_of(differences);
  }
  return ranking;
}

std::string print_ranking(const Ranking& ranking, bool markdown) {
  const std::string unit = ranking.by == TrainingAmount::kTokens ? "tokens" : "FLOP";
  std::string text =
      fmt::format("{}: {} at {}, {} first; +- are 95 % intervals over seeds\n\n", ranking.title, ranking.goal,
                  human_quantity(ranking.at, unit), ranking.goal_is_largest ? "largest" : "least");
  const bool confirmed =
      std::ranges::any_of(ranking.ranked, [](const PointReport& point) { return point.confirmed.has_value(); });
  std::vector<std::vector<std::string>> rows = {
      {"", "point", "seeds", "mean", "deviation", "behind the first", "gradient norm", "router load"}};
  if (confirmed) rows.front().emplace_back("fresh seeds");
  for (size_t i = 0; i < ranking.ranked.size(); ++i) {
    const PointReport& point = ranking.ranked[i];
    rows.push_back({std::to_string(i + 1), point.values, std::to_string(point.seeds.size()),
                    fmt::format("{:.4f}", point.goal.mean), number(point.goal.deviation),
                    with_width(point.behind_first, "{:+.4f}"), number(point.largest_grad_norm, "{:.3g}"),
                    point.largest_load ? fmt::format("{:.1f} %", *point.largest_load) : "-"});
    if (!confirmed) continue;
    rows.back().push_back(
        point.confirmed ? fmt::format("{} of {}", with_width(point.confirmed, "{:.4f}"), point.confirming) : "-");
  }
  text += table_text(rows, markdown);
  if (ranking.others.empty()) return text;
  text += "\nnot among them:\n\n";
  rows = {{"run", "state", "point", "seed", "reason"}};
  for (const Contender& run : ranking.others) {
    rows.push_back({run.name, run.state, run.values, std::to_string(run.seed), run.reason.empty() ? "-" : run.reason});
  }
  return text + table_text(rows, markdown);
}

nlohmann::ordered_json ranking_json(const Ranking& ranking) {
  Json json = {{"title", ranking.title},
               {"goal", ranking.goal},
               {"direction", ranking.goal_is_largest ? "max" : "min"},
               {"by", ranking.by == TrainingAmount::kTokens ? "tokens" : "flops"},
               {"at", ranking.at},
               {"ranked", Json::array()},
               {"others", Json::array()}};
  for (const PointReport& point : ranking.ranked) {
    json["ranked"].push_back({{"point", point.point},
                              {"values", point.values},
                              {"runs", point.runs},
                              {"seeds", point.seeds},
                              {"goal", json_of(std::optional(point.goal))},
                              {"behind_first", json_of(point.behind_first)},
                              {"paired", point.paired},
                              {"largest_grad_norm", number_json(point.largest_grad_norm)},
                              {"largest_load", number_json(point.largest_load)},
                              {"confirmed", json_of(point.confirmed)},
                              {"confirming", point.confirming}});
  }
  for (const Contender& run : ranking.others) {
    json["others"].push_back(
        {{"run", run.name}, {"state", run.state}, {"values", run.values}, {"seed", run.seed}, {"reason", run.reason}});
  }
  return json;
}

}  // namespace nmoe
