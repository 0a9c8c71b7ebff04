#include "eval/journal.h"

#include "base/error.h"
#include "base/json.h"

namespace nmoe {
namespace {

constexpr const char* kName = "journal.jsonl";
constexpr const char* kAnotherFolder = "give --out another folder, or remove this one to begin anew";

fs::path made(const fs::path& dir) {
  make_directories(dir);
  return dir;
}

nlohmann::json to_json(const std::string& task, const ItemResult& result) {
  if (!result.answers.empty()) {
    nlohmann::json answers = nlohmann::json::array();
    for (const WrittenAnswer& answer : result.answers) {
      answers.push_back(
          {{"text", answer.text}, {"tokens", answer.tokens}, {"cut", answer.cut}, {"fault", answer.fault}});
    }
    return {{"task", task},
            {"item", result.item},
            {"answers", std::move(answers)},
            {"length", result.lengths},
            {"cropped", result.cropped}};
  }
  nlohmann::json nats = nlohmann::json::array(), tokens = nats, greedy = nats;
  for (const TextScore& score : result.scores) {
    nats.push_back(score.nats);
    tokens.push_back(score.tokens);
    greedy.push_back(score.greedy);
  }
  return {{"task", task},     {"item", result.item},      {"nats", nats},          {"tokens", tokens},
          {"greedy", greedy}, {"length", result.lengths}, {"bytes", result.bytes}, {"cropped", result.cropped}};
}

// Throws what nlohmann::json does where a member is missing or of another type.
ItemResult from_json(const nlohmann::json& line) {
  ItemResult result{.item = line.at("item").get<int64_t>(),
                    .lengths = line.at("length").get<std::vector<int64_t>>(),
                    .cropped = line.at("cropped").get<int64_t>()};
  if (line.contains("answers")) {
    for (const auto& answer : line.at("answers")) {
      result.answers.push_back({.text = answer.at("text").get<std::string>(),
                                .tokens = answer.at("tokens").get<int64_t>(),
                                .cut = answer.at("cut").get<bool>(),
                                .fault = answer.at("fault").get<std::string>()});
    }
    return result;
  }
  result.bytes = line.at("bytes").get<int64_t>();
  const auto& nats = line.at("nats");
  for (size_t i = 0; i < nats.size(); ++i) {
    result.scores.push_back({.nats = nats.at(i).get<double>(),
                             .tokens = line.at("tokens").at(i).get<int64_t>(),
                             .greedy = line.at("greedy").at(i).get<bool>()});
  }
  return result;
}

}  // namespace

EvalJournal::EvalJournal(const fs::path& dir, const std::string& identity)
    : path_(made(dir) / kName), lock_(dir / ".lock") {
  std::string text = fs::exists(path_) ? read_file(path_) : "";
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  read(text, identity);
  if (text.empty()) {
    text = json_text(nlohmann::json{{"evaluation", identity}}) + "\n";
    write_file_atomically(path_, text);
  }
  file_.emplace(path_, text.size());
}

void EvalJournal::read(const std::string& text, const std::string& identity) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    try {
      const auto json = parse_json<nlohmann::json>(line);
      if (number == 1) {
        const auto was = json.at("evaluation").get<std::string>();
        if (was == identity) continue;
        throw usage_error(
            fmt::format("'{}' is of another evaluation: {}; this one is {}", path_.string(), was, identity),
            kAnotherFolder);
      }
      TaskEntry& task = tasks_[json.at("task").get<std::string>()];
      if (json.contains("hash")) {
        task.hash = json.at("hash").get<std::string>();
      } else {
        const ItemResult result = from_json(json);
        task.results.emplace(result.item, result);
      }
    } catch (const nlohmann::json::exception& error) {
      throw runtime_error(fmt::format("'{}', line {}: {}", path_.string(), number, error.what()), kAnotherFolder);
    } catch (const JsonError& error) {
      throw runtime_error(fmt::format("'{}', line {}: {}", path_.string(), number, error.what()), kAnotherFolder);
    }
  }
}

void EvalJournal::write_line(const std::string& line) {
  const std::string whole = line + "\n";
  file_->write(whole.data(), whole.size());
}

const ItemResults& EvalJournal::begin_task(const std::string& task, const std::string& hash) {
  const std::lock_guard lock(mutex_);
  TaskEntry& entry = tasks_[task];
  if (entry.hash.empty()) {
    entry.hash = hash;
    write_line(json_text(nlohmann::json{{"task", task}, {"hash", hash}}));
  }
  if (entry.hash != hash) {
    throw usage_error(
        fmt::format("'{}' has other items of {}: their data, number or description was another", path_.string(), task),
        kAnotherFolder);
  }
  return entry.results;
}

void EvalJournal::add(const std::string& task, const ItemResult& result) {
  const std::string line = json_text(to_json(task, result));
  const std::lock_guard lock(mutex_);
  write_line(line);
}

}  // namespace nmoe
