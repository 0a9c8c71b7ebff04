// A moving window over a file's content: it is cut at the front and extended at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "data/prep/byte_stream.h"
#include "data/prep/content.h"
#include "data/prep/record.h"

namespace nmoe {

// The fault of a record larger than RecordOptions::max_bytes.
ContentFault too_large_record(size_t max_bytes);

class InputWindow {
 public:
  // Begins after a UTF-8 byte order mark, if there is one. Content that cannot be text (content.h) is damage from the
  // first byte on, and so is a view of more than `max_bytes`. Errors: open_bytes.
  InputWindow(const std::filesystem::path& path, size_t max_bytes);

  // SIMDJSON_PADDING bytes beyond it may be read, as simdjson does.
  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void cut(size_t bytes) { begin_ += bytes; }

  // Adds bytes at the end; false if there are no more. Invalidates views. Stops where
  // the stream is damaged, and notes the damage.
  bool extend();
  bool damaged() const { return !damage_.what.empty(); }
  // A record whose fault is the damage.
  Record damaged_record(int64_t number) const;
  int64_t file_bytes_read() const { return stream_->file_bytes_read(); }

 private:
  std::unique_ptr<ByteStream> stream_;
  size_t max_bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool ended_ = false;
  ContentFault damage_;
};

}  // namespace nmoe
