#include "track/run_query.h"

#include <algorithm>
#include <array>
#include <compare>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace nmoe {
namespace {

RunField text_or_none(const std::string& text) { return text.empty() ? RunField() : RunField(text); }
template <class Number>
RunField number_or_none(const std::optional<Number>& number) {
  return number ? RunField(static_cast<double>(*number)) : RunField();
}

using Getter = RunField (*)(const RunRow&);
constexpr auto kFields = std::to_array<std::pair<std::string_view, Getter>>({
    {"id", [](const RunRow& run) { return RunField(run.id); }},
    {"name", [](const RunRow& run) { return RunField(run.name); }},
    {"experiment", [](const RunRow& run) { return RunField(run.experiment); }},
    {"status", [](const RunRow& run) { return RunField(std::string(run_status_name(run.status))); }},
    {"reason", [](const RunRow& run) { return text_or_none(run.reason); }},
    {"host", [](const RunRow& run) { return RunField(run.host); }},
    {"started", [](const RunRow& run) { return RunField(run.started_at); }},
    {"updated", [](const RunRow& run) { return RunField(run.updated_at); }},
    {"ended", [](const RunRow& run) { return text_or_none(run.ended_at); }},
    {"note", [](const RunRow& run) { return text_or_none(run.note); }},
    {"step", [](const RunRow& run) { return RunField(static_cast<double>(run.step)); }},
    {"tokens", [](const RunRow& run) { return number_or_none(run.tokens); }},
    {"loss", [](const RunRow& run) { return number_or_none(run.smooth_loss); }},
    {"last_loss", [](const RunRow& run) { return number_or_none(run.last_loss); }},
    {"valid", [](const RunRow& run) { return number_or_none(run.valid_loss); }},
    {"bpb", [](const RunRow& run) { return number_or_none(run.valid_bpb); }},
    {"rate", [](const RunRow& run) { return number_or_none(run.tokens_per_s); }},
    {"checkpoint", [](const RunRow& run) { return number_or_none(run.checkpoint); }},
});

Getter getter_of(std::string_view name) {
  const auto* found = std::ranges::find(kFields, name, &decltype(kFields)::value_type::first);
  if (found != kFields.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, getter] : kFields) names.emplace_back(known);
  const std::string near = nearest(name, names);
  throw usage_error(fmt::format("runs have no '{}'", name),
                    near.empty() ? "choose one of " + join_or(names) : fmt::format("did you mean '{}'?", near));
}

// Longest first: "<=" is no "<".
constexpr std::array<std::string_view, 7> kOperators = {"!=", "<=", ">=", "=", "<", ">", "~"};

bool holds(std::string_view op, std::partial_ordering order) {
  if (op == "=") return order == 0;
  if (op == "!=") return order != 0;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

}  // namespace

RunField run_field(const RunRow& run, std::string_view name) { return getter_of(name)(run); }

RunFilter::RunFilter(std::string_view text) {
  const size_t at = text.find_first_of("!=<>~");
  const std::string_view rest = at == std::string_view::npos ? "" : text.substr(at);
  const auto* op = std::ranges::find_if(kOperators, [&](std::string_view known) { return rest.starts_with(known); });
  if (at == 0 || at == std::string_view::npos || op == kOperators.end()) {
    throw usage_error(fmt::format("'{}' is not a condition", text), "write one such as 'loss<2.5' or 'name~quick'");
  }
  field_ = text.substr(0, at);
  op_ = *op;
  word_ = rest.substr(op->size());
  getter_of(field_);
  try {
    size_t used = 0;
    number_ = std::stod(word_, &used);
    if (used != word_.size()) number_.reset();
  } catch (const std::exception&) {
  }
  if (const auto count = try_parse_count(word_); !number_ && count) number_ = static_cast<double>(*count);
}

bool RunFilter::matches(const RunRow& run) const {
  const RunField field = run_field(run, field_);
  if (const auto* number = std::get_if<double>(&field)) {
    if (number_ && op_ != "~") return holds(op_, *number <=> *number_);
    return op_ == "!=";
  }
  if (const auto* text = std::get_if<std::string>(&field)) {
    return op_ == "~" ? text->find(word_) != std::string::npos : holds(op_, *text <=> word_);
  }
  return op_ == "!=";
}

void sort_runs(std::vector<RunRow>& runs, std::string_view by) {
  const bool falling = by.starts_with('-');
  const Getter getter = getter_of(falling ? by.substr(1) : by);
  std::vector<std::pair<RunField, size_t>> keys;
  keys.reserve(runs.size());
  for (const RunRow& run : runs) keys.emplace_back(getter(run), keys.size());
  std::ranges::stable_sort(keys, [&](const auto& a, const auto& b) {
    const bool a_none = a.first.index() == 0, b_none = b.first.index() == 0;
    if (a_none || b_none) return !a_none && b_none;
    return falling ? b.first < a.first : a.first < b.first;
  });
  std::vector<RunRow> sorted;
  sorted.reserve(runs.size());
  for (const auto& [key, index] : keys) sorted.push_back(std::move(runs[index]));
  runs = std::move(sorted);
}

const RunRow& find_run(std::span<const RunRow> runs, const std::string& word) {
  if (const auto same = std::ranges::find(runs, word, &RunRow::id); same != runs.end()) return *same;
  const auto begins = [&](const RunRow& run) { return run.id.starts_with(word); };
  const auto named = std::ranges::find(runs, word, &RunRow::name);  // the newest: they come first
  if (named != runs.end()) return *named;
  const auto count = word.empty() ? 0 : std::ranges::count_if(runs, begins);
  if (count == 1) return *std::ranges::find_if(runs, begins);
  throw usage_error(count == 0 ? fmt::format("there is no run '{}'", word)
                               : fmt::format("'{}' begins the ids of {} runs", word, count),
                    "n runs lists them: give an id, its beginning, or a name");
}

}  // namespace nmoe
