// Cuts a stream of bytes into pieces that end at UTF-8 character boundaries.
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

class Utf8Stream {
 public:
  // Appends `bytes` and returns what can be shown now: everything but an unfinished character at the end. Bytes that
  // are no UTF-8 pass through as they are.
  std::string push(std::string_view bytes);
  // What is left at the end of the stream.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace nmoe
