#include "config/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/entries.h"
#include "config/environment.h"
#include "config/schema.h"
#include "config/unknown_key.h"
#include "config/validate.h"

namespace nmoe {
namespace {

Field* find_field(std::vector<Field>& fields, std::string_view key) {
  const auto field = std::ranges::find(fields, key, &Field::key);
  return field == fields.end() ? nullptr : &*field;
}

constexpr size_t kMaxFaults = 20;  // that are told at once

// The key of "section.key=value".
std::string_view key_of_override(std::string_view text) { return trimmed(text.substr(0, text.find('='))); }

// Whether the key is one of those of which one says how long a run is.
bool is_length(std::string_view key) { return key == "train.steps" || key == "train.tokens" || key == "train.epochs"; }

// "section.key=value". The value is TOML; text needs no quotes.
Entry read_override(std::vector<Field>& fields, std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw usage_error(fmt::format("--set {}: there is no value", text), "write --set section.key=value");
  }
  const std::string_view key = key_of_override(text);
  const std::string_view value = trimmed(text.substr(equals + 1));

  const Field* field = find_field(fields, key);
  const bool is_quoted = value.starts_with('"') || value.starts_with('\'');
  std::optional<Entry> entry;
  if (is_quoted || field == nullptr || !field->is_text) entry = read_value(value);
  if (!entry) {
    entry.emplace();
    entry->value = std::string(value);
    entry->written = to_toml(*entry->value);
  }
  entry->key = key;
  entry->place = fmt::format("--set {}", text);
  return *entry;
}

// The most sequences up to the default of train.microbatch_seqs that cut a rank's share of a batch into equal parts;
// where ranks cannot have equal shares, the batch.
int64_t default_microbatch_seqs(int64_t batch_seqs, int64_t ranks) {
  const int64_t share = batch_seqs % ranks == 0 ? batch_seqs / ranks : batch_seqs;
  int64_t seqs = std::min(share, TrainConfig().microbatch_seqs);
  while (share % seqs != 0) --seqs;
  return seqs;
}

// Sets keys of a Config one by one and keeps what is wrong with them, so that all of it can be told at once.
class ConfigReader {
 public:
  ConfigReader() : fields_(describe(config_)) {}
  // [model] begins as `base` has it.
  explicit ConfigReader(const Config& base) : ConfigReader() {
    base_ = base;
    config_.model = base.model;
    config_.model.init = InitConfig();
  }
  ConfigReader(const ConfigReader&) = delete;  // fields_ refers to config_
  ConfigReader& operator=(const ConfigReader&) = delete;

  // Of a key that is set several times, the last value counts, overrides after the file. A key of a group's own goes
  // before what stands for several (optim.lr), wherever either is set. An override with the run's length in one unit
  // takes the place of the file's in another.
  void set_all(std::vector<Entry> entries, std::span<const std::string> overrides) {
    if (std::ranges::any_of(overrides, [](const std::string& text) { return is_length(key_of_override(text)); })) {
      std::erase_if(entries, [](const Entry& entry) { return is_length(entry.key); });
    }
    std::vector<std::string> shorthands;
    for (const Field& field : fields_) {
      if (field.is_shorthand()) shorthands.push_back(field.key);
    }
    for (const bool wanted : {true, false}) {
      const auto is_next = [&](std::string_view key) {
        return (std::ranges::find(shorthands, key) != shorthands.end()) == wanted;
      };
      for (const Entry& entry : entries) {
        if (is_next(entry.key)) keep_faults([&] { set_field(entry); });
      }
      for (const std::string& text : overrides) {
        if (is_next(key_of_override(text))) keep_faults([&] { set_field(read_override(fields_, text)); });
      }
    }
  }
  // As far as it is read, unless something is wrong with it.
  const Config* so_far() const { return faults_.empty() ? &config_ : nullptr; }
  // The whole, once all keys are set. Error (usage) with everything that is wrong; `name` is where it is when no key
  // that is set is to blame.
  Config finish(std::string_view name);

 private:
  void set_field(Entry entry);
  void check_use();
  bool repeats_base(const Field& field);
  std::vector<std::string> hidden_by(const Field& shorthand);
  void check_rules(std::string_view name);
  std::string_view place_of(std::span<const std::string> keys) const;
  bool is_set(std::string_view key) const { return !place_of(std::array{std::string(key)}).empty(); }

  // Finding out what a wrong key was meant to be takes a while: beyond what is told, it is not looked for.
  template <class Action>
  void keep_faults(const Action& action) {
    if (faults_.size() > kMaxFaults) return;
    try {
      action();
    } catch (const Error& error) {
      faults_.push_back(error);
    }
  }

