// LEADERBOARD.json: what runs that were trained to a target took, and what they are worth (docs/speedrun.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

struct LeaderboardScore {
  std::string name;  // "CORE", "mine/greedy"
  double value = 0.0;
  double standard_error = 0.0;
};

// Losses are means over all learned targets. In entries that do not say so, they are over those that stand for text.
inline constexpr std::string_view kAllTargets = "all learned targets", kTextTargets = "targets that stand for text";

struct LeaderboardEntry {
  std::string run;     // its name
  std::string run_id;  // one entry each
  std::string date;    // when training ended: UTC, ISO 8601
  std::string hardware;
  int64_t ranks = 0;
  std::string precision;
  std::string commit;
  std::string config;  // hash of the configuration (config_fingerprint())
  std::string data;    // hash of corpus and tokenizer
  int64_t parameters = 0;
  double target_loss = 0.0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double train_seconds = 0.0;  // of steps alone: no validation, checkpoint or evaluation
  std::string loss_of;         // which targets target_loss and valid_loss are means of: kAllTargets, or what it was
  double valid_loss = 0.0;     // nats per token
  double bits_per_byte = 0.0;  // of the targets that stand for text
  std::vector<LeaderboardScore> scores;
};

// As JSON, and back: what a file has of a run whose scores are not known yet. Error (runtime) naming `file`.
std::string leaderboard_entry_json(const LeaderboardEntry& entry);
LeaderboardEntry parse_leaderboard_entry(std::string_view json, const std::filesystem::path& file);

// The entries of a file, none where there is no file. Error (runtime) where it is none of ours.
std::vector<LeaderboardEntry> read_leaderboard(const std::filesystem::path& file);
// Adds an entry, or takes the place of the one of the same run; the file is whole at any time. Error (runtime) where it
// cannot be written, or another process does.
void add_to_leaderboard(const std::filesystem::path& file, const LeaderboardEntry& entry);
// A table for each corpus, kind of loss and target, by training time, then steps: only what is in one table can be
// compared.
std::string leaderboard_table(std::vector<LeaderboardEntry> entries);

}  // namespace nmoe
