#include "data/prep/records.h"

#include <simdjson.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "data/prep/inputs.h"
#include "data/prep/messages.h"
#include "data/prep/parquet_reader.h"
#include "data/prep/text_reader.h"
#include "data/prep/window.h"

namespace nmoe {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

bool is_blank(std::string_view text) { return text.find_first_not_of(kWhiteSpace) == std::string_view::npos; }

// Lines without their '\n'.
class LineReader {
 public:
  LineReader(const fs::path& path, size_t max_bytes) : window_(path, max_bytes) {}

  // The view is valid until the next call. False at the end, or where the file is damaged: a line that the damage
  // cuts short is not delivered.
  bool next(std::string_view& line) {
    window_.cut(std::exchange(last_, 0));
    for (size_t searched = 0;;) {
      const std::string_view text = window_.view();
      const size_t end = text.find('\n', searched);
      if (end != std::string_view::npos) {
        line = text.substr(0, end);
        last_ = end + 1;
        return true;
      }
      searched = text.size();
      if (window_.extend()) continue;
      // The window may have moved.
      if (searched == 0 || window_.damaged()) return false;
      line = window_.view();
      last_ = searched;
      return true;
    }
  }
  const InputWindow& window() const { return window_; }

 private:
  InputWindow window_;
  size_t last_ = 0;  // length of what next() delivered
};

std::string_view json_type_name(simdjson::dom::element_type type) {
  using simdjson::dom::element_type;
  switch (type) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// Takes the fields out of JSON objects.
class JsonParser {
 public:
  explicit JsonParser(const RecordOptions& options) : options_(options) {}

  // Fills text, prompt and id, or the fault. SIMDJSON_PADDING bytes after `json` may be read.
  void parse(std::string_view json, Record& record) {
    simdjson::dom::element element;
    const auto error = parser_.parse(json.data(), json.size(), /*realloc_if_needed=*/false).get(element);
    if (error == simdjson::NUMBER_ERROR) {
      record.fault = "invalid JSON: something in place of a number, or an integer of more than 64 bits";
      record.remedy = "write longer integers as strings";
      return;
    }
    if (error != simdjson::SUCCESS) {
      record.fault = fmt::format("invalid JSON: {}", simdjson::error_message(error));
      return;
    }
    simdjson::dom::object object;
    if (element.get(object) != simdjson::SUCCESS) {
      record.fault = fmt::format("{}, not a JSON object", json_type_name(element.type()));
      return;
    }
    if (options_.whole) {
      record.text = json;
      return;
    }
    if (!options_.messages_field.empty()) {
      get_messages(object, record);
    } else {
      get_string(object, options_.text_field, record.text, record);
      if (!options_.prompt_field.empty()) get_string(object, options_.prompt_field, record.prompt, record);
    }
    if (!options_.id_field.empty()) get_id(object, record);
  }

 private:
  // Of several members of one name the last one counts, as everywhere else that JSON is read.
  static bool find(const simdjson::dom::object& object, const std::string& field, simdjson::dom::element& value,
                   Record& record) {
    bool found = false;
    for (const auto [key, member] : object) {
      if (key != field) continue;
      value = member;
      found = true;
    }
    if (found) return true;
    if (!record.fault.empty()) return false;
    record.fault = fmt::format("no field \"{}\"", field);
    record.remedy = fields_remedy(object);
    return false;
  }

  static std::string fields_remedy(const simdjson::dom::object& object) {
    constexpr size_t kShown = 12;
    std::vector<std::string> fields;
    for (const auto [key, value] : object) {
      if (fields.size() == kShown) break;
      fields.push_back(fmt::format("\"{}\"", key));
    }
    if (fields.empty()) return "the object is empty";
    return fmt::format("the object has {}{}: see --text-field, --messages-field and the like", join_or(fields),
                       object.size() > kShown ? " and more" : "");
  }

  static void get_string(const simdjson::dom::object& object, const std::string& field, std::string& out,
                         Record& record) {
    simdjson::dom::element value;
    if (!find(object, field, value, record)) return;
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS) {
      out.assign(text);
    } else if (record.fault.empty()) {
      record.fault = fmt::format("\"{}\" is {}, not a string", field, json_type_name(value.type()));
    }
  }

  void get_messages(const simdjson::dom::object& object, Record& record) const {
    simdjson::dom::element value;
    if (!find(object, options_.messages_field, value, record)) return;
    std::string fields;
    for (const auto [key, beside] : object) {
      if (!is_field_beside_messages(key, options_)) continue;
      fields += fmt::format("{}\"{}\":{}", fields.empty() ? "{" : ",", key, simdjson::minify(beside));
    }
    if (!fields.empty()) fields += '}';
    take_messages(simdjson::minify(value), fields, record);
  }

  void get_id(const simdjson::dom::object& object, Record& record) const {
    simdjson::dom::element value;
    if (!find(object, options_.id_field, value, record)) return;
    std::string_view text;
    record.id = value.get(text) == simdjson::SUCCESS ? std::string(text) : simdjson::minify(value);
  }

  RecordOptions options_;
  simdjson::dom::parser parser_;
};

class JsonLinesReader final : public RecordReader {
 public:
  JsonLinesReader(const fs::path& path, const RecordOptions& options, int64_t skip)
      : lines_(path, options.max_bytes), parser_(options) {
    std::string_view line;
    while (number_ < skip && lines_.next(line)) ++number_;
  }

  bool next(Record& record) override {
    std::string_view line;
    while (!ended_ && lines_.next(line)) {
      record = {.number = ++number_};
      if (is_blank(line)) continue;
      parser_.parse(line, record);
      return true;
    }
    if (std::exchange(ended_, true)) return false;
    if (!lines_.window().damaged()) return false;
    record = lines_.window().damaged_record(number_ + 1);
    return true;
  }
  int64_t file_bytes_read() const override { return lines_.window().file_bytes_read(); }

