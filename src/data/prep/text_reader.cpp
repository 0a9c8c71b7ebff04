#include "data/prep/text_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "data/prep/window.h"

namespace nmoe {
namespace {

// Documents of plain text in UTF-8, otherwise taken byte for byte.
class TextReader final : public RecordReader {
 public:
  TextReader(const fs::path& path, std::string separator, int64_t skip)
      : window_(path), separator_(std::move(separator)) {
    if (separator_.empty()) ended_ = skip > 0;
    for (Record record; number_ < skip && next(record);) continue;
  }

  bool next(Record& record) override {
    if (ended_) return false;
    record = {.number = ++number_};
    size_t line = 0;  // where in the window the line in question begins
    for (size_t searched = 0;;) {
      const std::string_view text = window_.view();
      const size_t end = separator_.empty() ? std::string_view::npos : text.find('\n', std::max(line, searched));
      if (end != std::string_view::npos) {
        if (is_separator(text.substr(line, end - line))) return deliver(record, line, end + 1);
        line = end + 1;
        continue;
      }
      searched = text.size();
      if (separator_.empty()) {
        record.text.append(text);
        window_.cut(text.size());
        searched = 0;
      }
      if (window_.extend()) continue;
      return deliver_last(record, line);
    }
  }
  int64_t file_bytes_read() const override { return window_.file_bytes_read(); }

 private:
  bool is_separator(std::string_view line) const {
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line == separator_;
  }

  bool deliver(Record& record, size_t length, size_t consumed) {
    record.text.assign(window_.view().substr(0, length));
    window_.cut(consumed);
    check_utf8(record);
    return true;
  }

  bool deliver_last(Record& record, size_t line) {
    ended_ = true;
    if (window_.damaged()) {
      record = window_.damaged_record(number_);
      return true;
    }
    if (separator_.empty()) {
      if (record.text.empty()) record.fault = "the file is empty";
      check_utf8(record);
      return true;
    }
    const std::string_view text = window_.view();
    if (text.empty() && number_ == 1) record.fault = "the file is empty";
    const bool separated = !text.empty() && is_separator(text.substr(line));
    deliver(record, separated ? line : text.size(), text.size());
    // Nothing after the last separator is no document.
    return !record.text.empty() || !record.fault.empty() || separated;
  }

  Window window_;
  std::string separator_;
  int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> open_text(const fs::path& path, const RecordOptions& options, int64_t skip) {
  return std::make_unique<TextReader>(path, options.split_on, skip);
}

}  // namespace nmoe
