// What an interrupted preparation needs to go on: OUT/.prep/journal.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/prep/prep.h"
#include "data/shards/manifest.h"

namespace nmoe {

// Names and values of all that decides what is written: "inputs" stands for the files' names, sizes and times of
// change.
using PrepSettings = std::vector<std::pair<std::string, std::string>>;

struct BadRecord {
  std::string place;
  std::string reason;
};

struct PrepState {
  enum class Phase {
    kWriting,  // documents are read, and written under temporary names
    kClosed,   // all is written
    kPlacing,  // the old dataset, if there was one, is gone; files get their names
  };
  Phase phase = Phase::kWriting;
  // Records up to `record` of input file `file`, and all files before it, are done.
  int64_t file = 0;
  int64_t record = 0;
  int64_t input_bytes = 0;  // of the files' sizes, up to there
  int64_t records = 0;      // that have been read
  std::map<std::string, DropCount> dropped;
  std::vector<BadRecord> bad;
  // Sizes of the files beside the journal.
  uint64_t dropped_file_bytes = 0;
  uint64_t digest_file_bytes = 0;
  uint64_t signature_file_bytes = 0;
  DatasetManifest train;
  std::optional<DatasetManifest> valid;
};

void write_journal(const std::filesystem::path& path, const PrepSettings& settings, const PrepState& state);

// Nothing when there is no journal, or with `force` when it is of other settings. Error (usage), naming the setting,
// when it is of others; (runtime) when it cannot be understood.
std::optional<PrepState> read_journal(const std::filesystem::path& path, const PrepSettings& settings, bool force);

}  // namespace nmoe
