#include "eval/task_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "data/prep/records.h"
#include "data/tokenizer/unicode.h"
#include "eval/answer_number.h"
#include "eval/python_random.h"

namespace nmoe {
namespace {

constexpr uint64_t kOrderSeed = 1337;
constexpr uint64_t kShotSeed = 1234;
constexpr int64_t kMostLetters = 26;

// Unicode's white space and the separators U+001C to U+001F.
bool is_python_space(char32_t c) { return (class_of(c) & kSpace) != 0 || (c >= 0x1C && c <= 0x1F); }

// A row of JSON whose fields are asked for by a task; errors name its place.
class Fields {
 public:
  Fields(const nlohmann::json& row, std::string place) : row_(row), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  Error error(const std::string& what) const {
    std::vector<std::string> names;
    for (const auto& [name, value] : row_.items()) names.push_back(name);
    return runtime_error(
        fmt::format("{}: {}", place_, what),
        fmt::format("the row has {}: name the right fields in the task, or mend the row", fmt::join(names, ", ")));
  }
  const nlohmann::json& at(const std::string& field) const {
    const auto found = row_.find(field);
    if (found == row_.end()) throw error(fmt::format("no field \"{}\"", field));
    return *found;
  }
  const std::string& text(const std::string& field) const {
    const nlohmann::json& value = at(field);
    if (!value.is_string()) throw error(fmt::format("\"{}\" is not a string", field));
    return value.get_ref<const std::string&>();
  }
  std::vector<std::string> list(const std::string& field) const {
    const nlohmann::json& value = at(field);
    const bool strings = value.is_array() && std::ranges::all_of(value, [](const auto& v) { return v.is_string(); });
    if (!strings || value.empty()) throw error(fmt::format("\"{}\" is not a list of strings", field));
    return value.get<std::vector<std::string>>();
  }
  int64_t index(const std::string& field, int64_t size) const {
    const nlohmann::json& value = at(field);
    if (!value.is_number_integer()) throw error(fmt::format("\"{}\" is not a whole number", field));
    const auto index = value.get<int64_t>();
    if (index < 0 || index >= size) throw error(fmt::format("\"{}\" is {}, with {} choices", field, index, size));
    return index;
  }

