#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "eval/compare.h"

namespace nmoe::cli {

namespace {

void print_row(const TaskComparison& row, double scale) {
  print("{:<38}{:>7}{:>10.4g}{:>10.4g}{:>+10.4g}{:>9.3g}", row.task, row.items, scale * row.value_a,
        scale * row.value_b, scale * row.difference, scale * row.standard_error);
  const std::string counts = row.has_accuracy ? fmt::format("{}/{}", row.only_a, row.only_b) : "";
  print("{:>13}{:>10.3g}\n", counts, row.p_value);
}

nlohmann::ordered_json to_json(const TaskComparison& row) {
  return {{"task", row.task},     {"items", row.items},           {"a", row.value_a},
          {"b", row.value_b},     {"difference", row.difference}, {"standard_error", row.standard_error},
          {"only_a", row.only_a}, {"only_b", row.only_b},         {"p", row.p_value}};
}

}  // namespace

void eval_compare_command(const EvalCompareArguments& arguments) {
  const EvalComparison comparison = compare_evaluations(arguments.a, arguments.b);
  if (arguments.json) {
    nlohmann::ordered_json json = {{"tasks", nlohmann::ordered_json::array()},
                                   {"means", nlohmann::ordered_json::array()}};
    for (const TaskComparison& row : comparison.tasks) json["tasks"].push_back(to_json(row));
    for (const TaskComparison& row : comparison.means) json["means"].push_back(to_json(row));
    print("{}\n", printed_json(json, 2));
    return;
  }
  print("{:<38}{:>7}{:>10}{:>10}{:>10}{:>9}{:>13}{:>10}\n", "task", "items", "a", "b", "b - a", "+-", "only a/b", "p");
  for (const TaskComparison& row : comparison.tasks) print_row(row, row.has_accuracy ? 100.0 : 1.0);
  for (const TaskComparison& row : comparison.means) print_row(row, 1.0);
}

}  // namespace nmoe::cli
