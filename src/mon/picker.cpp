#include "mon/picker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "mon/panels.h"

namespace nmoe::mon {

void Picker::set_items(std::vector<Item> items) {
  const std::string id = selected();
  items_ = std::move(items);
  apply_filter();
  select(id);
}

void Picker::select(const std::string& id) {
  const auto found = std::ranges::find(visible_, id, [&](size_t item) { return items_[item].id; });
  if (found != visible_.end()) at_ = static_cast<int>(found - visible_.begin());
}

void Picker::apply_filter() {
  visible_.clear();
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].text.find(filter_) != std::string::npos) visible_.push_back(i);
  }
  move(0);
}

void Picker::move(int by) { at_ = std::clamp(at_ + by, 0, std::max(0, static_cast<int>(visible_.size()) - 1)); }

const std::string& Picker::selected() const {
  static const std::string kNone;
  return visible_.empty() ? kNone : items_[visible_[static_cast<size_t>(at_)]].id;
}

Picker::Result Picker::press(KeyPress press) {
  switch (press.key) {
    case Key::kUp:
      move(-1);
      return Result::kOpen;
    case Key::kDown:
      move(1);
      return Result::kOpen;
    case Key::kPageUp:
      move(-rows_);
      return Result::kOpen;
    case Key::kPageDown:
      move(rows_);
      return Result::kOpen;
    case Key::kHome:
      at_ = 0;
      return Result::kOpen;
    case Key::kEnd:
      move(static_cast<int>(visible_.size()));
      return Result::kOpen;
    case Key::kEnter:
      return visible_.empty() ? Result::kOpen : Result::kChosen;
    case Key::kF3:
    case Key::kF4:
      typing_ = true;
      return Result::kOpen;
    case Key::kEscape:
      if (!typing_ && filter_.empty()) return Result::kClosed;
      typing_ = false;
      filter_.clear();
      apply_filter();
      return Result::kOpen;
    case Key::kBackspace:
      if (typing_ && !filter_.empty()) filter_.pop_back();
      apply_filter();
      return Result::kOpen;
    case Key::kCharacter:
      if (typing_) {
        if (press.character >= 0x20 && press.character < 0x7f) filter_ += static_cast<char>(press.character);
        apply_filter();
      } else if (press.character == U'/' || press.character == U'\\') {
        typing_ = true;
      } else if (press.character == U'q') {
        return Result::kClosed;
      }
      return Result::kOpen;
    case Key::kF10:
      return Result::kClosed;
    default:
      return Result::kOpen;
  }
}

void Picker::draw(Grid& grid, Rect rect) {
  grid.fill(rect, Style::kPlain);
  draw_heading(
      grid, rect,
      typing_ || !filter_.empty() ? fmt::format("{}  filter: {}{}", title_, filter_, typing_ ? "_" : "") : title_);
  grid.put(rect.x, rect.y + 1, columns_, Style::kLabel, rect.width);
  rows_ = std::max(1, rect.height - 2);
  first_ = std::clamp(first_, std::max(0, at_ - rows_ + 1), at_);
  for (int row = 0; row < rows_ && first_ + row < static_cast<int>(visible_.size()); ++row) {
    const Item& item = items_[visible_[static_cast<size_t>(first_ + row)]];
    const int y = rect.y + 2 + row;
    const bool is_selected = first_ + row == at_;
    if (is_selected) grid.fill({rect.x, y, rect.width, 1}, Style::kSelected);
    grid.put(rect.x, y, item.text, is_selected ? Style::kSelected : item.style, rect.width);
  }
  if (visible_.empty()) grid.put(rect.x + 2, rect.y + 2, "nothing", Style::kDim, rect.width - 2);
}

}  // namespace nmoe::mon
