#include "eval/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/entries.h"
#include "eval/builtin_tasks.h"
#include "sandbox/code_task.h"

namespace nmoe {
namespace {

constexpr std::string_view kSection = "tasks.";
constexpr int64_t kMostShots = 1000;
constexpr int64_t kMostAnswerTokens = 1 << 20;
constexpr int64_t kMostSamples = 1000;

struct KindName {
  TaskKind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {{TaskKind::kMultipleChoice, "multiple_choice"},
                               {TaskKind::kSchema, "schema"},
                               {TaskKind::kLanguageModeling, "language_modeling"},
                               {TaskKind::kText, "text"},
                               {TaskKind::kGeneration, "generation"}};

struct MetricName {
  AnswerMetric metric;
  std::string_view name;
};
constexpr MetricName kMetrics[] = {
    {AnswerMetric::kStrict, "strict"}, {AnswerMetric::kFlexible, "flexible"}, {AnswerMetric::kCode, "code"}};

class SuiteParser {
 public:
  SuiteParser(std::string_view toml, std::string_view file) {
    suite_.name = fs::path(file).stem().string();
    for (const Entry& entry : read_entries(toml, file)) read(entry);
    if (suite_.tasks.empty()) {
      throw usage_error(fmt::format("{}: there are no tasks", file), "add [tasks.NAME] with file and type");
    }
    for (Task& task : suite_.tasks) finish(task, file);
  }
  TaskSuite take() { return std::move(suite_); }

 private:
  static Error bad_value(const Entry& entry, std::string_view allowed) {
    return usage_error(fmt::format("{}: {} = {}, but it must be {}", entry.place, entry.key, entry.written, allowed),
                       fmt::format("correct {}", entry.key));
  }
  static std::string text(const Entry& entry) {
    const auto* value = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
    if (value == nullptr) throw bad_value(entry, "a string");
    return *value;
  }
  static bool flag(const Entry& entry) {
    const auto* value = entry.value ? std::get_if<bool>(&*entry.value) : nullptr;
    if (value == nullptr) throw bad_value(entry, "true or false");
    return *value;
  }
  static double number(const Entry& entry) {  // -1: none
    if (entry.value) {
      if (const auto* whole = std::get_if<int64_t>(&*entry.value)) return static_cast<double>(*whole);
      if (const auto* real = std::get_if<double>(&*entry.value)) return *real;
    }
    return -1.0;
  }
  static double number(const Entry& entry, double most) {
    const double value = number(entry);
    if (!(value >= 0.0 && value <= most)) throw bad_value(entry, fmt::format("a number from 0 to {}", most));
    return value;
  }
  static double share(const Entry& entry) {
    const double value = number(entry);
    if (!(value >= 0.0 && value < 100.0)) throw bad_value(entry, "a number from 0 to below 100, in per cent");
    return value / 100.0;
  }
  static int64_t whole(const Entry& entry, int64_t least, int64_t most) {
    const auto* value = entry.value ? std::get_if<int64_t>(&*entry.value) : nullptr;
    if (value == nullptr || *value < least || *value > most) {
      throw bad_value(entry, fmt::format("a whole number from {} to {}", least, most));
    }
    return *value;
  }
  template <class Named>
  static const Named& one_of(const Entry& entry, std::span<const Named> all) {
    const std::string name = text(entry);
    const auto found = std::ranges::find(all, name, &Named::name);
    if (found == all.end()) {
      std::vector<std::string> names;
      for (const Named& one : all) names.push_back(fmt::format("\"{}\"", one.name));
      throw bad_value(entry, join_or(names));
    }
    return *found;
  }

  void read(const Entry& entry) {
    if (entry.key == "mean") {
      suite_.mean = text(entry);
      return;
    }
    const size_t dot = entry.key.find('.', kSection.size());
    if (!entry.key.starts_with(kSection) || dot == std::string::npos) {
      throw usage_error(fmt::format("{}: unknown key {}", entry.place, entry.key),
                        "a suite has mean, and sections [tasks.NAME]");
    }
    const std::string name = entry.key.substr(kSection.size(), dot - kSection.size());
    if (suite_.tasks.empty() || suite_.tasks.back().name != name) {
      suite_.tasks.push_back({.name = name});
      given_.emplace_back();
    }
    read(entry, entry.key.substr(dot + 1), suite_.tasks.back());
    given_.back().insert(entry.key.substr(dot + 1));
  }