 private:
  LineReader lines_;
  JsonParser parser_;
  int64_t number_ = 0;
  bool ended_ = false;
};

// Looks for the end of the JSON value at the front of a text that grows.
class ValueEnd {
 public:
  // Where it ends, at least 1; npos when it goes on beyond the text.
  size_t find(std::string_view text) {
    for (; place_ < text.size(); ++place_) {
      const char c = text[place_];
      if (escaped_) {
        escaped_ = false;
      } else if (c == '"') {
        in_string_ = !in_string_;
      } else if (in_string_) {
        escaped_ = c == '\\';
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        if (depth_ == 0) break;  // the array's, or a stray one
        if (--depth_ == 0) return place_ + 1;
      } else if (depth_ == 0 && (c == ',' || kWhiteSpace.find(c) != std::string_view::npos)) {
        break;
      }
    }
    return place_ < text.size() ? std::max<size_t>(place_, 1) : std::string_view::npos;
  }
  // Whether the value is complete when nothing follows.
  bool may_end() const { return depth_ == 0 && !in_string_; }

 private:
  size_t place_ = 0;
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

// The values of a JSON file: the elements of its array, or what it has one after the other. Only brackets and strings
// are looked at; whether a value is valid, simdjson says.
class JsonReader final : public RecordReader {
 public:
  JsonReader(const fs::path& path, const RecordOptions& options, int64_t skip)
      : window_(path, options.max_bytes), parser_(options) {
    size_t length = 0;
    for (; number_ < skip && next_value(length); window_.cut(length)) ++number_;
  }

  bool next(Record& record) override {
    size_t length = 0;
    if (ended_) return false;
    if (next_value(length)) {
      record = {.number = ++number_};
      parser_.parse(window_.view().substr(0, length), record);
      window_.cut(length);
      return true;
    }
    ended_ = true;
    record = {.number = number_ + 1};
    if (window_.damaged()) {
      record = window_.damaged_record(number_ + 1);
    } else if (!window_.view().empty() || (in_array_ && !array_closed_)) {
      record.fault = "the file ends inside a value";
      record.remedy = "download or write the file again";
      record.ends_file = true;
    }
    return !record.fault.empty();
  }
  int64_t file_bytes_read() const override { return window_.file_bytes_read(); }

 private:
  // Passes over white space, commas and the array's brackets.
  bool skip_between_values() {
    for (;;) {
      const std::string_view text = window_.view();
      size_t place = 0;
      for (; place < text.size(); ++place) {
        const char c = text[place];
        if (c == '[' && !in_array_ && number_ == 0) {
          in_array_ = true;
        } else if (c == ']' && in_array_) {
          array_closed_ = true;
        } else if (c != ',' && kWhiteSpace.find(c) == std::string_view::npos) {
          break;
        }
      }
      window_.cut(place);
      if (place < text.size()) return true;
      if (!window_.extend()) return false;
    }
  }

  // Brings a whole value to the window's front. False at the end of the file.
  bool next_value(size_t& length) {
    if (!skip_between_values()) return false;
    ValueEnd end;
    for (;;) {
      length = end.find(window_.view());
      if (length != std::string_view::npos) return true;
      if (window_.extend()) continue;
      length = window_.view().size();
      return end.may_end() && !window_.damaged();
    }
  }

  InputWindow window_;
  JsonParser parser_;
  int64_t number_ = 0;
  bool in_array_ = false;
  bool array_closed_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> open_records(const fs::path& path, const RecordOptions& options, int64_t skip) {
  switch (file_kind(path)) {
    case FileKind::kText:
      if (!options.messages_field.empty()) {
        throw usage_error(fmt::format("'{}' is plain text, which has no messages", path.string()),
                          "conversations are read from JSON lines, JSON and Parquet");
      }
      return open_text(path, options, skip);
    case FileKind::kJsonLines:
      return std::make_unique<JsonLinesReader>(path, options, skip);
    case FileKind::kJson:
      return std::make_unique<JsonReader>(path, options, skip);
    case FileKind::kParquet:
      return open_parquet(path, options, skip);
  }
  return nullptr;
}

bool ends_work(const Record& record, int64_t& bad, int64_t allowed) { return record.ends_file || ++bad > allowed; }

Error bad_record_error(const fs::path& path, const RecordOptions& options, const Record& record, int64_t allowed) {
  if (record.ends_file) {
    return runtime_error(fmt::format("{}: {}", place_of(path, options, record.number), record.fault),
                         record.remedy + "; or leave the file out: --skip-bad is for single records");
  }
  const std::string skip = allowed == 0
                               ? "allow for N such records with --skip-bad N"
                               : fmt::format("more than the {} bad records that --skip-bad allows: raise it", allowed);
  const std::string mend = allowed == 0 ? "mend or remove it, or " + skip : skip + ", or mend them";
  return runtime_error(fmt::format("{}: {}", place_of(path, options, record.number), record.fault),
                       record.remedy.empty() ? mend : fmt::format("{}; or {}", record.remedy, skip));
}

std::string place_of(const fs::path& path, const RecordOptions& options, int64_t number) {
  const auto numbered = [&](const char* what) { return fmt::format("'{}', {} {}", path.string(), what, number); };
  switch (file_kind(path)) {
    case FileKind::kText:
      if (options.split_on) return numbered("document");
      return number == 1 ? fmt::format("'{}'", path.string()) : numbered("part");
    case FileKind::kJsonLines:
      return numbered("line");
    case FileKind::kJson:
      return numbered("element");
    case FileKind::kParquet:
      return numbered("row");
  }
  return {};
}

}  // namespace nmoe