  Config config_;
  std::optional<Config> base_;
  std::vector<Field> fields_;
  std::vector<std::pair<std::string, std::string>> places_;  // of every key that is set
  std::vector<Error> faults_;
};

void ConfigReader::set_field(Entry entry) {
  Field* field = find_field(fields_, entry.key);
  if (field == nullptr) {
    if (entry.is_table && is_section(fields_, entry.key)) return;  // a section without keys
    throw unknown_key(fields_, entry);
  }
  const auto expand = [&](std::string& text) {
    text = expand_environment(text, fmt::format("{}: {}", entry.place, entry.key));
    if (is_utf8(text)) return;
    throw usage_error(fmt::format("{}: {} is not UTF-8: \"{}\"", entry.place, entry.key, text),
                      "configurations are kept as TOML, which is UTF-8: rename it, or make a link with another name");
  };
  if (entry.value) {
    if (auto* text = std::get_if<std::string>(&*entry.value)) expand(*text);
    if (auto* list = std::get_if<std::vector<std::string>>(&*entry.value)) std::ranges::for_each(*list, expand);
    entry.written = to_toml(*entry.value);
  }
  if (entry.value && field->set(*entry.value)) {
    places_.emplace_back(entry.key, entry.place);
    return;
  }
  throw usage_error(
      fmt::format("{}: {} = {}, but it must be {}", entry.place, entry.key, entry.written, field->allowed),
      fmt::format("correct {} ({})", entry.key, field->meaning));
}

// Where the last of these was set; "" where none was.
std::string_view ConfigReader::place_of(std::span<const std::string> keys) const {
  std::string_view place;
  for (const auto& [key, key_place] : places_) {
    if (std::ranges::find(keys, key) != keys.end()) place = key_place;
  }
  return place;
}

// Whether the key says how the weights began that training starts with, and says it truly.
bool ConfigReader::repeats_base(const Field& field) {
  if (!base_ || field.section() != "model.init") return false;
  std::vector<Field> fields = describe(*base_);
  return find_field(fields, field.key)->get() == field.get();
}

// Of the keys that a shorthand stands for, those with an effect, if each has a value of its own: then it has none.
std::vector<std::string> ConfigReader::hidden_by(const Field& shorthand) {
  std::vector<std::string> keys = shorthand.stands_for;
  std::erase_if(keys, [this](const std::string& key) { return !find_field(fields_, key)->used(); });
  return std::ranges::all_of(keys, [this](const std::string& key) { return is_set(key); }) ? keys
                                                                                           : std::vector<std::string>();
}

void ConfigReader::check_use() {
  fields_ = describe(config_);  // which keys have an effect is known only now
  std::vector<std::string_view> told;
  for (const auto& [key, first_place] : places_) {
    if (std::ranges::find(told, key) != told.end()) continue;
    told.push_back(key);
    const Field* field = find_field(fields_, key);
    const std::string_view place = place_of(std::array{key});
    if (!field->used() && !repeats_base(*field)) {
      faults_.push_back(usage_error(fmt::format("{}: {} has no effect because it needs {}", place, key, field->lacks),
                                    fmt::format("remove it, or set {}", field->lacks)));
    }
    if (const std::vector<std::string> own = hidden_by(*field); !own.empty()) {
      faults_.push_back(usage_error(
          fmt::format("{}: {} has no effect because every key that it stands for is set by itself", place, key),
          fmt::format("remove it, or set those keys: {}", fmt::join(own, ", "))));
    }
  }
}

void ConfigReader::check_rules(std::string_view name) {
  const bool all_set = faults_.empty();
  for (const Issue& issue : find_issues(config_)) {
    // A key that could not be set has its default, and may be why: then only what was set says something.
    if (!all_set && !std::ranges::all_of(issue.keys, [this](const std::string& key) { return is_set(key); })) continue;
    const std::string_view place = place_of(issue.keys);
    faults_.push_back(usage_error(fmt::format("{}: {}", place.empty() ? name : place, issue.what), issue.remedy));
  }
}

Config ConfigReader::finish(std::string_view name) {
  if (!is_set("train.microbatch_seqs")) {
    const int64_t shards = config_.parallel.logical_shards, batch = config_.train.batch_seqs;
    config_.train.microbatch_seqs =
        shards > 0 && batch % shards == 0 ? batch / shards : default_microbatch_seqs(batch, config_.parallel.ranks);
  }
  // With a key that is not known, or has another value than was wanted, others may seem to have no effect.
  if (faults_.empty()) check_use();
  check_rules(name);
  if (faults_.empty()) return config_;
  if (faults_.size() == 1) throw faults_.front();
  const bool has_more = faults_.size() > kMaxFaults;
  if (has_more) faults_.erase(faults_.begin() + kMaxFaults, faults_.end());
  std::string what = fmt::format("{}{} things are wrong with the configuration{}:", has_more ? "more than " : "",
                                 faults_.size(), has_more ? "; the first of them" : "");
  for (const Error& fault : faults_) what += fmt::format("\n  {}\n    -> {}", fault.what(), fault.remedy());
  throw usage_error(what, "do what stands behind each arrow");
}

}  // namespace

Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides,
                   const ModelSource& model_source) {
  if (!std::filesystem::exists(path)) {
    throw usage_error(fmt::format("there is no configuration file {}", path.string()), "check the path");
  }
  return parse_config(read_file_up_to(path, kMaxSettingsFile), path.string(), overrides, model_source);
}

Config parse_config(std::string_view toml, std::string_view name, std::span<const std::string> overrides,
                    const ModelSource& model_source) {
  const std::vector<Entry> entries = read_entries(toml, name);
  ConfigReader reader;
  reader.set_all(entries, overrides);
  const Config* so_far = reader.so_far();
  if (!model_source || so_far == nullptr || so_far->model.init.from.empty()) return reader.finish(name);

  const ModelText base = model_source(*so_far);
  ConfigReader with_base(parse_config(base.toml, base.name));
  with_base.set_all(entries, overrides);
  return with_base.finish(name);
}

}  // namespace nmoe
