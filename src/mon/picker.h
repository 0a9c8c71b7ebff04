// A list to choose from, with a filter that is typed.
#pragma once

#include <string>
#include <vector>

#include "mon/grid.h"
#include "mon/terminal.h"

namespace nmoe::mon {

class Picker {
 public:
  struct Item {
    std::string id;    // what choosing it means
    std::string text;  // as shown, and what the filter is looked for in
    Style style = Style::kPlain;
  };
  Picker(std::string title, std::string columns) : title_(std::move(title)), columns_(std::move(columns)) {}

  // The selection stays on the same id, as long as that is there.
  void set_items(std::vector<Item> items);
  void select(const std::string& id);

  enum class Result { kOpen, kChosen, kClosed };
  Result press(KeyPress press);
  const std::string& selected() const;  // id; "" of an empty list

  void draw(Grid& grid, Rect rect);

 private:
  void apply_filter();
  void move(int by);

  std::string title_, columns_;
  std::vector<Item> items_;
  std::vector<size_t> visible_;  // indices of items
  std::string filter_;
  bool typing_ = false;
  int at_ = 0;     // the selected one, in visible_
  int first_ = 0;  // in the first line
  int rows_ = 1;   // as drawn last
};

}  // namespace nmoe::mon
