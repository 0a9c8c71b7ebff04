#include "track/leaderboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const LeaderboardEntry& entry) {
  Json scores = Json::object();
  for (const LeaderboardScore& score : entry.scores) {
    scores[score.name] = {{"value", score.value}, {"standard_error", score.standard_error}};
  }
  return {{"run", entry.run},
          {"run_id", entry.run_id},
          {"date", entry.date},
          {"hardware", entry.hardware},
          {"ranks", entry.ranks},
          {"precision", entry.precision},
          {"commit", entry.commit},
          {"config", entry.config},
          {"data", entry.data},
          {"parameters", entry.parameters},
          {"target_loss", entry.target_loss},
          {"steps", entry.steps},
          {"tokens", entry.tokens},
          {"train_seconds", entry.train_seconds},
          {"loss_of", entry.loss_of},
          {"valid_loss", entry.valid_loss},
          {"bits_per_byte", entry.bits_per_byte},
          {"scores", std::move(scores)}};
}

// Throws what nlohmann::json does where a member is missing or of another type, and JsonError.
LeaderboardEntry from_json(const Json& json) {
  LeaderboardEntry entry{.run = json.at("run").get<std::string>(),
                         .run_id = json.at("run_id").get<std::string>(),
                         .date = json.at("date").get<std::string>(),
                         .hardware = json.at("hardware").get<std::string>(),
                         .ranks = integer_of<int64_t>(json.at("ranks")),
                         .precision = json.at("precision").get<std::string>(),
                         .commit = json.at("commit").get<std::string>(),
                         .config = json.at("config").get<std::string>(),
                         .data = json.at("data").get<std::string>(),
                         .parameters = integer_of<int64_t>(json.at("parameters")),
                         .target_loss = json.at("target_loss").get<double>(),
                         .steps = integer_of<int64_t>(json.at("steps")),
                         .tokens = integer_of<int64_t>(json.at("tokens")),
                         .train_seconds = json.at("train_seconds").get<double>(),
                         .loss_of = json.value("loss_of", std::string(kTextTargets)),
                         .valid_loss = json.at("valid_loss").get<double>(),
                         .bits_per_byte = json.at("bits_per_byte").get<double>(),
                         .scores = {}};
  for (const auto& [name, score] : json.at("scores").items()) {
    entry.scores.push_back({.name = name,
                            .value = score.at("value").get<double>(),
                            .standard_error = score.at("standard_error").get<double>()});
  }
  return entry;
}

template <class Read>
auto reading(const fs::path& file, const Read& read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // nlohmann's and JsonError
    throw runtime_error(fmt::format("'{}' is not as n speedrun writes it: {}", file.string(), error.what()),
                        "mend it, or move it away");
  }
}

}  // namespace

std::string leaderboard_entry_json(const LeaderboardEntry& entry) { return json_text(to_json(entry), 2) + "\n"; }

LeaderboardEntry parse_leaderboard_entry(std::string_view json, const fs::path& file) {
  return reading(file, [&] { return from_json(parse_json<Json>(json)); });
}

std::vector<LeaderboardEntry> read_leaderboard(const fs::path& file) {
  std::vector<LeaderboardEntry> entries;
  if (!fs::exists(file)) return entries;
  const std::string text = read_file(file);
  return reading(file, [&] {
    const Json json = parse_json<Json>(text);
    for (const Json& entry : json.at("entries")) entries.push_back(from_json(entry));
    return entries;
  });
}

void add_to_leaderboard(const fs::path& file, const LeaderboardEntry& entry) {
  const fs::path folder = fs::absolute(file).parent_path();
  make_directories(folder);
  const FileLock lock(folder / fmt::format(".{}.lock", file.filename().string()));
  std::vector<LeaderboardEntry> entries = read_leaderboard(file);
  std::erase_if(entries, [&](const LeaderboardEntry& other) { return other.run_id == entry.run_id; });
  entries.push_back(entry);
  Json list = Json::array();
  for (const LeaderboardEntry& each : entries) list.push_back(to_json(each));
  write_file_atomically(file, json_text(Json{{"entries", std::move(list)}}, 2) + "\n");
}

std::string leaderboard_table(std::vector<LeaderboardEntry> entries) {
  std::ranges::sort(entries, [](const LeaderboardEntry& a, const LeaderboardEntry& b) {
    return std::tie(a.data, a.loss_of, a.target_loss, a.train_seconds, a.steps) <
           std::tie(b.data, b.loss_of, b.target_loss, b.train_seconds, b.steps);
  });
  std::string text;
  const LeaderboardEntry* before = nullptr;
  for (const LeaderboardEntry& entry : entries) {
    if (before == nullptr || std::tie(before->data, before->loss_of, before->target_loss) !=
                                 std::tie(entry.data, entry.loss_of, entry.target_loss)) {
      text += fmt::format("{}to {} nats per token ({}) of the corpus {:.12}\n", before == nullptr ? "" : "\n",
                          entry.target_loss, entry.loss_of, entry.data);
      text += fmt::format("  {:<20}{:>10}{:>9}{:>10}{:>8}{:>8}  {:<30}{:<10}{:<14}{:<14}{:<22}{}\n", "run", "training",
                          "steps", "tokens", "loss", "bits/B", "hardware", "precision", "commit", "config", "date",
                          "scores");
    }
    std::string scores;
    for (const LeaderboardScore& score : entry.scores) {
      scores += fmt::format("{}{} {:.4f} +- {:.4f}", scores.empty() ? "" : ", ", score.name, score.value,
                            score.standard_error);
    }
    const std::string hardware = entry.ranks > 1 ? fmt::format("{} x {}", entry.ranks, entry.hardware) : entry.hardware;
    text += fmt::format("  {:<20}{:>10}{:>9}{:>10}{:>8.4f}{:>8.4f}  {:<30}{:<10}{:<14.12}{:<14.12}{:<22}{}\n",
                        entry.run, human_seconds(entry.train_seconds), entry.steps,
                        human_count(static_cast<double>(entry.tokens)), entry.valid_loss, entry.bits_per_byte, hardware,
                        entry.precision, entry.commit, entry.config, entry.date, scores);
    before = &entry;
  }
  return text;
}

}  // namespace nmoe