  static void read(const Entry& entry, const std::string& key, Task& task) {
    struct ScoreName {
      ChoiceScore score;
      std::string_view name;
    };
    static constexpr ScoreName kScores[] = {
        {ChoiceScore::kToken, "token"}, {ChoiceScore::kSum, "sum"}, {ChoiceScore::kCharacter, "character"}};
    const std::map<std::string, std::function<void()>> keys = {
        {"type", [&] { task.kind = one_of(entry, std::span<const KindName>(kKinds)).kind; }},
        {"file", [&] { task.file = text(entry); }},
        {"prompt", [&] { task.prompt = text(entry); }},
        {"answer", [&] { task.answer = text(entry); }},
        {"choices", [&] { task.choices = text(entry); }},
        {"letters", [&] { task.letters = flag(entry); }},
        {"gold", [&] { task.gold = text(entry); }},
        {"delimiter", [&] { task.delimiter = text(entry); }},
        {"shots", [&] { task.shots = whole(entry, 0, kMostShots); }},
        {"shots_file", [&] { task.shots_file = text(entry); }},
        {"group", [&] { task.group = text(entry); }},
        {"header", [&] { task.header = text(entry); }},
        {"score", [&] { task.score = one_of(entry, std::span<const ScoreName>(kScores)).score; }},
        {"baseline", [&] { task.baseline = share(entry); }},
        {"baseline_v2", [&] { task.baseline_v2 = share(entry); }},
        {"metric", [&] { task.generation.metric = one_of(entry, std::span<const MetricName>(kMetrics)).metric; }},
        {"max_tokens", [&] { task.generation.max_tokens = whole(entry, 1, kMostAnswerTokens); }},
        {"stop", [&] { task.generation.stop = text(entry); }},
        {"samples", [&] { task.generation.samples = whole(entry, 1, kMostSamples); }},
        {"temperature", [&] { task.generation.temperature = number(entry, /*most=*/100.0); }},
        {"top_p", [&] { task.generation.top_p = number(entry, /*most=*/1.0); }}};
    const auto known = keys.find(key);
    if (known == keys.end()) {
      std::vector<std::string> names;
      for (const auto& [name, read] : keys) names.push_back(name);
      const std::string typo = nearest(key, names);
      throw usage_error(
          fmt::format("{}: unknown key {}", entry.place, entry.key),
          typo.empty() ? fmt::format("a task has {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", typo));
    }
    known->second();
  }

  // Defaults that depend on the type, and keys that would be ignored.
  void finish(Task& task, std::string_view file) {
    const std::set<std::string>& given = given_[static_cast<size_t>(&task - suite_.tasks.data())];
    const auto fail = [&](const std::string& what, const std::string& remedy) {
      throw usage_error(fmt::format("{}: [tasks.{}] {}", file, task.name, what), remedy);
    };
    for (const char* needed : {"type", "file"}) {
      if (!given.contains(needed)) fail(fmt::format("has no {}", needed), fmt::format("add {}", needed));
    }
    std::set<std::string> unused;
    switch (task.kind) {
      case TaskKind::kMultipleChoice:
        if (task.prompt.empty()) task.prompt = "{query}";
        if (task.choices.empty()) task.choices = "choices";
        unused = {"answer"};
        break;
      case TaskKind::kSchema:
        if (task.choices.empty()) task.choices = "context_options";
        if (task.answer.empty()) task.answer = "{continuation}";
        unused = {"prompt", "letters"};
        break;
      case TaskKind::kLanguageModeling:
        if (task.prompt.empty()) task.prompt = "{context}";
        if (task.answer.empty()) task.answer = "{continuation}";
        unused = {"choices", "letters", "gold", "score"};
        break;
      case TaskKind::kText:
        if (task.prompt.empty()) task.prompt = "{text}";
        unused = {"answer", "choices", "letters", "gold", "score", "delimiter", "shots", "header", "baseline"};
        break;
      case TaskKind::kGeneration: {
        const bool is_code = task.generation.metric == AnswerMetric::kCode;
        if (task.prompt.empty()) task.prompt = is_code ? "{prompt}" : "{question}";
        if (task.answer.empty()) task.answer = is_code ? "{canonical_solution}" : "{answer}";
        unused = {"choices", "letters", "gold", "score"};
        if (is_code) unused.insert("stop");
        if (task.shots == 0 && is_code) unused.insert({"answer", "delimiter"});
        if (task.generation.temperature == 0.0) unused.insert({"samples", "top_p"});
        break;
      }
    }
    if (!task.is_generated()) unused.insert({"metric", "max_tokens", "stop", "samples", "temperature", "top_p"});
    if (task.kind == TaskKind::kText && (task.prompt.size() < 3 || task.prompt.find('{') != 0 ||
                                         task.prompt.find_first_of("{}:", 1) != task.prompt.size() - 1)) {
      fail("has a prompt that is not one field", "write prompt = \"{FIELD}\", the field of a document's text");
    }
    if (task.shots == 0) unused.insert("shots_file");
    if (!given.contains("baseline")) unused.insert("baseline_v2");
    for (const std::string& key : unused) {
      if (given.contains(key)) fail(fmt::format("has {}, which has no effect in it", key), "leave it out");
    }
    if (!given.contains("baseline_v2")) task.baseline_v2 = task.baseline;
  }

