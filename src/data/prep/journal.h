// What is needed to continue an interrupted preparation: OUT/.prep/journal.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/prep/report.h"
#include "data/shards/manifest.h"

namespace nmoe {

// Names and values of everything that determines the output; "inputs" stands for the
// files' names, sizes and modification times.
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
  // Records up to `record` of input file `file`, and all earlier files, have been processed.
  int64_t file = 0;
  int64_t record = 0;
  int64_t input_bytes = 0;  // of the files' sizes, up to there
  int64_t records = 0;      // that have been read
  std::map<std::string, DropCount> dropped;
  ByReplyCount by_reply;
  std::vector<BadRecord> bad;
  // Sizes of the files beside the journal.
  uint64_t dropped_file_bytes = 0;
  uint64_t digest_file_bytes = 0;
  uint64_t signature_file_bytes = 0;
  DatasetManifest train;
  std::optional<DatasetManifest> valid;
};

void write_journal(const std::filesystem::path& path, const PrepSettings& settings, const PrepState& state);

// Nothing if there is no journal, or if it has other settings and `force` is set. Error (usage), naming the setting, if
// it has others without `force`; (runtime) if it is damaged.
std::optional<PrepState> read_journal(const std::filesystem::path& path, const PrepSettings& settings, bool force);

}  // namespace nmoe
