// Finds stop strings in a text that arrives in pieces, and holds back what may be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nmoe {

class StopStrings {
 public:
  // None may be empty. No strings at all: nothing is held back.
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}
  StopStrings(const StopStrings&) = delete;
  StopStrings& operator=(const StopStrings&) = delete;

  // Appends `bytes` and returns what certainly comes before an end: everything but a tail that begins a stop string.
  // The string whose last byte comes first is the one that counts, the longest of those that end with that byte;
  // after it nothing is returned any more. So the result does not depend on how the text is cut into pieces.
  std::string push(std::string_view bytes);
  // What was held back, of a text that has ended otherwise.
  std::string flush();

  // The string that was found, or null.
  const std::string* found() const { return found_; }

 private:
  // Length of the longest tail of held_ that is the beginning of a stop string.
  size_t beginning_of_stop() const;

  std::vector<std::string> strings_;
  std::string held_;
  const std::string* found_ = nullptr;
};

}  // namespace nmoe
