#include "eval/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <numbers>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace nmoe {
namespace {

struct Item {
  int64_t row = 0;
  std::optional<int64_t> gold;
  std::optional<bool> correct;
  double nats = 0.0;
  int64_t bytes = 0;
};

struct Evaluation {
  std::vector<std::string> tasks;  // in their order
  std::map<std::string, std::map<int64_t, Item>> items;
  nlohmann::ordered_json report;
};

Item item_of(const nlohmann::json& line) {
  Item item{.row = line.at("row").get<int64_t>()};
  if (line.contains("gold")) item.gold = line.at("gold").get<int64_t>();
  if (line.contains("correct")) item.correct = line.at("correct").get<bool>();
  if (line.contains("answers")) return item;
  item.bytes = line.at("bytes").get<int64_t>();
  for (const auto& nats : line.at("nats")) item.nats += nats.get<double>();
  return item;
}

Evaluation read_evaluation(const fs::path& dir) {
  const fs::path items = dir / "items.jsonl";
  if (!fs::exists(items)) {
    throw usage_error(fmt::format("'{}' is not a finished evaluation: it has no items.jsonl", dir.string()),
                      "name folders that n eval --out wrote; the same call of n eval again finishes one");
  }
  Evaluation evaluation;
  const std::string text = read_file(items);
  int64_t number = 0;
  try {
    evaluation.report = parse_json<nlohmann::ordered_json>(read_file(dir / "report.json"));
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      ++number;
      const auto line = parse_json<nlohmann::json>(std::string_view(text).substr(begin, end - begin));
      const auto task = line.at("task").get<std::string>();
      if (!evaluation.items.contains(task)) evaluation.tasks.push_back(task);
      evaluation.items[task].emplace(line.at("item").get<int64_t>(), item_of(line));
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // nlohmann's and JsonError
    throw runtime_error(fmt::format("'{}', line {}: {}", items.string(), number, error.what()),
                        "evaluate again, into another folder");
  }
  return evaluation;
}

double normal_p(double difference, double standard_error) {
  if (difference == 0.0) return 1.0;
  if (standard_error == 0.0) return 0.0;
  return std::erfc(std::abs(difference) / standard_error / std::numbers::sqrt2);
}

// Bits per byte are a ratio of sums: their standard error is that of the items' differences about it (delta method).
void compare_documents(const std::map<int64_t, Item>& a, const std::map<int64_t, Item>& b, TaskComparison& result) {
  result.has_accuracy = false;
  double nats_a = 0.0, nats_b = 0.0, bytes = 0.0, squares = 0.0;
  for (const auto& [index, item] : a) {
    nats_a += item.nats;
    nats_b += b.at(index).nats;
    bytes += static_cast<double>(item.bytes);
  }
  const double to_bits = 1.0 / (std::numbers::ln2 * bytes);
  result.value_a = nats_a * to_bits;
  result.value_b = nats_b * to_bits;
  result.difference = result.value_b - result.value_a;
  for (const auto& [index, item] : a) {
    const double expected = (nats_b - nats_a) * static_cast<double>(item.bytes) / bytes;
    squares += std::pow(b.at(index).nats - item.nats - expected, 2);
  }
  const auto n = static_cast<double>(a.size());
  result.standard_error = n > 1 ? std::sqrt(squares * n / (n - 1)) * to_bits : 0.0;
  result.p_value = normal_p(result.difference, result.standard_error);
}

void compare_answers(const std::map<int64_t, Item>& a, const std::map<int64_t, Item>& b, TaskComparison& result) {
  int64_t right_a = 0;
  for (const auto& [index, item] : a) {
    const bool in_a = *item.correct, in_b = *b.at(index).correct;
    right_a += in_a ? 1 : 0;
    result.only_a += in_a && !in_b ? 1 : 0;
    result.only_b += in_b && !in_a ? 1 : 0;
  }
  const auto n = static_cast<double>(a.size());
  const auto lost = static_cast<double>(result.only_a), won = static_cast<double>(result.only_b);
  result.value_a = static_cast<double>(right_a) / n;
  result.difference = (won - lost) / n;
  result.value_b = result.value_a + result.difference;
  result.standard_error = n > 1 ? std::sqrt((won + lost - (won - lost) * (won - lost) / n) / n / (n - 1)) : 0.0;
  result.p_value = mcnemar_p(result.only_a, result.only_b);
}

TaskComparison compare_task(const std::string& name, const std::map<int64_t, Item>& a,
                            const std::map<int64_t, Item>& b) {
  const bool same = std::ranges::equal(a, b, [](const auto& left, const auto& right) {
    return left.first == right.first && left.second.row == right.second.row && left.second.gold == right.second.gold &&
           left.second.correct.has_value() == right.second.correct.has_value();
  });
  if (!same) {
    throw usage_error(fmt::format("the two evaluations have other items of {} ({} and {})", name, a.size(), b.size()),
                      "evaluate both with the same data and the same --limit, and texts of documents with the same "
                      "tokenizer and --context");
  }
  TaskComparison result{.task = name, .items = std::ssize(a)};
  if (a.begin()->second.correct) {
    compare_answers(a, b, result);
  } else {
    compare_documents(a, b, result);
  }
  return result;
}

// A suite's mean of centred accuracies; its tasks are those of the same suite, which is what their names begin with.
std::optional<TaskComparison> compare_means(const std::string& name, const Evaluation& a, const Evaluation& b,
                                            std::span<const TaskComparison> tasks) {
  if (!b.report.contains("means") || !b.report.at("means").contains(name)) return std::nullopt;
  TaskComparison result{.task = name};
  result.value_a = a.report.at("means").at(name).at("value").get<double>();
  result.value_b = b.report.at("means").at(name).at("value").get<double>();
  result.difference = result.value_b - result.value_a;
  const auto suite = a.report.at("means").at(name).at("suite").get<std::string>() + "/";
  double variance = 0.0, count = 0.0;
  for (const TaskComparison& task : tasks) {
    if (!task.task.starts_with(suite)) continue;
    const auto& reports = a.report.at("tasks");
    const auto reported = std::ranges::find_if(reports, [&](const auto& json) { return json.at("task") == task.task; });
    if (reported == reports.end()) return std::nullopt;
    variance += std::pow(task.standard_error / (1.0 - reported->at("baseline").get<double>()), 2);
    count += 1.0;
    result.items += task.items;
    result.only_a += task.only_a;
    result.only_b += task.only_b;
  }
  result.standard_error = std::sqrt(variance) / count;
  result.p_value = normal_p(result.difference, result.standard_error);
  return result;
}

}  // namespace