  TaskSuite suite_;
  std::vector<std::set<std::string>> given_;  // keys of each task
};

}  // namespace

std::string_view choice_score_name(ChoiceScore score) {
  switch (score) {
    case ChoiceScore::kToken:
      return "token";
    case ChoiceScore::kSum:
      return "sum";
    case ChoiceScore::kCharacter:
      return "character";
  }
  NMOE_CHECK(false, "choice score {}", static_cast<int>(score));
}

std::string_view answer_metric_name(AnswerMetric metric) {
  return std::ranges::find(kMetrics, metric, &MetricName::metric)->name;
}

std::vector<std::string> GenerationSpec::stops() const {
  if (metric == AnswerMetric::kCode) return {kCodeStops.begin(), kCodeStops.end()};
  return stop.empty() ? std::vector<std::string>{} : std::vector{stop};
}

std::vector<int64_t> pass_counts(const GenerationSpec& spec) {
  std::vector<int64_t> counts = {1, 10, 100};
  std::erase_if(counts, [&](int64_t k) { return k > spec.samples; });
  return counts;
}

TaskSuite parse_task_suite(std::string_view toml, std::string_view file) { return SuiteParser(toml, file).take(); }

std::vector<std::string> task_suite_names() {
  std::vector<std::string> names;
  for (const BuiltinTasks& builtin : builtin_tasks()) names.emplace_back(builtin.name);
  return names;
}

namespace {

// A suite, or tasks, such as "core/arc_easy", that were probably meant by `what`: of several suites with such a task,
// all.
std::vector<std::string> probable_tasks(const std::string& what) {
  std::vector<std::string> whole = task_suite_names(), last = whole;  // the same names in full, and without the suite
  const size_t num_suites = whole.size();
  for (const BuiltinTasks& builtin : builtin_tasks()) {
    for (const Task& task : parse_task_suite(builtin.toml, fmt::format("{}.toml", builtin.name)).tasks) {
      last.push_back(task.name);
      whole.push_back(fmt::format("{}/{}", builtin.name, task.name));
    }
  }
  std::string plain = what;
  for (char& c : plain) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<std::string> probable;
  for (const std::vector<std::string>* names : {&last, &whole}) {
    const std::string near = nearest(plain, *names);
    for (size_t i = 0; i < names->size() && !near.empty(); ++i) {
      if ((*names)[i] == near) probable.push_back(whole[i]);
      if (i + 1 == num_suites && !probable.empty()) return probable;
    }
    if (!probable.empty()) break;
  }
  return probable;
}

}  // namespace

TaskSuite find_task_suite(const std::string& what) {
  if (what.ends_with(".toml")) return parse_task_suite(read_file_up_to(what, kMaxSettingsFile), what);
  const size_t slash = what.find('/');
  const std::string name = what.substr(0, slash);
  const auto builtin = std::ranges::find(builtin_tasks(), name, &BuiltinTasks::name);
  if (builtin == builtin_tasks().end()) {
    const std::vector<std::string> probable = probable_tasks(what);
    throw usage_error(fmt::format("there are no tasks \"{}\"", what),
                      probable.empty() ? fmt::format("name {}, one task as core/piqa, or a file of tasks (.toml)",
                                                     join_or(task_suite_names()))
                                       : fmt::format("did you mean {}?", join_or(probable)));
  }
  TaskSuite suite = parse_task_suite(builtin->toml, fmt::format("{}.toml", name));
  if (slash == std::string::npos) return suite;
  const std::string wanted = what.substr(slash + 1);
  std::vector<std::string> names;
  for (const Task& task : suite.tasks) names.push_back(task.name);
  std::erase_if(suite.tasks, [&](const Task& task) { return task.name != wanted; });
  if (suite.tasks.empty()) {
    throw usage_error(fmt::format("\"{}\" has no task \"{}\"", name, wanted),
                      fmt::format("it has {}", fmt::join(names, ", ")));
  }
  suite.mean.clear();
  return suite;
}

std::vector<TaskSuite> find_task_suites(std::string_view list) {
  std::vector<TaskSuite> suites;
  for (size_t begin = 0, end = 0; begin <= list.size(); begin = end + 1) {
    end = std::min(list.find(',', begin), list.size());
    suites.push_back(find_task_suite(std::string(list.substr(begin, end - begin))));
  }
  return suites;
}

void check_limit(std::span<const TaskSuite> suites, int64_t limit, std::string_view what) {
  const Task* most = nullptr;
  std::string name;
  for (const TaskSuite& suite : suites) {
    for (const Task& task : suite.tasks) {
      if (!task.shots_file.empty() || task.shots <= (most == nullptr ? 0 : most->shots)) continue;
      most = &task;
      name = fmt::format("{}/{}", suite.name, task.name);
    }
  }
  if (limit == 0 || most == nullptr || limit > most->shots) return;
  throw usage_error(fmt::format("{} {}: too few items for task {}, which puts {} others in front of each as examples",
                                what, limit, name, most->shots),
                    fmt::format("raise it to at least {}, or to 0, for all items", most->shots + 1));
}

}  // namespace nmoe
