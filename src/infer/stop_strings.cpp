#include "infer/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nmoe {

std::string StopStrings::push(std::string_view bytes) {
  if (found_ != nullptr) return "";
  std::string certain;
  for (const char byte : bytes) {
    held_ += byte;
    for (const std::string& stop : strings_) {
      if (held_.ends_with(stop) && (found_ == nullptr || stop.size() > found_->size())) found_ = &stop;
    }
    // The beginning of a stop string stays, so that all of one is in held_ when its last byte comes.
    const size_t ready = held_.size() - (found_ != nullptr ? found_->size() : beginning_of_stop());
    certain += held_.substr(0, ready);
    if (found_ != nullptr) {
      held_.clear();
      break;
    }
    held_.erase(0, ready);
  }
  return certain;
}

size_t StopStrings::beginning_of_stop() const {
  size_t longest = 0;
  for (const std::string& stop : strings_) {
    for (size_t size = std::min(held_.size(), stop.size() - 1); size > longest; --size) {
      if (std::string_view(held_).substr(held_.size() - size) == std::string_view(stop).substr(0, size)) longest = size;
    }
  }
  return longest;
}

std::string StopStrings::flush() { return std::exchange(held_, {}); }

}  // namespace nmoe