double mcnemar_p(int64_t a, int64_t b) {
  const int64_t n = a + b;
  // Logarithms of binomial coefficients over 2^n.
  double sum = 0.0;
  for (int64_t i = 0; i <= std::min(a, b); ++i) {
    const auto of = [](int64_t x) { return std::lgamma(static_cast<double>(x) + 1.0); };
    sum += std::exp(of(n) - of(i) - of(n - i) - static_cast<double>(n) * std::numbers::ln2);
  }
  return std::min(1.0, 2.0 * sum);
}

EvalComparison compare_evaluations(const fs::path& a_dir, const fs::path& b_dir) {
  const Evaluation a = read_evaluation(a_dir), b = read_evaluation(b_dir);
  EvalComparison comparison;
  for (const std::string& task : a.tasks) {
    if (!b.items.contains(task)) continue;
    comparison.tasks.push_back(compare_task(task, a.items.at(task), b.items.at(task)));
  }
  if (comparison.tasks.empty()) {
    throw usage_error(fmt::format("'{}' and '{}' have no task in common", a_dir.string(), b_dir.string()),
                      "evaluate both on the same --tasks");
  }
  try {
    if (!a.report.contains("means")) return comparison;
    for (const auto& [name, mean] : a.report.at("means").items()) {
      if (auto result = compare_means(name, a, b, comparison.tasks)) comparison.means.push_back(*result);
    }
  } catch (const nlohmann::json::exception& error) {
    throw runtime_error(fmt::format("report.json of '{}' or '{}': {}", a_dir.string(), b_dir.string(), error.what()),
                        "evaluate again, into another folder");
  }
  return comparison;
}

}  // namespace nmoe
