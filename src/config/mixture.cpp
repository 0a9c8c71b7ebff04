#include "config/mixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/entries.h"
#include "config/environment.h"

namespace nmoe {
namespace {

constexpr int64_t kMaxSequence = int64_t{1} << 31;
constexpr size_t kMaxSections = 1000;  // of sources, of stages and of profiles
constexpr std::string_view kTokenCount = "a token count such as 1000000 or \"1.5T\"";

std::vector<std::string> split_key(std::string_view key) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    parts.emplace_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <class Named>
Named& find_or_add(std::vector<Named>& list, const Entry& entry, const std::string& name) {
  const auto found = std::ranges::find(list, name, &Named::name);
  if (found != list.end()) return *found;
  if (list.size() == kMaxSections) {
    throw usage_error(fmt::format("{}: {} is one of more than {} of its kind", entry.place, entry.key, kMaxSections),
                      "join sources, or leave some out");
  }
  list.push_back({});
  list.back().name = name;
  return list.back();
}

class Parser {
 public:
  Parser(std::string_view toml, std::string_view file) : file_(file) {
    for (const Entry& entry : read_entries(toml, file)) read(entry);
  }

  Mixture finish() {
    if (mixture_.sources.empty()) throw missing("there are no sources", "add [sources.NAME] with a path");
    if (mixture_.stages.empty()) throw missing("there are no stages", "add [stages.NAME] with tokens and weights");
    for (const MixtureSource& source : mixture_.sources) {
      if (source.path.empty()) {
        throw missing(fmt::format("[sources.{}] has no path", source.name), "set it to a folder that `n prep` wrote");
      }
    }
    for (MixtureStage& stage : mixture_.stages) finish_stage(stage);
    for (const MixtureProfile& profile : mixture_.profiles) {
      const int given = (profile.tokens > 0) + (profile.tokens_per_active_parameter > 0) + (profile.scale > 0);
      if (given != 1) {
        throw missing(fmt::format("[profiles.{}] has {} of its keys", profile.name, given == 0 ? "none" : "several"),
                      "give one of tokens, tokens_per_active_parameter and scale");
      }
    }
    return std::move(mixture_);
  }

 private:
  // What a stage says of its sources, before all of them are known.
  struct Shares {
    std::string table;                                                  // "weights" or "source_tokens"
    std::vector<std::tuple<std::string, double, std::string>> entries;  // source, share, place
    bool has_tokens = false;
    std::string place;
  };

  Error missing(const std::string& what, const std::string& remedy) const {
    return usage_error(fmt::format("{}: {}", file_, what), remedy);
  }
  static Error bad_value(const Entry& entry, std::string_view allowed) {
    return usage_error(fmt::format("{}: {} = {}, but it must be {}", entry.place, entry.key, entry.written, allowed),
                       fmt::format("correct {}", entry.key));
  }
  static Error unknown(const Entry& entry, const std::string& section, std::vector<std::string> known) {
    const std::string name = entry.key.substr(entry.key.rfind('.') + 1);
    const std::string typo = nearest(name, known);
    return usage_error(
        fmt::format("{}: unknown {} {}", entry.place, entry.is_table ? "section" : "key", entry.key),
        typo.empty() ? fmt::format("{}: {}", section, fmt::join(known, ", ")) : fmt::format("did you mean {}?", typo));
  }

  static std::string text(const Entry& entry) {
    const std::string* value = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
    if (value == nullptr || value->empty()) throw bad_value(entry, "a string that is not empty");
    return expand_environment(*value, fmt::format("{}: {}", entry.place, entry.key));
  }
  static double number(const Entry& entry, bool above_zero) {
    double value = -1.0;
    if (entry.value) {
      if (const auto* whole = std::get_if<int64_t>(&*entry.value)) value = static_cast<double>(*whole);
      if (const auto* real = std::get_if<double>(&*entry.value)) value = *real;
    }
    if (!std::isfinite(value) || value < 0 || (above_zero && value == 0)) {
      throw bad_value(entry, above_zero ? "a number above 0" : "a number of at least 0");
    }
    return value;
  }
  static int64_t token_count(const Entry& entry) {
    std::optional<int64_t> count;
    if (entry.value) {
      if (const auto* whole = std::get_if<int64_t>(&*entry.value)) count = *whole;
      if (const auto* written = std::get_if<std::string>(&*entry.value)) count = try_parse_count(*written);
    }
    if (!count || *count <= 0) throw bad_value(entry, kTokenCount);
    return *count;
  }
  static int64_t sequence_length(const Entry& entry) {
    const int64_t* length = entry.value ? std::get_if<int64_t>(&*entry.value) : nullptr;
    if (length == nullptr || *length < 1 || *length > kMaxSequence) {
      throw bad_value(entry, fmt::format("a whole number from 1 to {}", kMaxSequence));
    }
    return *length;
  }
  // A section's own name: it stands in reports and in metric tags.
  static const std::string& section_name(const Entry& entry, const std::string& name) {
    constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    if (name.empty() || name.find_first_not_of(kCharacters) != std::string::npos) {
      throw usage_error(fmt::format("{}: {}: {} cannot be a name", entry.place, entry.key, name),
                        "use letters, digits, '_' and '-'");
    }
    return name;
  }

  void read(const Entry& entry) {
    const std::vector<std::string> parts = split_key(entry.key);
    const std::string& section = parts[0];
    if (section == "mixture") return read_mixture(entry, parts);
    if (parts.size() >= 2 && section == "sources") return read_source(entry, parts);
    if (parts.size() >= 2 && section == "stages") return read_stage(entry, parts);
    if (parts.size() >= 2 && section == "profiles") return read_profile(entry, parts);
    const std::vector<std::string> sections = {"mixture", "sources", "stages", "profiles"};
    if (std::ranges::find(sections, entry.key) == sections.end()) throw unknown(entry, "sections", sections);
    if (!entry.is_table) throw bad_value(entry, "a section");
  }