 private:
  const nlohmann::json& row_;
  std::string place_;
};

std::string letter(size_t i) { return std::string(1, static_cast<char>('A' + i)); }

std::string expand_field(const std::string& name, const Fields& fields) {
  const size_t colon = name.find(':');
  const std::string field = name.substr(0, colon), form = colon == std::string::npos ? "" : name.substr(colon + 1);
  if (form.empty()) return fields.text(field);
  if (form == "spaces") {
    std::string text = fields.text(field);
    std::ranges::replace(text, '_', ' ');
    return text;
  }
  if (form == "lettered") {
    const std::vector<std::string> entries = fields.list(field);
    if (std::ssize(entries) > kMostLetters) throw fields.error(fmt::format("\"{}\" has more than 26 entries", field));
    std::string text;
    for (size_t i = 0; i < entries.size(); ++i)
      text += fmt::format("{}{}. {}", i > 0 ? "\n" : "", letter(i), entries[i]);
    return text;
  }
  throw fields.error(fmt::format("{{{}}} asks for a form that there is not: spaces, lettered", name));
}

// eval/task.h says what a template is.
std::string expand(const std::string& form, const Fields& fields) {
  std::string text;
  for (size_t i = 0; i < form.size(); ++i) {
    const char c = form[i];
    if ((c == '{' || c == '}') && i + 1 < form.size() && form[i + 1] == c) {
      text += c;
      ++i;
    } else if (c == '{') {
      const size_t end = form.find('}', i);
      if (end == std::string::npos) throw fields.error(fmt::format("\"{}\" has a {{ without its }}", form));
      text += expand_field(form.substr(i + 1, end - i - 1), fields);
      i = end;
    } else {
      text += c;
    }
  }
  return text;
}

// `record`: the row itself.
TaskRow make_row(const Task& task, const Fields& fields, std::string_view record) {
  TaskRow row;
  switch (task.kind) {
    case TaskKind::kMultipleChoice:
      row.prompts = {expand(task.prompt, fields)};
      row.answers = fields.list(task.choices);
      if (task.letters) {
        if (std::ssize(row.answers) > kMostLetters) throw fields.error("more than 26 choices have no letters");
        for (size_t i = 0; i < row.answers.size(); ++i) row.answers[i] = letter(i);
      }
      break;
    case TaskKind::kSchema:
      row.prompts = fields.list(task.choices);
      row.answers = {expand(task.answer, fields)};
      break;
    case TaskKind::kLanguageModeling:
      row.prompts = {std::string(strip(expand(task.prompt, fields)))};
      row.answers = {expand(task.answer, fields)};
      break;
    case TaskKind::kGeneration:
      row.prompts = {expand(task.prompt, fields)};
      row.answers = {expand(task.answer, fields)};
      if (task.generation.metric == AnswerMetric::kCode) {
        row.code = parse_code_task(record, fields.place());
      } else if (const auto number = expected_number(row.answer(0))) {
        row.expected = *number;
      } else {
        throw fields.error(fmt::format("the answer \"{}\" has no number", row.answer(0)));
      }
      break;
    case TaskKind::kText:
      NMOE_CHECK(false, "documents are no rows");
  }
  if (task.chooses()) {
    if (row.num_options() < 2) throw fields.error(fmt::format("\"{}\" has one entry", task.choices));
    row.gold = fields.index(task.gold, row.num_options());
  }
  row.header = expand(task.header, fields);
  if (!task.group.empty()) row.group = fields.text(task.group);
  return row;
}

// The text of a file's rows goes into `hash`, too.
std::vector<TaskRow> read_rows(const Task& task, const fs::path& path, Sha256& hash) {
  const RecordOptions options{.whole = true};
  const auto reader = open_records(path, options);
  std::vector<TaskRow> rows;
  for (Record record; reader->next(record);) {
    if (!record.fault.empty()) throw bad_record_error(path, options, record, /*allowed=*/0);
    const std::string place = place_of(path, options, record.number);
    const auto json = try_parse_json<nlohmann::json>(record.text);
    if (!json.is_object()) throw runtime_error(fmt::format("{}: not a JSON object", place), "mend the row");
    rows.push_back(make_row(task, Fields(json, place), record.text));
    hash.update(record.text);
    hash.update("\n");
  }
  return rows;
}

}  // namespace

std::string_view strip(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const Character c = decode_utf8(text.data() + begin);
    if (!is_python_space(c.code_point)) break;
    begin += c.size;
  }
  size_t end = text.size();
  while (end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_python_space(decode_utf8(text.data() + last).code_point)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

fs::path find_data_file(const fs::path& dir, const std::string& file) {
  const fs::path path = dir / file;
  for (const fs::path& candidate : {path, fs::path(path.string() + ".zst"), fs::path(path.string() + ".gz"),
                                    fs::path(path).replace_extension(".parquet")}) {
    if (fs::is_regular_file(candidate)) return candidate;
  }
  throw usage_error(
      fmt::format("there is no '{}' (nor .zst, .gz, .parquet) in '{}'", file, dir.string()),
      "name the folder of evaluation data with --data; scripts/eval_data.sh says where each file is from");
}

TaskData::TaskData(Task task, const fs::path& dir, int64_t limit) : task_(std::move(task)) {
  Sha256 hash;
  for (const std::string& part :
       {task_.prompt, task_.answer, task_.choices, task_.gold, task_.delimiter, task_.group, task_.header,
        fmt::format("{} {} {}", static_cast<int>(task_.kind), task_.letters, task_.shots)}) {
    hash.update(fmt::format("{} {}\n", part.size(), part));
  }
  if (task_.is_generated()) {
    const GenerationSpec& spec = task_.generation;
    hash.update(fmt::format("{} {} {} {} {} {}\n", answer_metric_name(spec.metric), spec.max_tokens, spec.samples,
                            spec.temperature, spec.top_p, fmt::join(spec.stops(), "\n")));
  }
  const fs::path path = find_data_file(dir, task_.file);
  rows_ = read_rows(task_, path, hash);
  if (rows_.empty()) {
    throw runtime_error(fmt::format("task {}: '{}' has no rows", task_.name, path.string()), "bring the whole file");
  }
  order_.resize(rows_.size());
  std::iota(order_.begin(), order_.end(), 0);
  PythonRandom(kOrderSeed).shuffle(order_);
  if (limit > 0 && limit < std::ssize(order_)) order_.resize(static_cast<size_t>(limit));
  hash.update(fmt::format("{} items\n", order_.size()));

  if (task_.shots_file.empty()) {
    if (size() - 1 < task_.shots) {
      throw usage_error(fmt::format("task {}: {} items, too few for {} shots", task_.name, size(), task_.shots),
                        "evaluate more items, or lower the task's shots");
    }
  } else {
    const fs::path shots_path = find_data_file(dir, task_.shots_file);
    shot_rows_ = read_rows(task_, shots_path, hash);
    for (int64_t row = 0; row < std::ssize(shot_rows_); ++row) {
      std::vector<int64_t>& shots = group_shots_[shot_rows_[static_cast<size_t>(row)].group];
      if (std::ssize(shots) < task_.shots) shots.push_back(row);
    }
    for (int64_t i = 0; i < size(); ++i) {
      const int64_t have = std::ssize(group_shots_[item(i).group]);
      if (have == task_.shots) continue;
      throw usage_error(
          fmt::format("task {}: '{}' has {} examples{}, too few for {} shots", task_.name, shots_path.string(), have,
                      task_.group.empty() ? "" : fmt::format(" of \"{}\"", item(i).group), task_.shots),
          "bring the whole file, or lower the task's shots");
    }
  }
  hash_ = hash.finish();
}

std::vector<int64_t> TaskData::shots_of(int64_t i) const {
  if (!task_.shots_file.empty()) return group_shots_.at(item(i).group);
  std::vector<int64_t> shots = PythonRandom(kShotSeed + static_cast<uint64_t>(i)).sample(size() - 1, task_.shots);
  for (int64_t& shot : shots) shot += shot >= i ? 1 : 0;  // the list has all but i
  return shots;
}

std::string TaskData::text_of(const TaskRow& row, int64_t option) const {
  return row.prompt(option) + task_.delimiter + row.answer(option);
}

std::vector<std::string> TaskData::texts_of(int64_t i) const {
  const TaskRow& row = item(i);
  std::string before = row.header;
  if (task_.shots > 0) {
    for (const int64_t shot : shots_of(i)) {
      const TaskRow& example = task_.shots_file.empty() ? item(shot) : shot_rows_[static_cast<size_t>(shot)];
      before += text_of(example, example.gold) + "\n\n";
    }
  }
  if (task_.is_generated()) return {before + row.prompt(0)};
  if (task_.kind == TaskKind::kLanguageModeling) {
    const std::string without = before + row.prompt(0) + task_.delimiter;
    return {std::string(strip(without)), without + row.answer(0)};
  }
  std::vector<std::string> texts;
  for (int64_t option = 0; option < row.num_options(); ++option) texts.push_back(before + text_of(row, option));
  return texts;
}

}  // namespace nmoe
