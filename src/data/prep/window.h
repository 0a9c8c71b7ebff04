// A growing window on a file's content: what is cut off its front makes room for more at its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/prep/byte_stream.h"

namespace nmoe {

class Window {
 public:
  // Begins behind a UTF-8 byte order mark, if the content begins with one. Errors: open_bytes.
  explicit Window(const std::filesystem::path& path);

  // SIMDJSON_PADDING bytes beyond it may be read, as simdjson does.
  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void cut(size_t bytes) { begin_ += bytes; }

  // Adds bytes at the end; false when there are no more. Invalidates views. When the stream is damaged, says so and
  // stops there.
  bool extend();
  const std::string& damage() const { return damage_; }
  int64_t file_bytes_read() const { return stream_->file_bytes_read(); }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool ended_ = false;
  std::string damage_;
};

}  // namespace nmoe
