#include "data/prep/window.h"

#include <simdjson.h>

#include <cstring>
#include <span>

namespace nmoe {
namespace {

constexpr size_t kInitialBytes = 1 << 18;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

Window::Window(const std::filesystem::path& path) : stream_(open_bytes(path)), buffer_(kInitialBytes) {
  while (view().size() < kByteOrderMark.size() && extend()) continue;
  if (view().starts_with(kByteOrderMark)) cut(kByteOrderMark.size());
}

bool Window::extend() {
  if (ended_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ + simdjson::SIMDJSON_PADDING >= buffer_.size()) buffer_.resize(2 * buffer_.size());
  size_t count = 0;
  try {
    count = stream_->read(std::span(buffer_).subspan(end_, buffer_.size() - simdjson::SIMDJSON_PADDING - end_));
  } catch (const DamagedStream& damage) {
    damage_ = damage.what();
  }
  end_ += count;
  ended_ = count == 0;
  return !ended_;
}

}  // namespace nmoe
