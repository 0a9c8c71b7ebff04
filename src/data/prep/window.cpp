#include "data/prep/window.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"

namespace nmoe {
namespace {

constexpr size_t kInitialBytes = 1 << 18;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

ContentFault too_large_record(size_t max_bytes) {
  return {fmt::format("a record of more than {}", human_bytes(static_cast<int64_t>(max_bytes))),
          "cut it into documents (--split-on, JSON lines), or allow larger ones (--max-record)"};
}

InputWindow::InputWindow(const std::filesystem::path& path, size_t max_bytes)
    : stream_(open_bytes(path)), max_bytes_(max_bytes), buffer_(kInitialBytes) {
  while (view().size() < kContentHeadBytes && extend()) continue;
  if (std::optional<ContentFault> fault = binary_content(view().substr(0, kContentHeadBytes))) {
    damage_ = std::move(*fault);
    cut(view().size());
    ended_ = true;
  }
  if (view().starts_with(kByteOrderMark)) cut(kByteOrderMark.size());
}

bool InputWindow::extend() {
  if (ended_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ >= max_bytes_) {
    damage_ = too_large_record(max_bytes_);
    ended_ = true;
    return false;
  }
  if (end_ + simdjson::SIMDJSON_PADDING >= buffer_.size()) {
    buffer_.resize(std::min(2 * buffer_.size(), std::max(max_bytes_, kInitialBytes) + 2 * simdjson::SIMDJSON_PADDING));
  }
  size_t count = 0;
  try {
    count = stream_->read(std::span(buffer_).subspan(end_, buffer_.size() - simdjson::SIMDJSON_PADDING - end_));
  } catch (const DamagedStream& damage) {
    damage_ = {damage.what(), "download or write the file again"};
  }
  end_ += count;
  ended_ = count == 0;
  return !ended_;
}

Record InputWindow::damaged_record(int64_t number) const {
  return {.number = number, .fault = damage_.what, .remedy = damage_.remedy, .ends_file = true};
}

}  // namespace nmoe
