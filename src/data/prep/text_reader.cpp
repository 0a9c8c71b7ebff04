#include "data/prep/text_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "data/prep/window.h"

namespace nmoe {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// A file that is one document, whole or in parts, or whose tail is another.
class WholeReader final : public RecordReader {
 public:
  WholeReader(const fs::path& path, const RecordOptions& options, int64_t skip)
      : window_(path, options.max_bytes),
        part_bytes_(options.part_bytes),
        max_bytes_(options.max_bytes),
        tail_share_(options.tail) {
    for (Record record; number_ < skip && next(record);) continue;
  }

  bool next(Record& record) override {
    if (ended_) return take_tail(record);
    record = {.number = ++number_};
    for (;;) {
      const std::string_view text = window_.view();
      if (part_bytes_ > 0 && text.size() > part_bytes_) {
        take(record, part_size(text, part_bytes_));
        break;
      }
      if (part_bytes_ == 0) take(record, text.size());
      if (record.text.size() > max_bytes_) {
        const ContentFault fault = too_large_record(max_bytes_);
        record = {.number = number_, .fault = fault.what, .remedy = fault.remedy, .ends_file = true};
        ended_ = true;
        return true;
      }
      if (window_.extend()) continue;
      ended_ = true;
      if (window_.damaged()) {
        record = window_.damaged_record(number_);
        return true;
      }
      take(record, window_.view().size());
      if (record.text.empty() && number_ > 1) return false;  // an empty file is one empty document
      break;
    }
    check_utf8(record);
    if (tail_share_ && record.fault.empty() && !record.text.empty()) cut_tail(record.text);
    return true;
  }
  int64_t file_bytes_read() const override { return window_.file_bytes_read(); }

 private:
  void cut_tail(std::string& text) {
    constexpr size_t kNear = 4096;
    const auto end = static_cast<size_t>(static_cast<double>(text.size()) * (1.0 - *tail_share_));
    const size_t near = end - std::min(end, kNear);
    const size_t size = near + part_size(std::string_view(text).substr(near), std::max<size_t>(end - near, 1));
    tail_ = text.substr(size);
    text.resize(size);
  }

  bool take_tail(Record& record) {
    if (tail_.empty()) return false;
    record = {.number = ++number_, .text = std::exchange(tail_, {}), .tail = true};
    return true;
  }

  void take(Record& record, size_t bytes) {
    record.text.append(window_.view().substr(0, bytes));
    window_.cut(bytes);
  }

  InputWindow window_;
  size_t part_bytes_;
  size_t max_bytes_;
  std::optional<double> tail_share_;
  std::string tail_;  // still to be delivered
  int64_t number_ = 0;
  bool ended_ = false;
};

// A file of documents, parted by lines.
class SeparatedReader final : public RecordReader {
 public:
  SeparatedReader(const fs::path& path, const RecordOptions& options, int64_t skip)
      : window_(path, options.max_bytes), separator_(*options.split_on) {
    for (Record record; number_ < skip && next(record);) continue;
  }

  bool next(Record& record) override {
    if (ended_) return false;
    record = {.number = ++number_};
    size_t line = 0;  // where in the window the line in question begins
    for (size_t searched = 0;;) {
      const std::string_view text = window_.view();
      const size_t end = text.find('\n', std::max(line, searched));
      if (end != std::string_view::npos) {
        const bool separates = is_separator(text.substr(line, end - line));
        if (separates && separator_.empty() && line == 0) {  // one more blank line, or the file begins with one
          window_.cut(end + 1);
          searched = 0;
          continue;
        }
        if (separates) return deliver(record, line, end + 1);
        line = end + 1;
        continue;
      }
      searched = text.size();
      if (window_.extend()) continue;
      return deliver_last(record, line);
    }
  }
  int64_t file_bytes_read() const override { return window_.file_bytes_read(); }

 private:
  bool is_separator(std::string_view line) const {
    if (separator_.empty()) return line.find_first_not_of(kBlanks) == std::string_view::npos;
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
    const std::string_view text = window_.view();
    // What follows the last line's end is a line only if there is something.
    const bool separated = line < text.size() && is_separator(text.substr(line));
    deliver(record, separated ? line : text.size(), text.size());
    // Nothing after the last separator is no document, and an empty file is one.
    return number_ == 1 || !record.text.empty() || !record.fault.empty() || (separated && !separator_.empty());
  }

  InputWindow window_;
  std::string separator_;
  int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace

size_t part_size(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  const size_t line_end = text.rfind('\n', most - 1);
  if (line_end != std::string_view::npos) return line_end + 1;
  size_t size = most;
  while (size > 1 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return size;
}

std::unique_ptr<RecordReader> open_text(const fs::path& path, const RecordOptions& options, int64_t skip) {
  if (!options.split_on) return std::make_unique<WholeReader>(path, options, skip);
  return std::make_unique<SeparatedReader>(path, options, skip);
}

}  // namespace nmoe