  void read_mixture(const Entry& entry, const std::vector<std::string>& parts) {
    if (parts.size() == 1 && entry.is_table) return;
    if (parts.size() != 2 || parts[1] != "temperature") throw unknown(entry, "keys of [mixture]", {"temperature"});
    mixture_.temperature = number(entry, /*above_zero=*/true);
  }

  void read_source(const Entry& entry, const std::vector<std::string>& parts) {
    MixtureSource& source = find_or_add(mixture_.sources, entry, section_name(entry, parts[1]));
    if (parts.size() == 2 && entry.is_table) return;
    if (parts.size() == 3 && parts[2] == "path") {
      source.path = text(entry);
    } else if (parts.size() == 3 && parts[2] == "max_epochs") {
      source.max_epochs = number(entry, /*above_zero=*/false);
    } else {
      throw unknown(entry, "keys of a source", {"path", "max_epochs"});
    }
  }

  void read_stage(const Entry& entry, const std::vector<std::string>& parts) {
    MixtureStage& stage = find_or_add(mixture_.stages, entry, section_name(entry, parts[1]));
    Shares& shares = shares_[stage.name];
    shares.place = entry.place;
    if (parts.size() == 2 && entry.is_table) return;
    const bool lists_sources = parts.size() >= 3 && (parts[2] == "weights" || parts[2] == "source_tokens");
    if (parts.size() == 3 && parts[2] == "tokens") {
      stage.tokens = token_count(entry);
      shares.has_tokens = true;
    } else if (parts.size() == 3 && parts[2] == "seq_len") {
      stage.seq_len = sequence_length(entry);
    } else if (lists_sources && parts.size() == 4) {
      if (!shares.table.empty() && shares.table != parts[2]) {
        throw usage_error(fmt::format("{}: [stages.{}] has both weights and source_tokens", entry.place, stage.name),
                          "keep one of them");
      }
      shares.table = parts[2];
      const double share =
          parts[2] == "weights" ? number(entry, /*above_zero=*/false) : static_cast<double>(token_count(entry));
      shares.entries.emplace_back(parts[3], share, entry.place);
    } else if (lists_sources && parts.size() == 3) {
      throw bad_value(entry, "a table of sources, such as { web = 0.8, code = 0.2 }");
    } else {
      throw unknown(entry, "keys of a stage", {"tokens", "weights", "source_tokens", "seq_len"});
    }
  }

  void read_profile(const Entry& entry, const std::vector<std::string>& parts) {
    MixtureProfile& profile = find_or_add(mixture_.profiles, entry, section_name(entry, parts[1]));
    if (parts.size() == 2 && entry.is_table) return;
    if (parts.size() == 3 && parts[2] == "tokens") {
      profile.tokens = token_count(entry);
    } else if (parts.size() == 3 && parts[2] == "tokens_per_active_parameter") {
      profile.tokens_per_active_parameter = number(entry, /*above_zero=*/true);
    } else if (parts.size() == 3 && parts[2] == "scale") {
      profile.scale = number(entry, /*above_zero=*/true);
    } else {
      throw unknown(entry, "keys of a profile", {"tokens", "tokens_per_active_parameter", "scale"});
    }
  }

  void finish_stage(MixtureStage& stage) const {
    const Shares& shares = shares_.at(stage.name);
    stage.weights.assign(mixture_.sources.size(), 0.0);
    double sum = 0.0;
    for (const auto& [name, share, place] : shares.entries) {
      const auto source = std::ranges::find(mixture_.sources, name, &MixtureSource::name);
      if (source == mixture_.sources.end()) {
        std::vector<std::string> names;
        for (const MixtureSource& known : mixture_.sources) names.push_back(known.name);
        const std::string typo = nearest(name, names);
        throw usage_error(
            fmt::format("{}: [stages.{}] names the source {}, which there is not", place, stage.name, name),
            typo.empty() ? fmt::format("sources: {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", typo));
      }
      stage.weights[static_cast<size_t>(source - mixture_.sources.begin())] = share;
      sum += share;
    }
    if (!(sum > 0)) {
      throw usage_error(fmt::format("{}: [stages.{}] has no source with a weight above 0", shares.place, stage.name),
                        "add weights = { SOURCE = 1.0 }");
    }
    const bool counts = shares.table == "source_tokens";
    if (counts == shares.has_tokens) {
      throw usage_error(counts
                            ? fmt::format("{}: [stages.{}] has both tokens and source_tokens", shares.place, stage.name)
                            : fmt::format("{}: [stages.{}] has no tokens", shares.place, stage.name),
                        counts ? "remove tokens: the budget is the sum of source_tokens"
                               : "add its budget, such as tokens = \"10B\"");
    }
    if (counts && !(sum < 0x1p63)) {
      throw usage_error(
          fmt::format("{}: the source_tokens of [stages.{}] sum to 2^63 or more", shares.place, stage.name),
          "lower them");
    }
    if (counts) stage.tokens = static_cast<int64_t>(sum);
  }

  std::string file_;
  Mixture mixture_;
  std::map<std::string, Shares> shares_;  // by stage
};

}  // namespace

Mixture parse_mixture(std::string_view toml, std::string_view name) { return Parser(toml, name).finish(); }

Mixture load_mixture(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw usage_error(fmt::format("there is no mixture file {}", path.string()), "check data.mixture");
  }
  return parse_mixture(read_file_up_to(path, kMaxSettingsFile), path.string());
}

}  // namespace nmoe
