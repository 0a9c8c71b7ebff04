// A growing window on a file's content: what is cut off its front makes room for more at its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "data/prep/byte_stream.h"
#include "data/prep/content.h"
#include "data/prep/records.h"

namespace nmoe {

// Of a record beyond RecordOptions::max_bytes.
ContentFault too_large_record(size_t max_bytes);

class Window {
 public:
  // Begins behind a UTF-8 byte order mark, if the content begins with one. What cannot be text (content.h) is damage
  // from its first byte on, and so is a view of more than `max_bytes`. Errors: open_bytes.
  Window(const std::filesystem::path& path, size_t max_bytes);

  // SIMDJSON_PADDING bytes beyond it may be read, as simdjson does.
  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void cut(size_t bytes) { begin_ += bytes; }

  // Adds bytes at the end; false when there are no more. Invalidates views. When the stream is damaged, says so and
  // stops there.
  bool extend();
  bool damaged() const { return !damage_.what.empty(); }
  // A record that tells the damage.
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
